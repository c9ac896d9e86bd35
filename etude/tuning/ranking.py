"""Which configuration of a study did best."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from etude.report.series import interval
from etude.tuning.segment import trial_folder
from etude.tuning.space import Space
from etude.tuning.trial import Configuration, Trial, configurations_of


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
    found = [_result(each, space, folder) for each in configurations_of(trials)]
    return sorted(found, key=_place)


def _place(result: Result) -> tuple[Any, ...]:
    if result.status == "finished":
        return (0, 0, -result.low, -result.score, result.steps)
    reached = 0 if result.status == "failed" else max(trial.step for trial in result.trials)
    return (2 if result.status == "failed" else 1, -reached, -result.low, -result.score, result.steps)


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
        each.number,
        space.values(config),
        config,
        statistics.fmean(scores),
        low,
        high,
        sum(trial.taken for trial in each.trials),
        status,
        each.trials,
        tuple(trial_folder(folder, trial.number) for trial in each.trials),
    )


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % percentile interval of the mean of some values, by resampling them."""
    if not values or not all(map(math.isfinite, values)):
        mean = statistics.fmean(values) if values else -math.inf
        return mean, mean
    low, high = interval(np.array(values, float), "mean")
    return float(low), float(high)
