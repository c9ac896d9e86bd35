"""Explorers over action values [N, n], for Discrete actions, plain or as `MaskedValues`: what a mask forbids is never
chosen, nor is a plain value of minus infinity.

The functions turn values and noise into actions; explorers of every name share them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from etude import ops
from etude.base import checks
from etude.base.data import Choice
from etude.base.errors import ConfigError
from etude.base.schedules import Linear, at
from etude.base.spaces import Space
from etude.explore.explorer import (
    Adjustable,
    ExplorerBase,
    StatelessExplorer,
    WrappingPolicy,
    check_distribution,
    check_finite,
    check_values,
)
from etude.explore.policies import Greedy, Sample
from etude.losses.distributions import Categorical, Gaussian
from etude.losses.masks import MaskedValues
from etude.protocols import Explorer


@dataclass(frozen=True)
class EpsilonGreedy(StatelessExplorer):
    """A random action with probability epsilon, each allowed one alike, else the best. Watkins 1989.

    Of equally good actions the first is taken, as in DQN's code and its descendants; they do not share their chance.
    total: environment steps of the run, for a schedule.
    """

    uniform_numbers = 2
    epsilon: float | Linear
    total: int = 0

    def __post_init__(self) -> None:
        checks.fractions(self, "epsilon")

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        values, free = check_values(output, "EpsilonGreedy")
        return Choice(epsilon_greedy(values, free, noise, at(self.epsilon, step, self.total)), {})

    def distribution(self, output: Any, step: int) -> Categorical:
        values, free = check_values(output, "EpsilonGreedy")
        return epsilon_greedy_distribution(values, free, at(self.epsilon, step, self.total))


@dataclass(frozen=True)
class Boltzmann(StatelessExplorer):
    """Actions with probabilities softmax(values / temperature). Sutton 1990, doi:10.1016/B978-1-55860-141-3.50030-4.

    temperature: in the units of the values. total: environment steps of the run, for a schedule.
    """

    uniform_numbers = 1
    temperature: float | Linear
    total: int = 0

    def __post_init__(self) -> None:
        checks.positive(self, "temperature")

    def distribution(self, output: Any, step: int) -> Categorical:
        values, _ = check_values(output, "Boltzmann")
        return _boltzmann_distribution(values, at(self.temperature, step, self.total))


@dataclass(frozen=True)
class BoltzmannGumbel(StatelessExplorer):
    """The best action after Gumbel noise of size `scale` is added to the values.

    The chances are those of `Boltzmann` at temperature `scale`: Gumbel 1954; Maddison et al. 2014, arXiv:1411.0030.
    """

    scale: float | Linear
    total: int = 0

    def __post_init__(self) -> None:
        checks.positive(self, "scale")

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        return rng.random((steps, int(action_space.n)), np.float32)  # type: ignore[attr-defined]

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        values, _ = check_values(output, "BoltzmannGumbel")
        return Choice(best_perturbed(values, noise, at(self.scale, step, self.total)), {})

    def distribution(self, output: Any, step: int) -> Categorical:
        values, _ = check_values(output, "BoltzmannGumbel")
        return _boltzmann_distribution(values, at(self.scale, step, self.total))


def epsilon_greedy(
    values: np.ndarray, free: np.ndarray | None, noise: np.ndarray, epsilon: float | np.ndarray
) -> np.ndarray:
    """The best of the values [N, n], the first of equals, or with probability epsilon any that is free: [N].

    values, free: as `check_values` returns them. noise: [N, 2] in [0, 1). epsilon: a number, or one for each row [N].
    """
    action = values.argmax(1)
    exploring = noise[:, 0] < epsilon
    if isinstance(exploring, np.ndarray) and not np.count_nonzero(exploring):  # a compiled program does not know
        return action
    return ops.where(exploring, random_actions(noise[:, 1], values.shape[1], free), action)


def epsilon_greedy_distribution(
    values: np.ndarray, free: np.ndarray | None, epsilon: float | np.ndarray
) -> Categorical:
    """What `epsilon_greedy` samples from."""
    best = values.argmax(1)[:, None] == np.arange(values.shape[1])
    allowed = np.ones_like(values, bool) if free is None else free
    random = np.reshape(epsilon, (-1, 1))
    chances = (1 - random) * best + random * allowed / allowed.sum(1, keepdims=True)
    with np.errstate(divide="ignore"):  # a probability of 0 is a logit of minus infinity
        return Categorical(np.log(chances).astype(np.float32))


def random_actions(noise: np.ndarray, n: int, free: np.ndarray | None) -> np.ndarray:
    """A uniform choice among n actions, or among those that are free."""
    # noise <= 1 - 2**-24: the product is below n in float32 too.
    if free is None:
        return ops.cast(noise * n, "int64")
    rank = ops.cast(noise * free.sum(1), "int64")
    return (free.cumsum(1) > rank[:, None]).argmax(1)


def _boltzmann_distribution(
    values: np.ndarray, temperature: float, clip: tuple[float, float] | None = None
) -> Categorical:
    """Probabilities softmax(values / temperature) of the values [N, n] of `check_values`.

    clip: (low, high), what values / temperature are clipped to; forbidden actions stay forbidden.
    """
    scaled = values / temperature
    if clip is not None:
        scaled = np.where(np.isneginf(values), values, np.clip(scaled, *clip))
    return Categorical(scaled)


def best_perturbed(values: np.ndarray, noise: np.ndarray, scale: float) -> np.ndarray:
    """The best [N] of the values [N, n] of `check_values` plus scale * Gumbel noise. noise: [N, n] float32, uniform in
    [0, 1)."""
    # The middle of each step of float32, so that no logarithm is infinite.
    return (values + scale * gumbel(noise.astype(np.float64) + 2.0**-25)).argmax(1)


def gumbel(uniform: np.ndarray) -> np.ndarray:
    """Standard Gumbel numbers from uniform ones in (0, 1), of any shape. Gumbel 1954."""
    return -np.log(-np.log(uniform))


LONGEST = 10_000  # steps


@dataclass(frozen=True)
class EpsilonZGreedy(ExplorerBase):
    """The best action, or with probability epsilon a random one that is repeated for n steps, where n is drawn from a
    zeta distribution: P(n) is proportional to n**-mu. Dabney, Ostrovski & Barreto 2021, arXiv:2006.01782.

    An action ends early with its episode, and where it is forbidden. total: environment steps of the run, for a
    schedule. mu: above 1; the paper's is 2, for which one action in two hundred lasts for more than a hundred steps.
    """

    uniform_numbers = 3
    epsilon: float | Linear
    mu: float = 2.0
    total: int = 0
    state_size = 2  # the repeated action, and for how many more steps

    def __post_init__(self) -> None:
        checks.fractions(self, "epsilon")
        if not 1 < self.mu < np.inf:
            raise ConfigError(f"EpsilonZGreedy: mu = {self.mu}; expected a finite number above 1.")
        weight = np.arange(1, LONGEST + 1, dtype=np.float64) ** -self.mu
        object.__setattr__(self, "_at_most", np.cumsum(weight) / weight.sum())  # [n - 1] the chance of n steps or fewer

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        values, free = check_values(output, "EpsilonZGreedy")
        action, left = np.nan_to_num(state).astype(np.int64).T
        repeating = left > 0
        if free is not None:
            repeating &= np.take_along_axis(free, action[:, None], 1)[:, 0]
        begins = ~repeating & (noise[:, 0] < at(self.epsilon, step, self.total))
        fresh = np.where(begins, random_actions(noise[:, 1], values.shape[1], free), values.argmax(1))
        length = 1 + np.searchsorted(self._at_most, noise[:, 2], side="right")  # type: ignore[attr-defined, call-overload]
        action = np.where(repeating, action, fresh)
        state[:] = np.stack([action, np.where(repeating, left - 1, np.where(begins, length - 1, 0))], 1)
        return Choice(action, {})


@dataclass(frozen=True)
class Softened(StatelessExplorer):
    """The best action, softened so that every action has a probability: of Discrete actions, a random one with
    probability `amount`; of Box actions, Gaussian noise with the standard deviation `amount` (actions are in [-1, 1]).

    Adds the extra `log_prob` [N] float32. Raises ConfigError for other actions.
    """

    amount: float

    def __post_init__(self) -> None:
        checks.positive(self, "amount")

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        return Sample().draw(rng, steps, action_space)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        return Sample()(self.distribution(output, step), noise, step, state)

    def distribution(self, output: Any, step: int) -> Categorical | Gaussian:
        if isinstance(output, np.ndarray | MaskedValues):
            return EpsilonGreedy(self.amount).distribution(output, step)
        distribution = check_distribution(output, "softened")
        if isinstance(distribution, Categorical):
            values = MaskedValues(*distribution) if distribution.masked else distribution.logits
            return EpsilonGreedy(self.amount).distribution(values, step)
        mode = distribution.mode()
        if mode.dtype.kind != "f":
            raise ConfigError(
                "softened= is for Discrete and Box actions. Estimate the sampled policy: explore=True (--explore)."
            )
        return Gaussian(mode, np.full_like(mode, np.log(self.amount)))


@dataclass
class _ByValues(Adjustable):
    """The base of those that need nothing but the values of a state."""

    def select_action(self, q_values: np.ndarray) -> int:
        """The action for the values [n] of one state."""
        return self._select(q_values)


@dataclass
class EpsGreedyQPolicy(_ByValues, WrappingPolicy):
    """`EpsilonGreedy` with a random action with probability `eps`. Watkins 1989."""

    eps: float = 0.1

    def check(self) -> None:
        check_finite(self, "eps")
        checks.fractions(self, "eps")

    def explorer(self, step: int, n: int) -> Explorer:
        return EpsilonGreedy(self.eps)


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
class GreedyQPolicy(_ByValues, WrappingPolicy):
    """`Greedy`: the best action, the first of equals."""

    def explorer(self, step: int, n: int) -> Explorer:
        return Greedy()


@dataclass
class BoltzmannQPolicy(_ByValues, StatelessExplorer):
    """Actions with probabilities softmax(clip(values / tau)). Sutton 1990, doi:10.1016/B978-1-55860-141-3.50030-4.

    tau: in the units of the values. clip: (low, high), the range that values / tau are clipped to, as in Keras-RL:
    values beyond it are not told apart.
    """

    uniform_numbers = 1
    tau: float = 1.0
    clip: tuple[float, float] = (-500.0, 500.0)

    def check(self) -> None:
        check_finite(self, "tau")
        checks.positive(self, "tau")
        _check_clip(self)

    def distribution(self, output: Any, step: int) -> Categorical:
        self.check()
        return _boltzmann_distribution(check_values(output, "BoltzmannQPolicy")[0], self.tau, self.clip)


@dataclass
class MaxBoltzmannQPolicy(_ByValues, StatelessExplorer):
    """With probability `eps` as `BoltzmannQPolicy`, else the best action. Wiering 1999, "Explorations in Efficient
    Reinforcement Learning" (thesis, Amsterdam)."""

    uniform_numbers = 2
    eps: float = 0.1
    tau: float = 1.0
    clip: tuple[float, float] = (-500.0, 500.0)

    def check(self) -> None:
        check_finite(self, "eps")
        checks.fractions(self, "eps")
        check_finite(self, "tau")
        checks.positive(self, "tau")
        _check_clip(self)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        self.check()
        values, _ = check_values(output, "MaxBoltzmannQPolicy")
        action, exploring = values.argmax(1), noise[:, 0] < self.eps
        if exploring.any():
            sampled = _boltzmann_distribution(values, self.tau, self.clip).sample(noise[:, 1:])
            action = np.where(exploring, sampled, action)
        return Choice(action, {})

    def distribution(self, output: Any, step: int) -> Categorical:
        self.check()
        values, _ = check_values(output, "MaxBoltzmannQPolicy")
        best = values.argmax(1)[:, None] == np.arange(values.shape[1])
        sampled = _boltzmann_distribution(values, self.tau, self.clip).probabilities()
        with np.errstate(divide="ignore"):  # a probability of 0 is a logit of minus infinity
            return Categorical(np.log((1 - self.eps) * best + self.eps * sampled).astype(np.float32))


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
