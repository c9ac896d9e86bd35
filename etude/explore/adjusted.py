"""An explorer whose parameters rules change while a run goes on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from etude.base.data import Choice, PolicyVersion
from etude.base.spaces import Space
from etude.explore.log_prob import ExplorerBase, distribution_of, with_log_prob
from etude.protocols import Explorer

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

    __hash__ = None  # type: ignore[assignment]

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
