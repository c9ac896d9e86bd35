"""Recurrent deep Q-network, learning from replayed sequences.

Kapturowski et al. 2019, Recurrent experience replay in distributed reinforcement learning (R2D2), ICLR,
https://openreview.net/forum?id=r1lyTjAqYX. Rescaled values: Pohlen et al. 2018, arXiv:1805.11593.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from etude import ops
from etude.agent import ActsBy, Agent, Loss, Losses
from etude.base import checks, trees
from etude.base.data import Batch
from etude.base.errors import ConfigError
from etude.base.schedules import Linear
from etude.base.spaces import ACTION_MASK, Discrete, Spaces
from etude.base.trees import Tree
from etude.config import SequenceConfig
from etude.losses.masks import best_action, masked
from etude.losses.returns import n_step_returns_of_runs
from etude.losses.value import rescaled, sequence_priority, squared, unscaled
from etude.networks import Maker, Normaliser, Recurrent, RecurrentNetwork, Spec, Transformer, target


@dataclass(frozen=True)
class R2D2Config(SequenceConfig):
    """Hyperparameters of R2D2, besides those of every algorithm that learns from sequences."""

    network: Spec = Recurrent()  # Q-network, a `Recurrent`
    learning_rate: float | Linear = 1e-3
    train_every: int = 16
    batch_size: int = 32
    n_step: int = 5
    max_gradient_norm: float | None = 40.0
    priority_exponent: float = 0.9
    importance_exponent: float | Linear = 0.6
    priority_mix: float = 0.9  # eta: weight of the largest error in a sequence's priority, against the mean error
    rescale_values: bool = False  # learn rescaled values (Pohlen et al. 2018), for rewards of any magnitude
    target_update_every: int = 400  # gradient steps between two updates of the target network
    epsilon: float | Linear = Linear(1.0, 0.05, 0.1)  # probability of a random action

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "epsilon", "priority_mix")
        checks.counts(self, "target_update_every")
        if isinstance(self.network, Transformer):
            raise ConfigError(
                "R2D2Config: network is a Transformer, whose recurrent state is not recorded with the steps, and "
                "replayed sequences begin with it. Give Recurrent(...), or learn with recurrent_ppo."
            )


class R2D2(Agent):
    """Values of every action, by a recurrent network."""

    acts_by: ClassVar[ActsBy] = "values"
    learns_from = "sequences"
    actions: ClassVar[tuple[type[Any], ...]] = (Discrete,)

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.masked: bool = spaces.masked
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.q: RecurrentNetwork = make.recurrent(self.config.network, spaces.observation, outputs=int(spaces.action.n))
        self.q_target: RecurrentNetwork = target(self.q, every="target_update_every")
        self.state_size: int = self.q.state_size

    def act(self, observation: Tree, state: Any) -> tuple[Any, Any]:
        q, state = self.q(self.normaliser(observation), state)
        return self._of(q, observation), state

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        mask = batch.extras["mask"]
        q, selector = self._values(self.q, batch)
        _, next_q = self._values(self.q_target, batch)
        best = ops.take_last(next_q, best_action(self._of(selector, batch.next_observation)))
        target = ops.stop_gradient(self._target(batch, best))
        chosen = ops.take_last(q, batch.action)
        error = (target - chosen) * mask
        counted = ops.replica_mean(ops.sum(mask))
        loss = ops.sum(ops.expand_dims(batch.weight, -1) * squared(error)) / counted
        priority = sequence_priority(error, mask, self.config.priority_mix)
        return Losses(q=Loss(loss, td_error=priority, q_value=ops.sum(mask * chosen) / counted))

    def _values(self, network: RecurrentNetwork, batch: Batch) -> tuple[Any, Any]:
        """The values of the observations of sequences, and of those that follow, [B, L, n] each. The latter are one
        step from each recurrent state, so that those of final observations are correct, too."""
        mask, start = batch.extras["mask"], batch.extras.get("recurrent_state")
        observation, following = self.normaliser(batch.observation), self.normaliser(batch.next_observation)
        q, states = network.unroll(observation, start, trained=mask)
        flat = trees.map(lambda x: ops.reshape(x, (-1, *x.shape[2:])), following)
        next_q, _ = network(flat, ops.reshape(states, (-1, network.state_size)))
        return q, ops.reshape(next_q, q.shape)

    def _target(self, batch: Batch, value: Any) -> Any:
        """Returns over n steps [B, L], fewer where the sequence stops; `value` is that of the next observations."""
        mask = batch.extras["mask"]
        value = unscaled(value) if self.config.rescale_values else value
        follows = ops.concatenate([mask[:, 1:], ops.zeros_like(mask[:, :1])], -1)
        reward, discount, value, follows = (
            ops.swapaxes(x, 0, 1) for x in (batch.reward, batch.discount, value, follows)
        )
        target = ops.swapaxes(n_step_returns_of_runs(reward, discount, value, follows, self.config.n_step), 0, 1)
        return rescaled(target) if self.config.rescale_values else target

    def _of(self, q: Any, observation: Tree) -> Any:
        """Values [..., n] with the mask of these observations, where there is one."""
        return masked(q, observation[ACTION_MASK]) if self.masked else q
