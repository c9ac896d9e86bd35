"""The results of a study: which configuration did best, rows for a table, a file of comma-separated values, and
pictures."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from etude.checkpoint import replacing
from etude.report.series import interval
from etude.report.studies import draw_importance, draw_parallel_coordinates, importance, number_text, value_text
from etude.tuning.segment import trial_folder
from etude.tuning.space import Space
from etude.tuning.trial import Configuration, StudyPlan, Trial, configurations_of


@dataclass(frozen=True)
class Result:
    """A configuration of a study, and how well it did.

    values: of the searched fields. score: the mean over its seeds of their last evaluations; minus infinity where one
    of them failed. low, high: its 95 % interval, by resampling the seeds; of a single seed, the episodes of its last
    evaluation. steps: that it took in all. status: that of its trials; "failed" where one of them failed.
    """

    number: int
    values: dict[str, Any]
    config: Any
    score: float
    low: float
    high: float
    steps: int
    status: str
    trials: tuple[Trial, ...] = field(repr=False)
    directories: tuple[Path, ...] = field(repr=False)  # of the runs


def ranking(trials: Sequence[Trial], space: Space, folder: Path) -> list[Result]:
    """The configurations, the best one first: those that were carried out to the end, then those that got further, by
    the lower bounds of their intervals."""

    def place(result: Result) -> tuple[Any, ...]:
        group = {"finished": 0, "failed": 2}.get(result.status, 1)
        reached = max(trial.step for trial in result.trials) if group == 1 else 0
        return (group, -reached, -result.low, -result.score, result.steps)

    return sorted((_result(each, space, folder) for each in configurations_of(trials)), key=place)


def _result(each: Configuration, space: Space, folder: Path) -> Result:
    scores = [trial.score() for trial in each.trials]
    if len(scores) > 1:
        low, high = mean_interval(scores)
    else:
        last = each.trials[0].scores[-1:]
        low, high = mean_interval(last[0].returns) if last and not each.failed else (-math.inf, -math.inf)
    statuses = {trial.status for trial in each.trials}
    status = next(name for name in ("failed", "running", "queued", "paused", "stopped", "finished") if name in statuses)
    config = each.trials[0].genome.config
    return Result(
        each.number, space.values(config), config, statistics.fmean(scores), low, high,
        sum(trial.taken for trial in each.trials), status, each.trials,
        tuple(trial_folder(folder, trial.number) for trial in each.trials),
    )  # fmt: skip


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % percentile interval of the mean of some values, by resampling them."""
    if not values or not all(map(math.isfinite, values)):
        mean = statistics.fmean(values) if values else -math.inf
        return mean, mean
    low, high = interval(np.array(values, float), "mean")
    return float(low), float(high)


RESULTS, PARALLEL, IMPORTANCE = "results.csv", "parallel_coordinates.png", "importance.png"


def table(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """(header, a row for each configuration, the best one first)."""
    names = list(results[0].values) if results else []
    several = any(len(result.trials) > 1 for result in results)
    interval = "interval (seeds)" if several else "interval (episodes)"
    header = ["rank", *names, "score", interval, "step", "status", "trials"]
    rows = [
        [
            str(rank),
            *map(value_text, result.values.values()),
            number_text(result.score),
            f"{number_text(result.low)} to {number_text(result.high)}" if math.isfinite(result.low) else "-",
            f"{min(trial.step for trial in result.trials):,}",
            result.status,
            " ".join(str(trial.number) for trial in result.trials),
        ]
        for rank, result in enumerate(results, 1)
    ]
    return header, rows


def summary(plan: StudyPlan, trials: Sequence[Trial], steps: int) -> str:
    """How far a study is, in a line."""
    counts = Counter(trial.status for trial in trials)
    parts = [f"{counts['running'] + counts['queued']} under way"]
    parts += [f"{counts[name]} {name}" for name in ("finished", "stopped", "paused", "failed") if counts[name]]
    proposed = len({trial.configuration for trial in trials if trial.parent is None})
    return f"{proposed} of {plan.configurations} configurations: {', '.join(parts)}; {steps:,} steps"


def write_results(results: Sequence[Result], folder: Path, name: str) -> list[Path]:
    """Write the table and the pictures; returns the paths of those that there is something to show in. name: of the
    study."""
    tried = _tried(results)
    names = list(tried[0].values) if tried else []
    rows: list[list[Any]] = [["rank", *names, "score", "low", "high", "seeds", "steps", "status", "directories"]]
    for rank, each in enumerate(tried, 1):
        seeds = " ".join(str(trial.genome.seed) for trial in each.trials)
        runs = " ".join(directory.name for directory in each.directories)
        rows.append(
            [rank, *each.values.values(), each.score, each.low, each.high, seeds, each.steps, each.status, runs]
        )
    paths = [write_csv(folder / RESULTS, rows)]
    for file, draw in pictures(results, name).items():
        draw(folder / file)
        paths.append(folder / file)
    return paths


def pictures(results: Sequence[Result], name: str) -> dict[str, Callable[[Path], Any]]:
    """By the names of their files, what draws the pictures in which there is something to show. name: of the study."""
    rows = _tried(results)
    if not any(math.isfinite(result.score) for result in rows):
        return {}
    values = {name: [result.values[name] for result in rows] for name in rows[0].values}
    scores = [result.score for result in rows]
    found = {PARALLEL: lambda path: draw_parallel_coordinates(values, scores, path, name)}
    shares = importance(values, scores)
    if not any(map(math.isfinite, shares.values())):  # equal scores, or no value that has several
        return found
    return found | {IMPORTANCE: lambda path: draw_importance(shares, path, name, len(rows))}


def _tried(results: Sequence[Result]) -> list[Result]:
    return [result for result in results if any(trial.scores for trial in result.trials) or result.status == "failed"]


def write_csv(path: Path, rows: Iterable[Sequence[Any]]) -> Path:
    """Write rows as comma-separated values; returns the path."""
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    with replacing(path) as file:
        file.write(text.getvalue().encode())
    return path
