"""What explorers are made from: their bases, log probabilities of the actions of those that know them, and explorers
around another one."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np

from etude.base import trees
from etude.base.data import LOG_PROB, Choice, PolicyVersion
from etude.base.errors import ConfigError, EnvironmentFault, NumericalError
from etude.base.spaces import Discrete, Space
from etude.losses.distributions import Categorical, Conditional, MultiCategorical, NumbersAndChoices
from etude.losses.masks import MaskedValues, allowed_only
from etude.protocols import Explorer


def _is_finite(values: np.ndarray) -> bool:
    """Whether no value is NaN or infinite, in one product; may say no where values are merely enormous. Within a
    compiled program nothing is known of values."""
    if not isinstance(values, np.ndarray):
        return True
    flat = values.ravel()
    return bool(flat.dot(flat) < np.inf)


def describe(output: Any) -> str:
    """An output in a few words, for messages."""
    return f"an array of shape {output.shape}" if isinstance(output, np.ndarray) else f"a {type(output).__name__}"


def check_values(output: Any, explorer: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Action values [N, n], minus infinity where an action is forbidden, and which may be chosen, [N, n] bool; None
    where all may.

    Raises ConfigError for anything but values [N, n], plain or with their mask, NumericalError for NaN and infinity,
    EnvironmentFault where a mask forbids every action. In plain values minus infinity forbids an action.
    """
    values = output.values if isinstance(output, MaskedValues) else output
    if isinstance(values, tuple) or np.ndim(values) != 2:
        raise ConfigError(
            f"{explorer} chooses by action values [environments, n]; the agent returned {describe(values)}. "
            "For a distribution use Sample or Greedy."
        )
    if isinstance(output, MaskedValues):
        _check_masked(values, output.allowed)
        return allowed_only(output), output.allowed
    return values, None if _is_finite(values) else _not_minus_infinity(values)


def check_distribution(output: Any, explorer: str) -> Any:
    """A finite distribution, with some action that is allowed; raises ConfigError for anything else, and what
    `check_values` raises."""
    if not isinstance(output, tuple) or type(output) is tuple:
        raise ConfigError(
            f"{explorer} needs a distribution of etude.losses.distributions, such as Categorical(logits), "
            f"Gaussian(mean, log_std) or Deterministic(action); the agent returned {describe(output)}."
        )
    if isinstance(output, NumbersAndChoices):
        check_distribution(output.numbers, explorer)
        check_distribution(output.choices, explorer)
        return output
    if isinstance(output, Categorical | MultiCategorical | Conditional):
        for part in (output,) if isinstance(output, Categorical) else output.parts():
            if part.masked:
                _check_masked(part.logits, part.allowed)
            elif not _is_finite(part.logits):
                _not_minus_infinity(part.logits)
        return output
    for leaf in trees.leaves(output):
        if not _is_finite(leaf):
            check_numbers(leaf)
    return output


def _check_masked(values: np.ndarray, allowed: np.ndarray) -> None:
    """Raise NumericalError where a value or logit [N, ..., n] is NaN or infinite, EnvironmentFault where a row of the
    mask [N, ..., n] allows no action."""
    check_action(values)
    if not isinstance(allowed, np.ndarray):
        return
    if not (some := allowed.any(-1).reshape(len(values), -1).all(1)).all():
        raise EnvironmentFault(
            f"Environment {np.argmin(some)} of {len(values)} allows no action: its action mask is zero everywhere. "
            "A mask needs at least one 1, also in the last observation of an episode."
        )


def check_action(action: np.ndarray) -> None:
    """Raise NumericalError where a number of the output [N, ...] is NaN or infinite."""
    if not _is_finite(action):
        check_numbers(action)
        check_numbers(-action)


def check_numbers(output: np.ndarray) -> None:
    """Raise NumericalError where a number of the output [N, ...] is NaN or infinite; minus infinity passes."""
    _refuse(output, ~(output < np.inf).reshape(len(output), -1).all(1))


def _not_minus_infinity(values: np.ndarray) -> np.ndarray:
    """[N, n] bool. Raises NumericalError for NaN, infinity, and rows of nothing but minus infinity."""
    check_numbers(values)
    free = values > -np.inf
    _refuse(values, ~free.any(-1).reshape(len(values), -1).all(1))
    return free


def _refuse(output: np.ndarray, bad: Any) -> None:
    """bad: [N] bool, the environments whose output cannot be used."""
    if bad.any():
        row = int(np.argmax(bad))
        raise NumericalError(
            f"The agent's output for environment {row} of {len(output)} is NaN or infinite: {output[row]}. Either the "
            "weights have diverged (lower the learning rate, or bound gradients: max_gradient_norm in a run) or an "
            "observation is not finite."
        )


