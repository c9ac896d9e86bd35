"""Learning curves as pictures: one run, or several aggregated over their seeds. No display is needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from etude.checkpoint import replacing
from etude.errors import ConfigError
from etude.report.json_lines import read_records
from etude.report.records import Record

# Okabe & Ito 2008, "Color universal design": told apart with every kind of colour vision, and in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
BOOTSTRAP_SAMPLES = 2000
GRID = 200  # points of a curve that is averaged over seeds
Band = Literal["range", "bootstrap"]


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

    def smoothed(self) -> np.ndarray:
        """[K] the mean return over the episodes of the last twentieth of the intervals, and itself."""
        width = max(1, len(self.steps) // 20)
        totals = np.concatenate([[0.0], np.cumsum(self.returns * self.episodes)])
        counts = np.concatenate([[0.0], np.cumsum(self.episodes)])
        end = np.arange(1, len(self.steps) + 1)
        start = np.maximum(0, end - width)
        return (totals[end] - totals[start]) / (counts[end] - counts[start])

    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """(steps, returns) to compare runs by: evaluations; smoothed training where there are under two."""
        if len(self.evaluated) >= 2:
            return self.evaluated, np.array([np.mean(returns) for returns in self.evaluations])
        return self.steps, self.smoothed()


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
    )


def read_run(path: str | Path) -> Series:
    """The series of a run directory, or of a file of JSON lines. Raises ConfigError where there is nothing to draw."""
    path = Path(path)
    file = path / "metrics.jsonl" if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"No metrics at {file}. Give a run directory, or the metrics.jsonl in one.")
    found = series(read_records(file))
    if not len(found.curve()[0]):
        raise ConfigError(f"{file} holds no finished episode and no evaluation yet: nothing to draw.")
    return found


def draw_run(run: Series, path: str | Path) -> None:
    """One run: the return of training, as it was and smoothed, and of each evaluation with its spread. Writes a PNG."""
    figure = _figure(1)
    axes = figure.subplots()
    if len(run.steps):
        axes.plot(run.steps, run.returns, color=COLOURS[0], alpha=0.25, linewidth=0.8)
        axes.plot(run.steps, run.smoothed(), color=COLOURS[0], linewidth=1.6, label="training (smoothed)")
    if len(run.evaluated):
        means = [returns.mean() for returns in run.evaluations]
        low, high = ([f(returns) for returns in run.evaluations] for f in (np.min, np.max))
        episodes = max(len(returns) for returns in run.evaluations)
        axes.fill_between(run.evaluated, low, high, color=COLOURS[1], alpha=0.18, linewidth=0)
        label = f"evaluation (mean and range of {episodes} episodes)"
        axes.plot(run.evaluated, means, "o-", color=COLOURS[1], linewidth=1.6, markersize=3.5, label=label)
    _finish(axes, f"{run.algorithm} on {run.environment}, seed {run.seed}", [run])
    _write(figure, path)


def draw_runs(runs: Sequence[Series], path: str | Path, band: Band = "bootstrap") -> None:
    """Several runs: a panel for each environment, a colour for each algorithm, its mean over seeds, each seed faint.

    band: "bootstrap", the 95 % percentile interval of the mean over resampled seeds (Agarwal et al. 2021,
        arXiv:2108.13264, whose strata are the panels here), or "range", from the lowest to the highest seed.
    Where seeds stopped at different steps, the mean and the band end with the first that stopped.
    """
    if not runs:
        raise ConfigError("No runs to draw. Give at least one run directory.")
    environments = sorted({run.environment for run in runs})
    algorithms = sorted({run.algorithm for run in runs})
    figure = _figure(len(environments))
    for axes, environment in zip(figure.subplots(1, len(environments), squeeze=False)[0], environments, strict=True):
        here = [run for run in runs if run.environment == environment]
        for colour, algorithm in zip(_cycle(len(algorithms)), algorithms, strict=True):
            group = [run for run in here if run.algorithm == algorithm]
            if group:
                _draw_group(axes, group, colour, band)
        _finish(axes, environment, here)
    _write(figure, path)


def draw_episodes(series: dict[str, Sequence[float]], path: str | Path | None = None) -> Any:
    """One panel for each series of numbers by episode, with the mean over a twentieth of it. Written to `path`, or
    shown in a window; returns the matplotlib figure."""
    if not any(series.values()):
        raise ConfigError("Nothing has happened yet that could be drawn. Train the agent first.")
    figure = _figure(len(series)) if path is not None else _window(len(series))
    for axes, (name, values) in zip(figure.subplots(1, len(series), squeeze=False)[0], series.items(), strict=True):
        episodes = np.arange(1, len(values) + 1)
        axes.plot(episodes, values, color=COLOURS[0], alpha=0.35, linewidth=0.8)
        width = max(1, len(values) // 20)
        if width > 1:
            mean = np.convolve(values, np.full(width, 1 / width), "valid")
            axes.plot(episodes[width - 1 :], mean, color=COLOURS[0], linewidth=1.8, label=f"mean over {width}")
            axes.legend(frameon=False, fontsize="small")
        axes.set(xlabel="episode", ylabel=name)
        axes.grid(True, alpha=0.3, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    if path is None:
        figure.show()
    else:
        _write(figure, path)
    return figure


def aggregate(curves: Sequence[tuple[np.ndarray, np.ndarray]], band: Band) -> tuple[np.ndarray, ...]:
    """(steps, mean, low, high) over S curves of (steps, returns), each [G], on the steps that all of them cover."""
    first, last = max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves)
    shared = np.unique(np.concatenate([steps for steps, _ in curves]))
    shared = shared[(shared >= first) & (shared <= last)]
    grid = shared if len(shared) <= GRID else np.linspace(first, last, GRID)
    values = np.array([np.interp(grid, steps, returns) for steps, returns in curves])
    if band == "range":
        return grid, values.mean(0), values.min(0), values.max(0)
    picks = np.random.default_rng(0).integers(0, len(values), (BOOTSTRAP_SAMPLES, len(values)))
    low, high = np.percentile(values[picks].mean(1), [2.5, 97.5], axis=0)
    return grid, values.mean(0), low, high


def _draw_group(axes: Any, group: Sequence[Series], colour: str, band: Band) -> None:
    curves = [run.curve() for run in group]
    kind = "evaluation" if all(len(run.evaluated) >= 2 for run in group) else "training"
    if len(curves) > 1:
        for steps, returns in curves:
            axes.plot(steps, returns, color=colour, alpha=0.25, linewidth=0.8)
    grid, mean, low, high = aggregate(curves, band)
    spread = "95 % interval" if band == "bootstrap" else "range"
    words = f"mean and {spread} of {len(curves)} seeds" if len(curves) > 1 else f"seed {group[0].seed}"
    axes.plot(grid, mean, color=colour, linewidth=1.8, label=f"{group[0].algorithm} ({kind}, {words})")
    if len(curves) > 1:
        axes.fill_between(grid, low, high, color=colour, alpha=0.18, linewidth=0)


def _cycle(count: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(count)]


def _figure(panels: int) -> Any:
    from matplotlib.figure import Figure  # without pyplot: no global state, no window, no display

    return Figure(figsize=(6.4 * panels, 4.0), dpi=150, layout="constrained")


def _window(panels: int) -> Any:
    from matplotlib import pyplot  # the only place that opens windows

    return pyplot.figure(figsize=(6.4 * panels, 4.0), layout="constrained")


def _finish(axes: Any, title: str, runs: Sequence[Series]) -> None:
    from matplotlib.ticker import EngFormatter

    units = " or ".join(sorted({run.unit for run in runs}))
    axes.set(title=title, xlabel=units, ylabel="undiscounted return per episode")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(True, alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(left=0)
    axes.legend(frameon=False, fontsize="small")


def _write(figure: Any, path: str | Path) -> None:
    """Replace the picture whole, so that a viewer never sees half of one."""
    path = Path(path)
    with replacing(path) as file:
        figure.savefig(file, format=path.suffix.lstrip(".") or "png")
