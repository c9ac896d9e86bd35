"""Deep Q-network, with double estimation on request.

Mnih et al. 2015, Human-level control through deep reinforcement learning, doi:10.1038/nature14236.
van Hasselt, Guez & Silver 2016, Deep reinforcement learning with double Q-learning, arXiv:1509.06461.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from etude import checks, ops
from etude.agent import Agent, Loss, Losses
from etude.data import Batch
from etude.losses.value import double_q, huber, q_learning
from etude.networks import Maker, Mlp, Spec, lagged
from etude.optimizers import Adam
from etude.schedules import Linear
from etude.spaces import ACTION_MASK, Discrete, Spaces
from etude.trees import Tree

NEVER = -1e9  # the value of an action that the mask forbids


@dataclass(frozen=True)
class DQNConfig:
    """Hyperparameters of DQN. All cadences count environment steps, but for `target_every`."""

    network: Spec = Mlp((64, 64))  # or a function that returns your own torch.nn.Module or keras.Model
    learning_rate: float | Linear = 1e-3
    gamma: float = 0.99
    double: bool = True  # choose the next action with the online network, value it with the lagged one
    target_every: int = 500  # gradient steps between two copies into the lagged network
    epsilon: float | Linear = Linear(1.0, 0.05, 0.1)  # the chance of a random action
    batch_size: int = 64
    replay_size: int = 100_000  # transitions kept
    warmup: int = 1_000  # steps collected before the first learning
    learn_every: int = 4  # steps between two learning phases
    updates: int = 1  # gradient steps in a learning phase
    n_step: int = 1
    max_gradient_norm: float | None = 10.0
    normalize_observation: bool = False
    normalize_reward: bool = False
    optimizer: Adam = Adam()

    def __post_init__(self) -> None:
        checks.fractions(self, "gamma", "epsilon")
        checks.not_negative(self, "learning_rate", "warmup")
        checks.counts(self, "target_every", "batch_size", "replay_size", "learn_every", "updates", "n_step")


class DQN(Agent):
    """Values of every action, trained towards the reward and the discounted value of the best next action."""

    actions = (Discrete,)

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.masked = spaces.masked
        self.normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.q = make(self.config.network, spaces.observation, outputs=int(spaces.action.n))
        self.q_lagged = lagged(self.q, every="target_every")

    def act(self, observation: Tree) -> Any:
        return self._values(self.q, observation)

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        q = self.q(self.normaliser(batch.observation))
        next_q = self._values(self.q_lagged, batch.next_observation)
        if self.config.double:
            chooser = self._values(self.q, batch.next_observation)
            td_error = double_q(q, batch.action, batch.reward, batch.discount, next_q, chooser)
        else:
            td_error = q_learning(q, batch.action, batch.reward, batch.discount, next_q)
        loss = ops.mean(batch.weight * huber(td_error))
        return Losses(q=Loss(loss, td_error=td_error, q_value=ops.mean(ops.take_last(q, batch.action))))

    def _values(self, network: Any, observation: Tree) -> Any:
        values = network(self.normaliser(observation))
        return ops.where(observation[ACTION_MASK] > 0, values, NEVER) if self.masked else values