class ExplorerBase:
    """The base of etude's explorers. One that knows the probabilities of its actions overrides `distribution`.

    uniform_numbers: in [0, 1), how many it draws for an action; one that draws others overrides `draw`.
    """

    uniform_numbers: ClassVar[int] = 0

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        """See `protocols.Explorer`."""
        return rng.random((steps, self.uniform_numbers), np.float32)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        """See `protocols.Explorer`."""
        raise NotImplementedError

    def of(self, columns: np.ndarray) -> Any:
        """The explorer of the environments with these numbers: itself, where it treats all alike."""
        return self

    @property
    def probability_extras(self) -> tuple[str, ...]:
        """The names of what `recorded_extras` returns; none where some actions have no log probability, or density."""
        known = type(self).distribution is not ExplorerBase.distribution
        return (LOG_PROB,) if known else ()

    def distribution(self, output: Any, step: int) -> Any:
        """The distribution of its actions for `output` of `act`, at environment step `step` of the run. ConfigError
        where their probabilities have no closed form."""
        raise unknown(self)

    def recorded_extras(self, output: Any, action: np.ndarray, step: int) -> dict[str, np.ndarray]:
        """What estimators need of the actions [N, ...] that it chose for `output` at `step`: `log_prob` [N] float32."""
        return {LOG_PROB: np.asarray(self.distribution(output, step).log_prob(action), np.float32)}

    def with_log_prob(self) -> Any:
        """The same explorer with these extras; itself where it knows none."""
        return WithLogProb(self) if self.probability_extras else self  # type: ignore[arg-type]


@dataclass(frozen=True)
class Around(ExplorerBase):
    """An explorer that draws and keeps what the explorer `inner` does."""

    inner: Explorer

    @property
    def state_size(self) -> int:
        """Of the explorer that it is around."""
        return self.inner.state_size

    def of(self, columns: np.ndarray) -> Self:
        """For the environments with these numbers."""
        return replace(self, inner=self.inner.of(columns))

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        """The random numbers for `steps` actions of one environment: [steps, k] float32."""
        return self.inner.draw(rng, steps, action_space)

    def with_log_prob(self) -> Self:
        return replace(self, inner=with_log_prob(self.inner))


class WithLogProb(Around):
    """The explorer `inner`, whose actions it leaves as they are, with their log probabilities as the extra `log_prob`
    [N] float32: what off-policy estimators need of recorded data."""

    def with_log_prob(self) -> Self:
        return self

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        choice = self.inner(output, noise, step, state)
        if LOG_PROB in choice.extras:
            return choice
        known = self.inner if isinstance(self.inner, ExplorerBase) else self
        return Choice(choice.action, {**choice.extras, **known.recorded_extras(output, choice.action, step)})

    def distribution(self, output: Any, step: int) -> Any:
        """The distribution of its actions."""
        return distribution_of(self.inner, output, step)


def with_log_prob(explorer: Explorer) -> Explorer:
    """The explorer with the extra `log_prob`, where the probabilities of its actions are known; else itself. Your own
    explorers stay as they are."""
    return explorer.with_log_prob() if isinstance(explorer, ExplorerBase) else explorer


def distribution_of(explorer: Any, output: Any, step: int) -> Any:
    """The distribution of an explorer's actions for `output` of `act`, by its method `distribution(output, step)`.

    Raises ConfigError where it has none.
    """
    own = getattr(explorer, "distribution", None)
    if own is None:
        raise unknown(explorer)
    return own(output, step)


def unknown(explorer: Any) -> ConfigError:
    """The error where the probabilities of an explorer's actions are not known."""
    return ConfigError(
        f"{type(explorer).__name__} does not know the probabilities of its actions. Off-policy estimation needs a "
        "target such as Sample, EpsilonGreedy, Boltzmann or GaussianNoise: give explorer= (--explorer)."
    )


NO_STATE = np.empty((1, 0))  # the state that a single call passes to a stateless explorer


class StatelessExplorer(ExplorerBase):
    """An explorer that treats all environments alike and keeps no state from step to step."""

    state_size: int = 0

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        """A sample of `distribution`."""
        return Choice(self.distribution(output, step).sample(noise), {})


@dataclass(frozen=True)
class AtStep(Around):
    """The explorer `inner` as it explores at environment step `now` of the run, for episodes outside of training: its
    schedules stand still."""

    now: int

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        return self.inner(output, noise, self.now, state)

    def distribution(self, output: Any, step: int) -> Any:
        """The distribution of its actions, at step `now`."""
        return distribution_of(self.inner, output, self.now)


@dataclass(frozen=True)
class ByEnvironment(Around):
    """For actors with different weights in each environment, as those of evolution strategies: their `act` returns a
    function of the environments' numbers in the run, a tuple [N], whose result the explorer `inner` turns into actions.
    """

    columns: tuple[int, ...] = ()

    def of(self, columns: np.ndarray) -> Self:
        """For the environments with these numbers."""
        return replace(super().of(columns), columns=tuple(columns.tolist()))

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        columns = self.columns[: len(noise)]  # of the first ones only, where it is called for fewer
        return self.inner(output(columns), noise, step, state)


