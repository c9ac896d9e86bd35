"""Which configurations a study tries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from etude.base.seeding import generator
from etude.tuning.plan import StudyState


@dataclass(frozen=True)
class GridSearch:
    """Every combination of the values in lists, in order; fields that have a distribution are drawn for each."""

    def propose(self, number: int, state: StudyState) -> dict[str, Any]:
        """See `Search`."""
        points = state.space.grid()
        drawn = state.space.draw(generator(state.plan.seed, "random search", number))
        return {**points[number % len(points)], **drawn}


@dataclass(frozen=True)
class RandomSearch:
    """Independent draws; of a list, one of its values. Bergstra & Bengio 2012, JMLR 13."""

    def propose(self, number: int, state: StudyState) -> dict[str, Any]:
        """See `Search`."""
        rng = generator(state.plan.seed, "random search", number)
        return {name: state.space.draw_one(name, rng) for name in state.space.domains}
