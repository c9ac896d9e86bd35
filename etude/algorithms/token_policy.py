"""What policies over the tokens of whole games share: the networks, and how they act."""

from __future__ import annotations

from typing import Any, ClassVar

from etude import ops
from etude.agent import Agent
from etude.algorithms.distributions import policy_for
from etude.algorithms.policies import BoundedPolicy, Policy
from etude.base.data import Batch
from etude.base.spaces import Discrete, Spaces
from etude.base.trees import Tree
from etude.networks import Maker, frozen


class TokenPolicy(Agent):
    """A policy, and the reference: the policy that a run starts from, which no loss trains."""

    actions: ClassVar[tuple[type[Any], ...]] = (Discrete,)
    reads_tokens = True

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.read_games(make, spaces)
        self.reference: dict[str, Any] = {"policy": frozen(self.actor["policy"])}

    def read_games(self, make: Maker, spaces: Spaces, masks: bool = False) -> None:
        """Make the policy over whole games. masks: whether its network may be one of masked tokens."""
        self.policy: Policy = policy_for(self.config, spaces, BoundedPolicy)
        network = make.tokens(self.config.actor_network, spaces.observation, self.policy.outputs, masks=masks)
        self.state_size: int = network.state_size
        self.actor: dict[str, Any] = self.policy.around(network, make, None)

    @property
    def state_recorded(self) -> bool:
        """False: keys and values are many."""
        return False

    def act(self, observation: Tree, *state: Any) -> Any:
        x, following = self.actor["policy"](observation, *state)
        return self.policy.of(self.actor, observation, x), following

    def of_games(self, parts: dict[str, Any], batch: Batch) -> Any:
        """The distribution of each token [B, L] of the games of a batch."""
        return self.policy.of(parts, batch.observation, parts["policy"].whole(batch.action)[:, :-1])


def mean_over_tokens(batch: Batch, x: Any) -> Any:
    """The weighted mean of x [B, L] over the tokens of the agent."""
    mine = batch.extras["mine"]
    return ops.sum(ops.expand_dims(batch.weight, -1) * mine * x) / ops.replica_mean(ops.sum(mine))


def mean_over_games(batch: Batch, x: Any) -> Any:
    """The mean over games of the mean of x [B, L] over the agent's tokens."""
    mine = batch.extras["mine"]
    return ops.mean(batch.weight * ops.sum(mine * x, -1) / ops.maximum(ops.sum(mine, -1), 1.0))
