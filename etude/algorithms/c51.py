"""C51: categorical distributions of returns.

Bellemare, Dabney & Munos 2017, A distributional perspective on reinforcement learning, arXiv:1707.06887.
Hessel et al. 2018, Rainbow: combining improvements in deep reinforcement learning, arXiv:1710.02298: C51 with five
further parts, all of which are settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from etude import ops
from etude.agent import ActsBy, Agent, Loss, Losses
from etude.algorithms.dqn import DQNConfig
from etude.base import checks
from etude.base.data import Batch
from etude.base.errors import ConfigError
from etude.base.schedules import Linear
from etude.base.spaces import ACTION_MASK, Discrete, Spaces
from etude.base.trees import Tree
from etude.losses.distributional import categorical_q_learning, expected_values
from etude.losses.masks import masked
from etude.networks import Maker, Mlp, Normaliser, Part, Spec, target
from etude.networks.random_shift import RandomShift


@dataclass(frozen=True)
class C51Config(DQNConfig):
    """Hyperparameters of C51, besides those of DQN."""

    double: bool = False
    atoms: int = 51  # atoms of the support
    v_min: float = -10.0  # smallest atom, in units of the discounted return
    v_max: float = 10.0  # largest atom

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.counts(self, "atoms")
        if self.atoms < 2 or not self.v_min < self.v_max:
            raise ConfigError(
                f"{type(self).__name__}: atoms = {self.atoms}, v_min = {self.v_min}, v_max = {self.v_max}; "
                "expected at least 2 atoms, and v_min below v_max."
            )


class C51(Agent):
    """A distribution of the return of every action; the target is that of the reward plus the discounted return of the
    best next action, projected onto the support."""

    acts_by: ClassVar[ActsBy] = "values"
    actions: ClassVar[tuple[type[Any], ...]] = (Discrete,)

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.masked: bool = spaces.masked
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.random_shift: RandomShift = make.random_shift(spaces.observation, self.config.random_shift)
        self.q: Part = make.values(self.config.network, spaces.observation, int(spaces.action.n), self.config.atoms)
        self.q_target: Part = target(self.q, every="target_update_every")
        self.batch_noise: dict[str, tuple[int, ...]] = dict.fromkeys(("q", "q_target", "next_q"), (self.q.noise_size,))
        self.noise: dict[str, tuple[int, ...]] = dict(self.random_shift.noise)

    def act(self, observation: Tree) -> Any:
        return self._values(self.q(self.normaliser(observation)), observation)

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        batch = self.random_shift(batch, noise)
        logits = self.q.perturbed(noise["q"])(self.normaliser(batch.observation))
        following = self.normaliser(batch.next_observation)
        next_logits = self.q_target.perturbed(noise["q_target"])(following)
        online = self.q.perturbed(noise["next_q"])(following) if self.config.double else next_logits
        selector = self._values(online, batch.next_observation)
        error = categorical_q_learning(
            logits, batch.action, batch.reward, batch.discount, next_logits, selector, self._support(logits)
        )
        taken = expected_values(ops.take_row(logits, batch.action), self._support(logits))
        return Losses(q=Loss(ops.mean(batch.weight * error), td_error=error, q_value=taken))

    def _values(self, logits: Any, observation: Tree) -> Any:
        """The expected returns [N, n] of distributions [N, n, atoms], with the mask where there is one."""
        values = expected_values(logits, self._support(logits))
        return masked(values, observation[ACTION_MASK]) if self.masked else values

    def _support(self, like: Any) -> Any:
        return ops.linspace(self.config.v_min, self.config.v_max, self.config.atoms, like)


@dataclass(frozen=True)
class RainbowConfig(C51Config):
    """The six parts of Rainbow, of which the distributions of returns (Bellemare et al. 2017) are C51 itself."""

    double: bool = True  # double estimation: van Hasselt et al. 2016
    priority_exponent: float = 0.5  # prioritised replay, by the cross-entropy: Schaul et al. 2016
    importance_exponent: float | Linear = Linear(0.4, 1.0)
    n_step: int = 3  # multi-step targets: Sutton 1988
    network: Spec = Mlp((64, 64), dueling=True, noisy=0.5)  # dueling: Wang et al. 2016; noisy: Fortunato et al. 2018
    epsilon: float | Linear = 0.0  # the noise in the layers explores
