"""Bases of the explorers under the names of Keras-RL: their parameters may change at any time, and they can also be
called for one state at a time, outside a run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np

from etude.base.data import Choice
from etude.base.errors import ConfigError
from etude.base.spaces import Discrete, Space
from etude.explore.log_prob import distribution_of
from etude.explore.outputs import describe
from etude.explore.stateless import NO_STATE, StatelessExplorer
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
