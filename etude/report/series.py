"""What a run's metrics say about its return, and what it learned with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from etude.base.errors import ConfigError
from etude.report.json_lines import read_records
from etude.report.records import Record

# What a run's description says besides these does not change what is learned, or differs from seed to seed.
_LEARNED_FROM = (
    "config",
    "explorer",
    "policies",
    "data",
    "learners",
    "train_only",
    "environment_args",
    "wrappers",
    "frame_stack",
)


RETURN, TRAINING, EVALUATION = "return per episode", "smoothed training return", "evaluation return"
METRICS = {"rollout/ep_rew_mean": TRAINING, "eval/mean_reward": EVALUATION}


@dataclass(frozen=True)
class Series:
    """What one run's records say about its return. K intervals of training, M evaluations."""

    algorithm: str
    environment: str
    seed: str
    steps: np.ndarray  # [K]
    returns: np.ndarray  # [K] mean return of the episodes that ended in each interval
    episodes: np.ndarray  # [K] how many they were
    evaluated: np.ndarray  # [M] steps
    evaluations: tuple[np.ndarray, ...]  # M arrays of returns
    unit: str = "environment steps"  # or gradient steps, where a run learns from recorded data
    by_agent: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)  # (steps, mean returns) of each
    configuration: dict[str, str] = field(default_factory=dict)  # see `configuration`
    quantity: str = RETURN  # what `returns` and `evaluations` hold, undiscounted, or a metric instead
    adjusted: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)  # (steps, values) of each that
    # rules changed, from step 0 to the end of the run
    smoothing: float = 1 / 20  # the part of all intervals that `smoothed` averages over

    def smoothed(self) -> np.ndarray:
        """[K] the mean return over the episodes of the last twentieth of the intervals (`smoothing`), and itself."""
        width = max(1, int(len(self.steps) * self.smoothing))
        totals = np.concatenate([[0.0], np.cumsum(self.returns * self.episodes)])
        counts = np.concatenate([[0.0], np.cumsum(self.episodes)])
        end = np.arange(1, len(self.steps) + 1)
        start = np.maximum(0, end - width)
        return (totals[end] - totals[start]) / (counts[end] - counts[start])

    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """(steps, returns): of evaluations; of smoothed training where there are under two. See `of_one_metric`."""
        if len(self.evaluated) >= 2 or not len(self.steps):
            return self.evaluated, np.array([np.mean(returns) for returns in self.evaluations])
        return self.steps, self.smoothed()

    @property
    def score(self) -> float:
        """What the run came to: the mean return of its last evaluation; without one, of the last twentieth of
        training."""
        return float(np.mean(self.evaluations[-1]) if self.evaluations else self.smoothed()[-1])

    def of(self, quantity: str) -> Series:
        """With its training alone, or with its evaluations alone."""
        none = np.empty(0)
        if quantity == EVALUATION:
            return replace(self, steps=none, returns=none, episodes=none, quantity=quantity)
        return replace(self, evaluated=none, evaluations=(), quantity=quantity)


def common_quantity(runs: Sequence[Series]) -> str:
    """What runs are compared by, the same of all: their evaluations where each has two or more, else their training;
    what most of them have, where some have none of it."""
    if any(run.quantity != RETURN for run in runs):
        return runs[0].quantity
    if all(len(run.evaluated) > 1 for run in runs):
        return EVALUATION
    return max((TRAINING, EVALUATION), key=lambda quantity: sum(len(run.of(quantity).curve()[0]) > 0 for run in runs))


def series(records: Iterable[Record]) -> Series:
    """Gather the series from the records of a run."""
    records = list(records)
    about: Record = next((record["started"] for record in records if "started" in record), {})
    training = [r for r in records if r.get("rollout/ep_rew_mean") is not None]
    evaluations = [r for r in records if r.get("eval/returns")]
    return Series(
        algorithm=str(about.get("algorithm", "agent")),
        environment=str(about.get("environment", "environment")),
        seed=str(about.get("setup", {}).get("seed", "?")),
        steps=np.array([r["step"] for r in training], float),
        returns=np.array([r["rollout/ep_rew_mean"] for r in training], float),
        episodes=np.array([r["rollout/episodes"] for r in training], float),
        evaluated=np.array([r["step"] for r in evaluations], float),
        evaluations=tuple(np.array(r["eval/returns"], float) for r in evaluations),
        unit=f"{about.get('steps', 'environment')} steps",
        by_agent=_by_agent(records),
        configuration=configuration(about),
        adjusted=_adjusted(records),
    )


