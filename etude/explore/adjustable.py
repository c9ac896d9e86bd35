"""Bases of the explorers under the names of Keras-RL: their parameters may change at any time, and they can also be
called for one state at a time, outside a run."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from etude.base.data import Choice, PolicyVersion
from etude.base.errors import ConfigError
from etude.base.spaces import Discrete, Space
from etude.explore.explorer import NO_STATE, ExplorerBase, StatelessExplorer, distribution_of, with_log_prob
from etude.explore.outputs import describe
from etude.protocols import Explorer


@dataclass
class Adjustable:
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

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        """See `protocols.Explorer`."""
        raise NotImplementedError

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        """See `protocols.Explorer`."""
        raise NotImplementedError

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
