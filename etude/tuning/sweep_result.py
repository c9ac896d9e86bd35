"""What the seeds of a sweep came to: read from the metrics of their runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from etude.base.errors import ConfigError
from etude.checkpoint import replacing
from etude.checkpoint.run_directory import RunDirectory
from etude.report.pictures import table_as_html
from etude.report.plots import draw_runs
from etude.report.series import EVALUATION, TRAINING, Series, common_quantity, interquartile_mean, interval, read_run
from etude.run import Run, load
from etude.tuning.seed_runs import seed_folder

CSV, PICTURE = "results.csv", "curves.png"


@dataclass(frozen=True)
class SweepResult:
    """The runs of a sweep.

    seeds: all that were asked for. steps: of each run. failed: by seed, why its run could not go on.
    """

    folder: Path
    seeds: tuple[int, ...]
    steps: int
    failed: Mapping[int, str] = field(default_factory=dict)

    @cached_property
    def series(self) -> dict[int, Series]:
        """By seed, what its run measured; without seeds that have measured nothing."""
        found = {}
        for seed in self.seeds:
            try:
                found[seed] = read_run(self.directory(seed))
            except ConfigError:  # no episode has ended
                continue
        return found

    @cached_property
    def curves(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """By seed, (environment steps, returns): of evaluations, or smoothed of training where some seed has fewer than
        two evaluations."""
        quantity = common_quantity([*self.series.values()])
        return {seed: own.of(quantity).curve() for seed, own in self.series.items()}

    @cached_property
    def returns(self) -> dict[int, float]:
        """By seed, the mean return of its last evaluation; where some seed has none, that of the last twentieth of
        training."""
        evaluated = all(own.evaluations for own in self.series.values())
        alike = {seed: own.of(EVALUATION if evaluated else TRAINING) for seed, own in self.series.items()}
        return {seed: own.score for seed, own in alike.items() if len(own.curve()[0])}

    @property
    def iqm(self) -> float:
        """The interquartile mean of `returns`; NaN where there are none."""
        values = np.array(list(self.returns.values()))
        return float(interquartile_mean(values)) if len(values) else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % percentile interval of `iqm`, by resampling the seeds. Agarwal et al. 2021, arXiv:2108.13264."""
        values = np.array(list(self.returns.values()))
        if not len(values):
            return float("nan"), float("nan")
        low, high = interval(values)
        return float(low), float(high)

    def directory(self, seed: int) -> Path:
        """The run directory of a seed."""
        if seed not in self.seeds:
            raise ConfigError(f"seed = {seed}; this sweep has the seeds {', '.join(map(str, self.seeds))}.")
        return seed_folder(self.folder, seed)

    def load(self, seed: int, *arguments: Any, **options: Any) -> Run:
        """The run of a seed, to evaluate it or to train it on: `etude.load` of its directory."""
        return load(self.directory(seed), *arguments, **options)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """(header, a row for each seed, the best one first)."""
        ranked = sorted(self.seeds, key=lambda seed: -self.returns.get(seed, -np.inf))
        return ["seed", "return", "step", "status"], [self._row(seed) for seed in ranked]

    def _row(self, seed: int) -> list[str]:
        step = max(RunDirectory(self.directory(seed)).saved(), default=0)
        value = f"{self.returns[seed]:.4g}" if seed in self.returns else "-"
        status = "failed" if seed in self.failed else "finished" if step >= self.steps else "unfinished"
        return [str(seed), value, f"{step:,}", status]

    def summary(self) -> str:
        """The seeds in a line."""
        if not self.returns:
            return "No seed has finished an episode yet."
        values, (low, high) = list(self.returns.values()), self.interval
        return (
            f"{len(values)} seeds: interquartile mean {self.iqm:.4g} (95 % interval {low:.4g} to {high:.4g}), mean "
            f"{np.mean(values):.4g}, from {min(values):.4g} to {max(values):.4g}"
        )

    def __repr__(self) -> str:
        return f"<SweepResult in {self.folder}: {self.summary()}>"

    def _repr_html_(self) -> str:
        return table_as_html(repr(self), *self.table())

    def plot(self, path: str | Path | None = None, **options: Any) -> Any:
        """Draw each seed, and their interquartile mean with its 95 % interval; returns the matplotlib figure. path:
        None for `curves.png` in the folder. options: of `etude.report.draw_runs`, such as statistic="median".
        ConfigError where there is nothing to draw."""
        return draw_runs(list(self.series.values()), self.folder / PICTURE if path is None else path, **options)

    def write(self) -> list[Path]:
        """Write `results.csv`, and `curves.png` where there is something to draw; returns their paths."""
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(["seed", "return", "directory", "failed"])
        for seed in self.seeds:
            value = self.returns.get(seed, "")
            writer.writerow([seed, value, self.directory(seed).name, self.failed.get(seed, "")])
        with replacing(self.folder / CSV) as file:
            file.write(text.getvalue().encode())
        if not self.series:
            return [self.folder / CSV]
        self.plot()
        return [self.folder / CSV, self.folder / PICTURE]
