"""Deep Q-network, optionally with double Q-learning.

Mnih et al. 2015, Human-level control through deep reinforcement learning, doi:10.1038/nature14236.
van Hasselt, Guez & Silver 2016, Deep reinforcement learning with double Q-learning, arXiv:1509.06461.
Horgan et al. 2018, Distributed prioritized experience replay, arXiv:1803.00933: Ape-X, DQN for many actors, with
per-actor epsilons and initial priorities computed by the actors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from etude import ops
from etude.agent import ActsBy, Agent, Loss, Losses
from etude.base import checks
from etude.base.data import Batch
from etude.base.schedules import Linear
from etude.base.spaces import ACTION_MASK, Discrete, Spaces
from etude.base.trees import Tree
from etude.config import OffPolicyConfig
from etude.losses.masks import masked
from etude.losses.value import double_q, huber, q_learning
from etude.networks import Maker, Mlp, Normaliser, Part, Spec, target
from etude.networks.random_shift import RandomShift


@dataclass(frozen=True)
class DQNConfig(OffPolicyConfig):
    """Hyperparameters of DQN, besides those of every off-policy algorithm."""

    network: Spec = Mlp((128, 128))
    # At a constant rate the greedy policy of the last agent depends on whichever phase came last. The rate does not
    # fall to 0, so that a run that goes on in small pieces, each the end of its schedule, still learns.
    learning_rate: float | Linear = Linear(1e-3, 1e-4)
    train_every: int = 4
    gradient_steps: int = 4
    n_step: int = 5
    max_gradient_norm: float | None = 10.0
    double: bool = True  # double Q-learning: the online network selects the next action, the target network values it
    target_update_every: int = 500  # gradient steps between two updates of the target network
    epsilon: float | Linear = Linear(1.0, 0.05, 0.1)  # probability of a random action
    random_shift: int = 0  # shift images randomly by up to so many pixels in every batch (DrQ); 0: off

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "epsilon")
        checks.counts(self, "target_update_every")
        checks.not_negative(self, "random_shift")


class DQN(Agent):
    """Values of every action; the target is the reward plus the discounted value of the best next action."""

    acts_by: ClassVar[ActsBy] = "values"
    actions: ClassVar[tuple[type[Any], ...]] = (Discrete,)

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.masked: bool = spaces.masked
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.random_shift: RandomShift = make.random_shift(spaces.observation, self.config.random_shift)
        self.q: Part = make.values(self.config.network, spaces.observation, int(spaces.action.n))
        self.q_target: Part = target(self.q, every="target_update_every")
        self.batch_noise: dict[str, tuple[int, ...]] = dict.fromkeys(("q", "q_target", "next_q"), (self.q.noise_size,))
        self.noise: dict[str, tuple[int, ...]] = dict(self.random_shift.noise)

    def act(self, observation: Tree) -> Any:
        return self._of(self.q(self.normaliser(observation)), observation)

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        batch = self.random_shift(batch, noise)
        q = self.q.perturbed(noise["q"])(self.normaliser(batch.observation))
        following = self.normaliser(batch.next_observation)
        next_q = self.q_target.perturbed(noise["q_target"])(following)
        if self.config.double:
            selector = self._of(self.q.perturbed(noise["next_q"])(following), batch.next_observation)
            td_error = double_q(q, batch.action, batch.reward, batch.discount, next_q, selector)
        else:
            best = self._of(next_q, batch.next_observation)
            td_error = q_learning(q, batch.action, batch.reward, batch.discount, best)
        loss = ops.mean(batch.weight * huber(td_error))
        return Losses(q=Loss(loss, td_error=td_error, q_value=ops.take_last(q, batch.action)))

    def _of(self, values: Any, observation: Tree) -> Any:
        """Values [N, n] with the mask of these observations, where there is one."""
        return masked(values, observation[ACTION_MASK]) if self.masked else values


@dataclass(frozen=True)
class ApexDQNConfig(DQNConfig):
    """Hyperparameters of Ape-X DQN, for many environments and workers."""

    epsilon: float | Linear = 0.4
    exploration_exponent: float = 7.0
    actor_priorities: bool = True
    priority_exponent: float = 0.6
    importance_exponent: float | Linear = 0.4
    n_step: int = 3
    train_every: int = 256  # environment steps between two learning phases; actors compute priorities once per phase
    gradient_steps: int = 64
    double: bool = True
    network: Spec = Mlp((64, 64), dueling=True)