def _adjusted(records: list[Record]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """(steps, values) of the hyperparameters that were changed: what it was at first, each change, and the end."""
    found: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        if "adjusted" in record and record["before"] != record["after"]:
            points = found.setdefault(record["adjusted"], [(0, record["before"])])
            points.append((record["step"], record["after"]))
    end = max((record["step"] for record in records), default=0)
    arrays = {name: np.array([*points, (end, points[-1][1])], float) for name, points in found.items()}
    return {name: (points[:, 0], points[:, 1]) for name, points in arrays.items()}


def _by_agent(records: list[Record]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The mean returns of each of several agents: in evaluations; in training where there are under two."""
    evaluated = _points(records, "eval/mean_reward/")
    enough = any(len(steps) >= 2 for steps, _ in evaluated.values())
    return evaluated if enough else _points(records, "rollout/ep_rew_mean/")


def _points(records: list[Record], prefix: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """(steps, values) of all metrics whose names begin like this, by the rest of their names."""
    names = dict.fromkeys(name for record in records for name in record if name.startswith(prefix))
    return {name.removeprefix(prefix): _values(records, name) for name in names}


def _values(records: list[Record], name: str) -> tuple[np.ndarray, np.ndarray]:
    """(steps, values) of a metric, one of each step: what was recorded first of the interval that ends there, or what a
    rule made of it there."""
    found: dict[float, float] = {}
    for record in records:
        if _drawable(name, record.get(name)) and (record["step"] not in found or "adjusted" in record):
            found[record["step"]] = record[name]
    steps = sorted(found)
    return np.array(steps, float), np.array([found[step] for step in steps], float)


def of_metric(records: Iterable[Record], metric: str) -> Series:
    """The values of a metric in the place of returns, each weighing the same. Raises ConfigError where the records hold
    none of this name.

    metric: a name in the records, such as train/entropy; or that of a custom metric, for its mean.
    """
    records = list(records)
    if metric in METRICS:
        return series(records).of(METRICS[metric])
    named = next((name for name in (metric, f"rollout/{metric}_mean") if any(name in r for r in records)), None)
    if named is None:
        known = sorted({name for record in records for name, value in record.items() if _drawable(name, value)})
        raise ConfigError(f"There is no metric {metric!r} in these records; there are {', '.join(known) or 'none'}.")
    steps, values = _values(records, named)
    nothing: dict[str, Any] = {"evaluated": np.empty(0), "evaluations": (), "by_agent": {}, "adjusted": {}}
    found = replace(series(records), steps=steps, returns=values, episodes=np.ones(len(steps)), **nothing)
    return replace(found, quantity=named)


def _drawable(name: str, value: Any) -> bool:
    return "/" in name and isinstance(value, int | float)


def series_of(records: Iterable[Record], metric: str | None = None) -> Series:
    """The return in the records of a run, or a metric: see `of_metric`."""
    return series(records) if metric is None else of_metric(records, metric)


def read_run(path: str | Path, metric: str | None = None) -> Series:
    """The series of a run directory, or of a file of JSON lines. metric: see `of_metric`; None: the return. Raises
    ConfigError where there is nothing to draw."""
    path = Path(path)
    file = path / "metrics.jsonl" if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"No metrics at {file}. Give a run directory, or the metrics.jsonl in one.")
    found = series_of(read_records(file), metric)
    if not len(found.curve()[0]):
        raise ConfigError(f"{file} holds no finished episode and no evaluation yet: nothing to draw.")
    return found


def find_runs(path: str | Path) -> list[Path]:
    """The run directories at or below a folder, or the file itself. Raises ConfigError where there are none."""
    path = Path(path)
    if path.is_file() or (path / "metrics.jsonl").is_file():
        return [path]
    found = sorted(metrics.parent for metrics in path.glob("**/metrics.jsonl"))
    if not found:
        raise ConfigError(f"No run at {path}. Give a run directory, a folder of them, or the metrics.jsonl in one.")
    return found


def configuration(description: Mapping[str, Any]) -> dict[str, str]:
    """What a run learned with, flat and without its seed: {"gamma": "0.99", "network.widths": "[64, 64]", ...}."""
    flat = {"environments": str(description.get("setup", {}).get("environments", "?"))}
    flat["steps"] = str(description.get("steps", "environment"))
    for name in _LEARNED_FROM:
        flat |= _flat(description.get(name), "" if name == "config" else name)
    return flat


def _flat(value: Any, place: str) -> dict[str, str]:
    if isinstance(value, Mapping) and value.get("class") == "Linear":  # one hyperparameter, as the command line has it
        line = ":".join(f"{value[part]:g}" for part in ("start", "end", "fraction") if part in value)
        if value.get("steps") is None:
            return {place: line}
        points = ((0, value["start"]), (value["steps"], value["end"]), *value.get("then", ()))
        return {place: ",".join(f"{step:g}:{number:g}" for step, number in points)}
    if isinstance(value, Mapping):
        prefix = f"{place}." if place else ""
        return {name: text for key, part in value.items() for name, text in _flat(part, f"{prefix}{key}").items()}
    return {} if value is None else {place: str(value)}
