"""What the metrics of runs say about their returns, and what they learned with; which runs are seeds of one
configuration; and what the runs of several seeds come to.

Definitions are those of Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice",
arXiv:2108.13264.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from etude.base.errors import ConfigError
from etude.training.description import LEARNED_FROM

Record = dict[str, Any]  # see `records`
RETURN, TRAINING, EVALUATION = "return per episode", "smoothed training return", "evaluation return"
METRICS = {"rollout/ep_rew_mean": TRAINING, "eval/mean_reward": EVALUATION}


def read_records(path: str | Path) -> list[Record]:
    """The records of a file of JSON lines; a last line that was cut off by a crash is left out."""
    records: list[Record] = []
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} holds no text. Give a run directory, or the metrics.jsonl in one.") from error
    for line in text.splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
        if not isinstance(records[-1], dict) or "step" not in records[-1]:
            raise ConfigError(f"{path} holds no metrics of a run. Give a run directory, or the metrics.jsonl in one.")
    return records


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
    # The mean returns of each of several agents: in evaluations; in training where there are under two
    evaluated = _points(records, "eval/mean_reward/")
    enough = any(len(steps) >= 2 for steps, _ in evaluated.values())
    # (steps, values) of the hyperparameters that were changed: what it was at first, each change, and the end
    found: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        if "adjusted" in record and record["before"] != record["after"]:
            points = found.setdefault(record["adjusted"], [(0, record["before"])])
            points.append((record["step"], record["after"]))
    end = max((record["step"] for record in records), default=0)
    arrays = {name: np.array([*points, (end, points[-1][1])], float) for name, points in found.items()}
    return Series(
        algorithm=str(about.get("algorithm", "agent")), environment=str(about.get("environment", "environment")),
        seed=str(about.get("setup", {}).get("seed", "?")), steps=np.array([r["step"] for r in training], float),
        returns=np.array([r["rollout/ep_rew_mean"] for r in training], float),
        episodes=np.array([r["rollout/episodes"] for r in training], float),
        evaluated=np.array([r["step"] for r in evaluations], float),
        evaluations=tuple(np.array(r["eval/returns"], float) for r in evaluations),
        unit=f"{about.get('steps', 'environment')} steps",
        by_agent=evaluated if enough else _points(records, "rollout/ep_rew_mean/"), configuration=configuration(about),
        adjusted={name: (points[:, 0], points[:, 1]) for name, points in arrays.items()},
    )  # fmt: skip


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
    for name in LEARNED_FROM:
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


Statistic = Literal["iqm", "mean", "median"]
Band = Literal["bootstrap", "range"]
RESAMPLES = 2000
CONFIDENCE = (2.5, 97.5)  # percentiles
DRAWN = 40_000_000  # numbers that are resampled for a picture at most: curves of over 100 seeds have fewer resamples
GRID = 200  # points of a curve that is aggregated over seeds


def interquartile_mean(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """The mean without the lowest and the highest quarter (rounded down) along an axis."""
    count = values.shape[axis]
    return np.sort(values, axis).take(range(count // 4, count - count // 4), axis).mean(axis)


STATISTICS: dict[Statistic, tuple[str, Callable[..., Any]]] = {
    "iqm": ("interquartile mean", interquartile_mean),
    "mean": ("mean", np.mean),
    "median": ("median", np.median),
}
BANDS: dict[Band, str] = {"bootstrap": "95 % interval", "range": "their range"}


def interval(values: np.ndarray, statistic: Statistic = "iqm", most: int = RESAMPLES) -> np.ndarray:
    """[2, ...], the ends of the 95 % percentile interval of a statistic over S seeds [S, ...], by resampling them.

    most: resamples.
    """
    count, over = len(values), STATISTICS[statistic][1]
    resamples = int(np.clip(DRAWN // max(1, values.size), 100, most))
    picks = np.random.default_rng(0).integers(0, count, (resamples, count))
    ends = [np.percentile(over(column[picks], 1), CONFIDENCE) for column in values.reshape(count, -1).T]
    return np.reshape(ends, (-1, 2)).T.reshape(2, *values.shape[1:])


def aggregate(
    curves: Sequence[tuple[np.ndarray, np.ndarray]],
    band: Band = "bootstrap",
    statistic: Statistic = "iqm",
    resamples: int = RESAMPLES,
) -> tuple[np.ndarray, ...]:
    """(steps, statistic, low, high) over S curves of (steps, returns), each [G], on the steps that all cover."""
    first, last = max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves)
    shared = np.unique(np.concatenate([steps for steps, _ in curves]))
    shared = shared[(shared >= first) & (shared <= last)]
    grid = shared if len(shared) <= GRID else np.linspace(first, last, GRID)
    values = np.array([np.interp(grid, steps, returns) for steps, returns in curves])
    centre = STATISTICS[statistic][1](values, 0)
    if len(curves) == 1:
        return grid, centre, centre, centre
    low, high = (values.min(0), values.max(0)) if band == "range" else interval(values, statistic, resamples)
    return grid, centre, low, high


def performance_profile(scores: np.ndarray, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(share, low, high), each [G]: of the runs [S] that score above each threshold [G], with its 95 % interval. The
    run-score distribution of section 4.2, for one task."""
    above = (scores[:, None] > thresholds).astype(float)
    return above.mean(0), *interval(above, "mean")


