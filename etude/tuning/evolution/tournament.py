"""Selection: which members of a population the next generation descends from."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from etude.base import checks

FAILED = -math.inf  # the fitness of a member that diverged or failed


def fitness_of(history: Sequence[float], over_last: int) -> float:
    """The mean of the last fitness values; minus infinity where one of them is NaN, or there is none."""
    last = list(history)[-over_last:]
    return FAILED if not last or any(math.isnan(value) for value in last) else statistics.fmean(last)


@dataclass(frozen=True)
class Tournament:
    """Tournament selection: each place of the next generation goes to the best of `size` members that are drawn with
    replacement. Goldberg & Deb 1991, "A comparative analysis of selection schemes used in genetic algorithms".

    elitism: the best member keeps its place, unchanged. over_last: fitness is the mean of so many last values.
    """

    size: int = 2
    elitism: bool = True
    over_last: int = 1

    def __post_init__(self) -> None:
        checks.declared(self)
        checks.counts(self, "size", "over_last")

    def fitness(self, histories: Sequence[Sequence[float]]) -> list[float]:
        """The fitness of each member, from all of its fitness values so far."""
        return [fitness_of(history, self.over_last) for history in histories]

    def best(self, histories: Sequence[Sequence[float]]) -> int:
        """The best member; of equally good ones the first."""
        return int(np.argmax(self.fitness(histories)))

    def __call__(self, histories: Sequence[Sequence[float]], rng: np.random.Generator) -> list[int]:
        """The parent of each member of the next generation, as many as there are. With elitism the first one is the
        best member, which is to go on unchanged. Of equally good ones the first that was drawn wins; a member without
        fitness wins only where no other was drawn."""
        fitness, n = self.fitness(histories), len(histories)
        chosen = [self.best(histories)] if self.elitism else []
        while len(chosen) < n:
            drawn = rng.integers(n, size=self.size)
            chosen.append(int(drawn[np.argmax([fitness[i] for i in drawn])]))
        return chosen
