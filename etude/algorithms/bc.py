"""Behaviour cloning: supervised learning of the recorded actions.

Pomerleau 1991, Efficient training of artificial neural networks for autonomous navigation,
doi:10.1162/neco.1991.3.1.88.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from etude import ops
from etude.agent import LearnsFrom, Loss, Losses
from etude.algorithms.distributions import DistributionSpec, StochasticPolicyConfig, policy_for
from etude.algorithms.policies import BoundedPolicy, Policy
from etude.algorithms.token_policy import TokenPolicy, mean_over_tokens
from etude.base import checks
from etude.base.data import Batch
from etude.base.errors import ConfigError
from etude.base.schedules import Linear
from etude.base.spaces import Box, Spaces
from etude.base.trees import Tree
from etude.config import OfflineConfig
from etude.language import Pretrained
from etude.losses.offline import action_error, negative_log_likelihood
from etude.networks import Maker, Normaliser, Transformer


@dataclass(frozen=True)
class BCConfig(OfflineConfig, StochasticPolicyConfig):
    """Hyperparameters of behaviour cloning, besides those of every offline algorithm."""

    learning_rate: float | Linear = 1e-3
    squared_error: bool = False  # Box actions: regress the action by squared error, without a standard deviation
    masked: float = 0.15  # Transformers with causal=False: this share of tokens is hidden, and learned

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "masked")
        checks.positive(self, "masked")
        if self.squared_error and self.distribution != DistributionSpec():
            raise ConfigError(
                f"{type(self).__name__}: squared_error = True regresses actions without a distribution, and "
                f"distribution = {self.distribution!r}. Leave one of them out."
            )


class BC(TokenPolicy):
    """A policy trained on the recorded actions by maximum likelihood or squared error. A `Transformer` learns
    from whole games of tokens, of which those of the agent count; with `causal` = False from masked tokens, of both
    sides, as BERT does (Devlin et al. 2019, arXiv:1810.04805)."""

    actions: ClassVar[tuple[type[Any], ...]] = BoundedPolicy.actions
    bounded_actions = True

    learns_from: LearnsFrom = "transitions"

    def __init__(self, config: Any, *more: Any, **options: Any):
        super().__init__(config, *more, **options)
        if isinstance(config.actor_network, Transformer | Pretrained):
            self.learns_from = "token_sequences"

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.squared: Any | bool = self.config.squared_error and type(spaces.action) is Box
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        if self.learns_from == "token_sequences":
            self.read_games(make, spaces, masks=True)
            if not getattr(self.config.actor_network, "causal", True):
                self.noise = {"masked": (self.actor["policy"].space.context,)}
        else:
            self.policy: Policy = policy_for(self.config, spaces, BoundedPolicy)
            self.actor = self.policy.make(make, self.config.actor_network, None if self.squared else 0.0)

    def act(self, observation: Tree, *state: Any) -> Any:
        if not state:
            return self.policy(self.actor, observation, self.normaliser(observation))
        return super().act(observation, *state)

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        if self.noise:
            return self._of_masked_tokens(batch, noise["masked"])
        if self.state_size:
            return Losses(actor=self.clone_loss(batch))
        found = self.act(batch.observation)
        if self.squared:
            return Losses(actor=Loss(ops.mean(batch.weight * action_error(found.mode(), batch.action))))
        loss = negative_log_likelihood(found.log_prob(batch.action))
        return Losses(actor=Loss(ops.mean(batch.weight * loss), policy_entropy=ops.mean(found.entropy())))

    def clone_loss(self, batch: Batch) -> Loss:
        """Of whole games."""
        found = self.of_games(self.actor, batch)
        loss = negative_log_likelihood(found.log_prob(batch.action))
        return Loss(mean_over_tokens(batch, loss), policy_entropy=mean_over_tokens(batch, found.entropy()))

    def _of_masked_tokens(self, batch: Batch, noise: Any) -> Losses:
        """The mean over hidden tokens, of the agent and of the world. noise: [B, context]."""
        network, length = self.actor["policy"], int(batch.action.shape[1])
        end = ops.max(batch.extras["next_place"], -1)
        place = ops.cumsum(ops.ones_like(batch.extras["mine"]), -1)
        # Hendrycks & Gimpel 2016, arXiv:1606.08415: the normal distribution function, to 0.0003.
        drawn = 0.5 + 0.5 * ops.tanh((2 / math.pi) ** 0.5 * (noise + 0.044715 * noise**3))
        known = place <= ops.expand_dims(ops.cast(end, "float32"), -1)
        hidden = ops.cast((drawn[:, :length] < self.config.masked) & known, "float32")
        logits = network.whole(network.masked(batch.action, hidden), end)[:, 1:]
        found = self.policy.of(self.actor, batch.observation, logits)
        counted = ops.maximum(ops.replica_mean(ops.sum(hidden)), 1.0)
        right = ops.cast(ops.cast(found.mode(), "int32") == batch.action, "float32")
        loss = negative_log_likelihood(found.log_prob(batch.action))
        loss = ops.sum(ops.expand_dims(batch.weight, -1) * hidden * loss) / counted
        return Losses(actor=Loss(loss, accuracy=ops.sum(hidden * right) / counted))
