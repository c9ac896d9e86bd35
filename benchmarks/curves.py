"""What agents earn while they train: a CSV file for each line of a table, in curves/ALGORITHM/."""

from __future__ import annotations

from pathlib import Path

import measure
import numpy as np

from etude.base.events import Collected, Evaluated, Event

FOLDER = Path(__file__).parent / "curves"
INTERVALS = 50
Rows = list[tuple[int, float, int]]  # step, mean return, episodes


class Training:
    """The mean return of the training episodes that ended in each fiftieth of a run, and how many they were."""

    def __init__(self, steps: int):
        self.edges = np.linspace(0, steps, INTERVALS + 1)
        self.totals, self.episodes = np.zeros(INTERVALS), np.zeros(INTERVALS, int)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Collected):
            place = min(int(np.searchsorted(self.edges, event.step)), INTERVALS) - 1
            self.totals[place] += sum(end.total for end in event.episodes)
            self.episodes[place] += len(event.episodes)

    def rows(self) -> Rows:
        """One for each interval in which an episode ended."""
        found = zip(self.edges[1:], self.totals, self.episodes, strict=True)
        return [(int(step), measure.significant(total / n, 5), int(n)) for step, total, n in found if n]


class Evaluations:
    """The mean return of every evaluation."""

    def __init__(self) -> None:
        self._rows: Rows = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Evaluated):
            self._rows.append((event.step, measure.significant(event.mean, 5), len(event.returns)))

    def rows(self) -> Rows:
        """One for each evaluation."""
        return self._rows


def keep(algorithm: str, environment: str, kind: str, seed: str, rows: Rows) -> None:
    """Put the curve of a seed in the place of what was there of it. kind: the engine, or the recorded data."""
    path = FOLDER / algorithm / f"{environment.rpartition(':')[2]}_{kind}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = [line for line in path.read_text().splitlines()[1:] if line.split(",")[0] != seed] if path.exists() else []
    lines = [*kept, *(f"{seed},{step},{mean:g},{episodes}" for step, mean, episodes in rows)]
    lines.sort(key=lambda line: tuple(map(int, line.split(",")[:2])))
    path.write_text("\n".join(["seed,step,return,episodes", *lines]) + "\n")