@dataclass(frozen=True)
class PerMember(Around):
    """Explores each of `members` runs, of `environments` environments each, as `inner` explores one: schedules and
    environments count from 0 in each. The environments of a run follow those of the run before."""

    members: int
    environments: int

    def of(self, columns: np.ndarray) -> Self:
        """For the environments with these numbers."""
        return super().of(columns % self.environments)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        """Actions for N environments; see `protocols.Explorer`. step: environment steps of all runs."""
        return self.inner(output, noise, step // self.members, state)


@dataclass
class Adjustable(ExplorerBase):
    """Parameters are plain attributes, checked when they are given and again when they are used. Two explorers are
    equal where their type and their present parameters are.

    rng: for the single calls only (None: a generator of its own, seed 0). In a run all randomness comes in as noise.
    """

    rng: np.random.Generator = field(default=None, kw_only=True, compare=False, repr=False)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.rng is None:
            self.rng = np.random.default_rng(0)
        self.check()

    def check(self) -> None:
        """Raise ConfigError where a parameter cannot be used."""

    def _select(self, values: Any, step: int = 0) -> int:
        """The action for the values or probabilities [n] of one state: what a run would do with N = 1."""
        row = np.asarray(values)
        if row.ndim != 1 or not len(row):
            raise ConfigError(
                f"{type(self).__name__}.select_action takes the numbers of one state, [actions]; got "
                f"{describe(row)}. Call it for each row, or take the first row of a batch of one."
            )
        row = row.astype(np.result_type(row, np.float32), copy=False)[None]
        noise = self.draw(self.rng, 1, Discrete(row.shape[1]))
        return int(self(row, noise, step, NO_STATE).action[0])


@dataclass
class WrappingPolicy(Adjustable, StatelessExplorer):
    """Delegates to another explorer, made from the present parameters at every call."""

    def explorer(self, step: int, n: int) -> Explorer:
        """The explorer at this environment step of the run. n: random numbers for each choice."""
        raise NotImplementedError

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        self.check()
        return self.explorer(0, 1).draw(rng, steps, action_space)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        self.check()
        explorer = self.explorer(step, noise.shape[1])
        try:
            return explorer(output, noise, step, state)
        except ConfigError as error:
            raise ConfigError(str(error).replace(type(explorer).__name__, type(self).__name__, 1)) from None

    def distribution(self, output: Any, step: int) -> Any:
        self.check()
        return distribution_of(self.explorer(step, output.shape[1]), output, step)


def check_finite(explorer: Adjustable, *fields: str) -> None:
    """Raise ConfigError where a parameter is not a finite number; schedules belong to other explorers."""
    for name in fields:
        value = getattr(explorer, name)
        if not isinstance(value, Real) or not math.isfinite(value):
            raise ConfigError(
                f"{type(explorer).__name__}: {name} = {value!r}; expected a finite number. Set it again whenever it is "
                "to change; a schedule goes to EpsilonGreedy, Boltzmann, BoltzmannGumbel or GaussianNoise."
            )


Factors = Mapping[str, float]


class AdjustedExplorer(ExplorerBase):
    """Explores as the version of the policy says, which `follow` was called with last.

    make: from factors on hyperparameters, by name, to the explorer of the whole run; {}: as the config says.
    followed: the factors, which all explorers share that were made of one by `of`.
    """

    def __init__(
        self,
        make: Callable[[Factors], Explorer],
        columns: np.ndarray | None = None,
        followed: dict[str, float] | None = None,
    ):
        self._make, self._columns = make, columns
        self._followed = {} if followed is None else followed
        self._factors: dict[str, float] = {}
        self._given = self._explorer = self._made({})

    @property
    def state_size(self) -> int:
        return self._given.state_size

    def __eq__(self, other: object) -> bool:
        """Whether the config says the same of both."""
        return isinstance(other, AdjustedExplorer) and self._given == other._given

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def of(self, columns: np.ndarray) -> AdjustedExplorer:
        """For the environments with these numbers."""
        return AdjustedExplorer(self._make, columns, self._followed)

    def follow(self, version: PolicyVersion) -> None:
        """Explore as belongs to this version from now on."""
        self._followed.clear()
        self._followed.update(version.factors)

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        return self._given.draw(rng, steps, action_space)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        return self._present()(output, noise, step, state)

    def with_log_prob(self) -> AdjustedExplorer:
        return AdjustedExplorer(functools.partial(_made_with_log_prob, self._make), self._columns, self._followed)

    def distribution(self, output: Any, step: int) -> Any:
        """The distribution of its actions at environment step `step` of the run."""
        return distribution_of(self._present(), output, step)

    def _present(self) -> Explorer:
        if self._factors != self._followed:
            self._factors = dict(self._followed)
            self._explorer = self._made(self._factors)
        return self._explorer

    def _made(self, factors: Factors) -> Explorer:
        explorer = self._make(factors)
        return explorer if self._columns is None else explorer.of(self._columns)


def _made_with_log_prob(make: Callable[[Factors], Explorer], factors: Factors) -> Explorer:
    return with_log_prob(make(factors))