def probability_of_improvement(
    scores: Sequence[np.ndarray], others: Sequence[np.ndarray]
) -> tuple[float, float, float]:
    """(probability, low, high) that a run scores above another one on a task drawn at random, where equal scores count
    half; the interval resamples the runs of each task. Section 4.3.

    scores, others: for each task those of the runs of one set, and of the other.
    """
    rng, mean, resampled = np.random.default_rng(0), 0.0, np.zeros(RESAMPLES)
    for ours, theirs in zip(scores, others, strict=True):
        wins = (ours[:, None] > theirs) + (ours[:, None] == theirs) / 2
        mean += wins.mean() / len(scores)
        n, m = (rng.multinomial(count, np.full(count, 1 / count), RESAMPLES) for count in wins.shape)  # how often each
        resampled += (n @ wins * m).sum(1) / wins.size / len(scores)
    low, high = np.percentile(resampled, CONFIDENCE)
    return float(mean), float(low), float(high)


NAMED = 3  # differences that a label names; it counts the others
DIGITS = 3  # significant ones of a number in a label


class Line(NamedTuple):
    """Runs that differ in their seeds alone, one for each seed, and what to call them. key: their label with all digits
    and differences."""

    label: str
    runs: tuple[Series, ...]
    key: str


class Comparison(NamedTuple):
    """What a picture of several runs compares: a panel of lines for each environment, by title. All lines have the same
    metric. notes: what a reader should know."""

    panels: dict[str, list[Line]]
    quantity: str
    notes: tuple[str, ...]


def compared(runs: Sequence[Series], labels: Sequence[str] = ()) -> Comparison:
    """A line for each algorithm and configuration; with `labels`, one for each run, a line for each label. Of runs with
    one seed the longest is drawn. ConfigError where there is nothing to draw."""
    if not runs:
        raise ConfigError("No runs to draw. Give at least one run directory.")
    if labels and len(labels) != len(runs):
        raise ConfigError(f"{len(labels)} labels for {len(runs)} runs; expected one for each, in their order.")
    quantity, notes, panels = common_quantity(runs), list[str](), dict[str, list[Line]]()
    found = [(run.of(quantity), labels[i] if labels else None) for i, run in enumerate(runs)]
    found = [(run, label) for run, label in found if len(run.curve()[0])]
    if len(found) < len(runs):
        notes.append(f"{len(runs) - len(found)} of {len(runs)} runs are left out: they have no {quantity}.")
    for environment in sorted({run.environment for run, _ in found}):
        here = [(run, label) for run, label in found if run.environment == environment]
        algorithms = {run.algorithm for run, _ in here}
        title = f"{here[0][0].algorithm} on {environment}" if len(algorithms) == 1 else environment
        panels[title] = _lines(here, notes)
        apart = sum(_apart(line) for line in panels[title])
        if apart:
            notes.append(
                f"{title}: {apart} of {len(panels[title])} lines have seeds without a common step. Each is thin."
            )
    return Comparison(panels, quantity, tuple(notes))


def _lines(runs: Sequence[tuple[Series, str | None]], notes: list[str]) -> list[Line]:
    """The lines of a panel, from runs and the labels that they were given."""
    groups: dict[Any, list[Series]] = {}
    for run, label in runs:
        key = (run.algorithm, *sorted(run.configuration.items())) if label is None else label
        groups.setdefault(key, []).append(run)
    distinct = [_one_for_each_seed(group, notes) for group in groups.values()]
    firsts, given = [group[0] for group in distinct], [key for key in groups if isinstance(key, str)]
    labels, keys = given or _labels(firsts, _rounded, NAMED), given or _labels(firsts, str, None)
    return list(map(Line, labels, map(tuple, distinct), keys))


def _apart(line: Line) -> bool:
    """Whether there is no step that the curves of all seeds cover."""
    ends = [run.curve()[0][[0, -1]] for run in line.runs]
    return max(first for first, _ in ends) > min(last for _, last in ends)


def _one_for_each_seed(runs: list[Series], notes: list[str]) -> list[Series]:
    longest: dict[str, Series] = {}
    for run in sorted(runs, key=lambda run: run.curve()[0][-1]):
        longest[run.seed] = run
    if (more := len(runs) - len(longest)) > 0:
        first = runs[0]
        notes.append(
            f"{first.algorithm} on {first.environment}: {more} of {len(runs)} runs repeat a seed with the same "
            "configuration. They are no further seeds: only the longest of each seed is drawn."
        )
    return sorted(longest.values(), key=lambda run: run.seed)


def _labels(runs: Sequence[Series], text_of: Callable[[str], str], most: int | None) -> list[str]:
    """What each differs in from others of its algorithm, and the algorithm, where there are several or nothing else
    differs. text_of: from a value to what is written of it. most: differences that are named."""
    algorithms = {run.algorithm for run in runs}
    words: dict[int, list[str]] = {i: [] for i in range(len(runs))}
    for algorithm in algorithms:
        alike = [i for i, run in enumerate(runs) if run.algorithm == algorithm]
        names = dict.fromkeys(name for i in alike for name in runs[i].configuration)
        values = {name: [runs[i].configuration.get(name, "none") for i in alike] for name in names}
        differing = {name: list(map(text_of, found)) for name, found in values.items() if len(set(found)) > 1}
        for place, i in enumerate(alike):
            words[i] = [f"{name}={texts[place]}" for name, texts in list(differing.items())[:most]]
            words[i] += [f"and {len(differing) - most} more"] if most and len(differing) > most else []
    return [
        " ".join([run.algorithm, *words[i]] if len(algorithms) > 1 or not words[i] else words[i])
        for i, run in enumerate(runs)
    ]


def _rounded(value: str) -> str:
    """With three significant digits in every number that is not whole, also in schedules."""
    return re.sub(r"\d+\.\d+(e-?\d+)?|\d+e-?\d+", lambda number: f"{float(number[0]):.{DIGITS}g}", value)
