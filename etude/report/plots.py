"""Learning curves as pictures: one run, or several aggregated over their seeds. No display is needed."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from etude.base.data import Estimate
from etude.base.errors import ConfigError
from etude.checkpoint import replacing
from etude.report.configurations import Line, lines_in
from etude.report.series import Series

# Okabe & Ito 2008, "Color universal design": told apart with every kind of colour vision, and in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
BOOTSTRAP_SAMPLES = 2000
LEGEND = 32  # characters in a line of the legend
GRID = 200  # points of a curve that is averaged over seeds
Band = Literal["range", "bootstrap"]
Statistic = Literal["mean", "iqm"]
STATISTICS: dict[Statistic, str] = {"mean": "mean", "iqm": "interquartile mean"}
BANDS: dict[Band, str] = {"range": "range over seeds", "bootstrap": "95 % interval"}


def draw_run(run: Series, path: str | Path) -> None:
    """One run: the return of training, as it was and smoothed, and of each evaluation with its spread; with several
    agents also the mean return of each. A panel below has the hyperparameters that rules have changed. Writes a PNG."""
    figure = new_figure(1, 2 if run.adjusted else 1)
    axes, *below = figure.subplots(2 if run.adjusted else 1, squeeze=False, sharex=True)[:, 0]
    if len(run.steps):
        axes.plot(run.steps, run.returns, color=COLOURS[0], alpha=0.25, linewidth=0.8)
        axes.plot(run.steps, run.smoothed(), color=COLOURS[0], linewidth=1.6, label="training, smoothed")
    if len(run.evaluated):
        means = [returns.mean() for returns in run.evaluations]
        low, high = ([f(returns) for returns in run.evaluations] for f in (np.min, np.max))
        episodes = max(len(returns) for returns in run.evaluations)
        axes.fill_between(run.evaluated, low, high, color=COLOURS[1], alpha=0.18, linewidth=0)
        label = f"evaluation: mean and\nrange of {episodes} episodes"
        axes.plot(run.evaluated, means, "o-", color=COLOURS[1], linewidth=1.6, markersize=3.5, label=label)
    for i, (agent, (steps, returns)) in enumerate(run.by_agent.items()):
        colour = COLOURS[2 + i % (len(COLOURS) - 2)]  # none of those above
        axes.plot(steps, returns, "--", color=colour, linewidth=1.2, label=agent)
    _finish(axes, f"{run.algorithm} on {run.environment}, seed {run.seed}", [run])
    for panel in below:
        _draw_adjusted(panel, run)
    write_figure(figure, path)


def _draw_adjusted(axes: Any, run: Series) -> None:
    """Hyperparameters as multiples of what they were at first; of the first value that is not 0."""
    for (name, (steps, values)), colour in zip(run.adjusted.items(), _cycle(len(run.adjusted)), strict=True):
        first = values[np.flatnonzero(values)[0]]
        axes.plot(steps, values / first, drawstyle="steps-post", color=colour, linewidth=1.4, label=name)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    _finish(axes, "", [run])
    axes.set_ylabel("hyperparameter / its first value")


def draw_runs(
    runs: Sequence[Series],
    path: str | Path,
    band: Band = "bootstrap",
    labels: Sequence[str] = (),
    statistic: Statistic = "mean",
) -> list[str]:
    """Several runs: a panel for each environment, a line for each configuration of each algorithm, its mean over seeds,
    each seed faint. Returns what a reader of the picture should know.

    band: "bootstrap", the 95 % percentile interval of the mean over resampled seeds (Agarwal et al. 2021,
        arXiv:2108.13264, whose strata are the panels here), or "range", from the lowest to the highest seed.
    statistic: over seeds: the mean, or "iqm", the interquartile mean.
    labels: one for each run; runs of one label are one line. Without them, lines are called by what they differ in.
    Where seeds stopped at different steps, the mean and the band end with the first that stopped.
    """
    if not runs:
        raise ConfigError("No runs to draw. Give at least one run directory.")
    environments = sorted({run.environment for run in runs})
    lines, notes = lines_in(runs, labels)
    names = sorted({line.label for panel in lines.values() for line in panel})
    colours = dict(zip(names, _cycle(len(names)), strict=True))
    figure = new_figure(len(environments))
    for axes, environment in zip(figure.subplots(1, len(environments), squeeze=False)[0], environments, strict=True):
        for line in sorted(lines[environment]):
            _draw_line(axes, line, colours[line.label], band, statistic)
        _finish(axes, environment, [run for line in lines[environment] for run in line.runs])
        if any(len(line.runs) > 1 for line in lines[environment]):
            axes.get_legend().set_title(f"{STATISTICS[statistic]} and {BANDS[band]}", {"size": "small"})
    write_figure(figure, path)
    return notes


def draw_episodes(series: dict[str, Sequence[float]], path: str | Path | None = None) -> Any:
    """One panel for each series of numbers by episode, with the mean over a twentieth of it. Written to `path`, or
    shown in a window; returns the matplotlib figure."""
    if not any(series.values()):
        raise ConfigError("Nothing has happened yet that could be drawn. Train the agent first.")
    figure = new_figure(len(series)) if path is not None else new_window(len(series))
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
        write_figure(figure, path)
    return figure


def draw_estimates(estimates: Mapping[str, Estimate], path: str | Path) -> None:
    """A row for each method: the estimate with its interval, beside the behaviour's own value. Writes a PNG."""
    found = list(estimates.values())
    figure = new_figure(1)
    axes = figure.subplots()
    for row, each in enumerate(found):
        axes.plot([each.low, each.high], [row, row], color=COLOURS[0], linewidth=2.5, alpha=0.45)
        axes.plot([each.value], [row], "o", color=COLOURS[0], markersize=6)
    axes.axvline(found[0].behaviour, color=COLOURS[1], linestyle="--", linewidth=1.4, label="the behaviour's own")
    axes.set(yticks=range(len(found)), yticklabels=[each.method for each in found], xlabel="mean discounted return")
    axes.invert_yaxis()
    axes.grid(True, axis="x", alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    write_figure(figure, path)


def interquartile_mean(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """The mean without the lowest and the highest quarter (rounded down) along an axis. Agarwal et al. 2021,
    arXiv:2108.13264."""
    count = values.shape[axis]
    return np.sort(values, axis).take(range(count // 4, count - count // 4), axis).mean(axis)


def aggregate(
    curves: Sequence[tuple[np.ndarray, np.ndarray]], band: Band, statistic: Statistic = "mean"
) -> tuple[np.ndarray, ...]:
    """(steps, mean, low, high) over S curves of (steps, returns), each [G], on the steps that all of them cover."""
    over = interquartile_mean if statistic == "iqm" else np.mean
    first, last = max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves)
    shared = np.unique(np.concatenate([steps for steps, _ in curves]))
    shared = shared[(shared >= first) & (shared <= last)]
    grid = shared if len(shared) <= GRID else np.linspace(first, last, GRID)
    values = np.array([np.interp(grid, steps, returns) for steps, returns in curves])
    if band == "range":
        return grid, over(values, 0), values.min(0), values.max(0)
    picks = np.random.default_rng(0).integers(0, len(values), (BOOTSTRAP_SAMPLES, len(values)))
    low, high = np.percentile(over(values[picks], 1), [2.5, 97.5], axis=0)
    return grid, over(values, 0), low, high


def _draw_line(axes: Any, line: Line, colour: str, band: Band, statistic: Statistic) -> None:
    label, group = line
    curves = [run.curve() for run in group]
    kind = "evaluation" if all(len(run.evaluated) >= 2 for run in group) else "training"
    if len(curves) > 1:
        for steps, returns in curves:
            axes.plot(steps, returns, color=colour, alpha=0.25, linewidth=0.8)
    grid, mean, low, high = aggregate(curves, band, statistic)
    seeds = f"{len(curves)} seeds" if len(curves) > 1 else f"seed {group[0].seed}"
    lines = textwrap.wrap(label, LEGEND) or [label]  # a legend wider than the figure would leave no room for the axes
    axes.plot(grid, mean, color=colour, linewidth=1.8, label="\n".join([*lines, f"{kind}, {seeds}"]))
    if len(curves) > 1:
        axes.fill_between(grid, low, high, color=colour, alpha=0.18, linewidth=0)


def _cycle(count: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(count)]


def new_figure(panels: float, rows: int = 1) -> Any:
    """A figure as wide as so many panels, and with so many rows of them."""
    from matplotlib.figure import Figure  # without pyplot: no global state, no window, no display

    return Figure(figsize=(6.4 * panels, 4.0 * rows), dpi=150, layout="constrained")


def new_window(panels: int) -> Any:
    from matplotlib import pyplot  # the only place that opens windows

    return pyplot.figure(figsize=(6.4 * panels, 4.0), layout="constrained")


def _finish(axes: Any, title: str, runs: Sequence[Series]) -> None:
    from matplotlib.ticker import EngFormatter

    units, quantities = (sorted({getattr(run, name) for run in runs}) for name in ("unit", "quantity"))
    axes.set(title=title, xlabel=" or ".join(units), ylabel=" or ".join(quantities))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(True, alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(left=0)
    axes.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))  # never over a curve


def write_figure(figure: Any, path: str | Path) -> None:
    """Replace the picture whole, so that a viewer never sees half of one."""
    path = Path(path)
    with replacing(path) as file:
        figure.savefig(file, format=path.suffix.lstrip(".") or "png")
