"""Behaviour cloning: supervised learning of the recorded actions.

Pomerleau 1991, Efficient training of artificial neural networks for autonomous navigation,
doi:10.1162/neco.1991.3.1.88.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from etude import ops
from etude.agent import Agent, LearnsFrom, Loss, Losses
from etude.algorithms.distributions import DistributionSpec, StochasticPolicyConfig, policy_for
from etude.algorithms.policies import BoundedPolicy, Policy
from etude.base.data import Batch
from etude.base.errors import ConfigError
from etude.base.schedules import Linear
from etude.base.spaces import Box, Spaces
from etude.base.trees import Tree
from etude.config import OfflineConfig
from etude.language import Pretrained
from etude.losses.offline import action_error, negative_log_likelihood
from etude.networks import Maker, Transformer
from etude.networks.network import Normaliser


@dataclass(frozen=True)
class BCConfig(OfflineConfig, StochasticPolicyConfig):
    """Hyperparameters of behaviour cloning, besides those of every offline algorithm."""

    learning_rate: float | Linear = 1e-3
    squared_error: bool = False  # Box actions: regress the action by squared error, without a standard deviation

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.squared_error and self.distribution != DistributionSpec():
            raise ConfigError(
                f"{type(self).__name__}: squared_error = True regresses actions without a distribution, and "
                f"distribution = {self.distribution!r}. Leave one of them out."
            )


class BC(Agent):
    """A policy trained on the recorded actions by maximum likelihood or squared error. A `Transformer` learns
    from whole games of tokens, of which those of the agent count."""

    actions: ClassVar[tuple[type[Any], ...]] = BoundedPolicy.actions
    bounded_actions = True
    reads_tokens = True

    learns_from: LearnsFrom = "transitions"

    def __init__(self, config: Any, *more: Any, **options: Any):
        super().__init__(config, *more, **options)
        if isinstance(config.actor_network, Transformer | Pretrained):
            self.learns_from = "token_sequences"

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.squared: Any | bool = self.config.squared_error and type(spaces.action) is Box
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.policy: Policy = policy_for(self.config, spaces, BoundedPolicy)
        self.actor: dict[str, Any]
        if self.learns_from == "token_sequences":
            policy, observed = self.policy, spaces.observation
            network = make.tokens(self.config.actor_network, observed, policy.outputs, policy.gain)
            self.actor, self.state_size = policy.around(network, make, None), network.state_size
        else:
            self.actor = self.policy.make(make, self.config.actor_network, None if self.squared else 0.0)

    @property
    def state_recorded(self) -> bool:
        """False: keys and values are many."""
        return False

    def act(self, observation: Tree, *state: Any) -> Any:
        if not state:
            return self.policy(self.actor, observation, self.normaliser(observation))
        x, following = self.actor["policy"](observation, *state)
        return self.policy.of(self.actor, observation, x), following

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        if self.state_size:
            return self._of_games(batch)
        found = self.act(batch.observation)
        if self.squared:
            return Losses(actor=Loss(ops.mean(batch.weight * action_error(found.mode(), batch.action))))
        loss = negative_log_likelihood(found.log_prob(batch.action))
        return Losses(actor=Loss(ops.mean(batch.weight * loss), policy_entropy=ops.mean(found.entropy())))

    def _of_games(self, batch: Batch) -> Losses:
        """The mean over the tokens of the agent."""
        found = self.policy.of(self.actor, batch.observation, self.actor["policy"].whole(batch.action)[:, :-1])
        mine = batch.extras["mine"]
        counted = ops.replica_mean(ops.sum(mine))
        loss = ops.expand_dims(batch.weight, -1) * mine * negative_log_likelihood(found.log_prob(batch.action))
        entropy = ops.sum(mine * found.entropy()) / counted
        return Losses(actor=Loss(ops.sum(loss) / counted, policy_entropy=entropy))
