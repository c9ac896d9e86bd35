"""Explorers over action values under the names and parameters that Keras-RL introduced: each of them in a run, where
`act` returns action values [N, n], or as `policy.select_action(q_values)` for the values [n] of one state.

`select_action` raises ConfigError for anything but one row, NumericalError for NaN and infinity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.base import checks
from etude.base.data import Choice
from etude.base.errors import ConfigError
from etude.base.spaces import Space
from etude.explore.adjustable import Adjustable, WrappingPolicy, check_finite
from etude.explore.explorer import StatelessExplorer
from etude.explore.outputs import check_values
from etude.explore.policies import Greedy
from etude.explore.values import BoltzmannGumbel, EpsilonGreedy, boltzmann, boltzmann_distribution
from etude.losses.distributions import Categorical
from etude.protocols import Explorer


@dataclass
class EpsGreedyQPolicy(WrappingPolicy):
    """`EpsilonGreedy` with a random action with probability `eps`. Watkins 1989."""

    eps: float = 0.1

    def check(self) -> None:
        check_finite(self, "eps")
        checks.fractions(self, "eps")

    def explorer(self, step: int, n: int) -> Explorer:
        return EpsilonGreedy(self.eps)

    def select_action(self, q_values: np.ndarray) -> int:
        """The action for the values [n] of one state."""
        return self._select(q_values)


@dataclass
class AdaptiveEpsGreedyPolicy(WrappingPolicy):
    """`EpsilonGreedy` with an epsilon that falls linearly: max(min_eps, initial_eps - decay_rate * step).

    decay_rate: what epsilon loses with each step; in a run, with each environment step of the whole run.
    """

    initial_eps: float = 1.0
    min_eps: float = 0.1
    decay_rate: float = 0.0001

    def check(self) -> None:
        check_finite(self, "initial_eps", "min_eps", "decay_rate")
        checks.fractions(self, "initial_eps", "min_eps")
        checks.not_negative(self, "decay_rate")
        if self.min_eps > self.initial_eps:
            raise ConfigError(
                f"AdaptiveEpsGreedyPolicy: min_eps = {self.min_eps!r} is above initial_eps = {self.initial_eps!r}, "
                "from where epsilon only falls. Lower min_eps; for a constant epsilon use EpsGreedyQPolicy."
            )

    def epsilon(self, step: int) -> float:
        """Epsilon at this step."""
        return max(self.min_eps, self.initial_eps - self.decay_rate * step)

    def explorer(self, step: int, n: int) -> Explorer:
        return EpsilonGreedy(self.epsilon(step))

    def select_action(self, q_values: np.ndarray, step_counter: int) -> int:
        """The action for the values [n] of one state, at a step of the training."""
        return self._select(q_values, step_counter)


@dataclass
class GreedyQPolicy(WrappingPolicy):
    """`Greedy`: the best action, the first of equals."""

    def explorer(self, step: int, n: int) -> Explorer:
        return Greedy()

    def select_action(self, q_values: np.ndarray) -> int:
        """The action for the values [n] of one state."""
        return self._select(q_values)


@dataclass
class BoltzmannQPolicy(Adjustable, StatelessExplorer):
    """Actions with probabilities softmax(clip(values / tau)). Sutton 1990, doi:10.1016/B978-1-55860-141-3.50030-4.

    tau: in the units of the values. clip: (low, high), the range that values / tau are clipped to, as in Keras-RL:
    values beyond it are not told apart.
    """

    tau: float = 1.0
    clip: tuple[float, float] = (-500.0, 500.0)

    def check(self) -> None:
        check_finite(self, "tau")
        checks.positive(self, "tau")
        _check_clip(self)

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        return rng.random((steps, 1), np.float32)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        self.check()
        values, _ = check_values(output, "BoltzmannQPolicy")
        return Choice(boltzmann(values, noise, self.tau, self.clip), {})

    def distribution(self, output: Any, step: int) -> Categorical:
        self.check()
        return boltzmann_distribution(check_values(output, "BoltzmannQPolicy")[0], self.tau, self.clip)

    def select_action(self, q_values: np.ndarray) -> int:
        """The action for the values [n] of one state."""
        return self._select(q_values)


@dataclass
class MaxBoltzmannQPolicy(Adjustable, StatelessExplorer):
    """With probability `eps` as `BoltzmannQPolicy`, else the best action. Wiering 1999, "Explorations in Efficient
    Reinforcement Learning" (thesis, Amsterdam)."""

    eps: float = 0.1
    tau: float = 1.0
    clip: tuple[float, float] = (-500.0, 500.0)

    def check(self) -> None:
        check_finite(self, "eps")
        checks.fractions(self, "eps")
        check_finite(self, "tau")
        checks.positive(self, "tau")
        _check_clip(self)

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        return rng.random((steps, 2), np.float32)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        self.check()
        values, _ = check_values(output, "MaxBoltzmannQPolicy")
        action, exploring = values.argmax(1), noise[:, 0] < self.eps
        if exploring.any():
            action = np.where(exploring, boltzmann(values, noise[:, 1:], self.tau, self.clip), action)
        return Choice(action, {})

    def distribution(self, output: Any, step: int) -> Categorical:
        self.check()
        values, _ = check_values(output, "MaxBoltzmannQPolicy")
        best = values.argmax(1)[:, None] == np.arange(values.shape[1])
        sampled = boltzmann_distribution(values, self.tau, self.clip).probabilities()
        with np.errstate(divide="ignore"):  # a probability of 0 is a logit of minus infinity
            return Categorical(np.log((1 - self.eps) * best + self.eps * sampled).astype(np.float32))

    def select_action(self, q_values: np.ndarray) -> int:
        """The action for the values [n] of one state."""
        return self._select(q_values)


@dataclass
class BoltzmannGumbelQPolicy(WrappingPolicy):
    """`BoltzmannGumbel` with noise of scale C / sqrt(step / n) for n actions; C at most.

    Cesa-Bianchi et al. 2017, arXiv:1705.10257. Deviation: their scale is C / sqrt(visits of the action), for one
    bandit. Workers would have to share these counts, and checkpoints to save them. So each action counts as visited
    step / n times: Keras-RL's documentation gives C / sqrt(N / K) as the temperature after N steps with K actions.

    C: a bound on the standard deviation of the rewards, in the units of the values.
    """

    C: float = 1.0

    def check(self) -> None:
        check_finite(self, "C")
        checks.positive(self, "C")

    def explorer(self, step: int, n: int) -> Explorer:  # Gumbel noise has a number for each action
        return BoltzmannGumbel(self.C / max(1.0, step / n) ** 0.5)

    def select_action(self, q_values: np.ndarray, step_counter: int) -> int:
        """The action for the values [n] of one state, at a step of the training."""
        return self._select(q_values, step_counter)


def _check_clip(policy: BoltzmannQPolicy | MaxBoltzmannQPolicy) -> None:
    if len(policy.clip) != 2 or not policy.clip[0] < policy.clip[1]:
        raise ConfigError(f"{type(policy).__name__}: clip = {policy.clip!r}; expected (low, high) with low < high.")
