"""Pictures of runs: the curves of one, or of several that are compared. All return the matplotlib figure, and write it
to `path` where one is given: a PNG, SVG or PDF."""

from __future__ import annotations

import gc
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from etude.base.data import Estimate
from etude.base.errors import ConfigError
from etude.base.events import Event, Finished
from etude.report.pictures import COLOURS, ENTRIES, GREY, Style, finish, grid, legend, picture
from etude.report.records import RunHistory
from etude.report.series import (
    BANDS,
    EVALUATION,
    STATISTICS,
    Band,
    Comparison,
    Line,
    Series,
    Statistic,
    aggregate,
    compared,
    find_runs,
    performance_profile,
    probability_of_improvement,
    read_run,
    series,
    series_of,
)

Kind = Literal["curves", "profile", "improvement"]
KINDS: tuple[Kind, ...] = ("curves", "profile", "improvement")
Names = Mapping[str, tuple[str, str]]  # by key, the colour of a line and its entry in the legend


def plot(
    *runs: Any, metric: str | None = None, path: str | Path | None = None, kind: Kind = "curves",
    statistic: Statistic = "iqm", band: Band = "bootstrap", labels: Sequence[str] = (), style: Style = "screen",
) -> Any:  # fmt: skip
    """Draw the curves of a run, or of several that are compared. Returns the matplotlib figure.

    runs: run directories, folders of them, files of JSON lines, or records, such as `run.history`.
    metric: a name in the records, such as train/entropy; None: the return. labels: one for each run.
    Other arguments: see `draw_runs`.
    """
    found = [each for given in runs for each in _read(given, metric)]
    if len(found) == 1 and kind == "curves":
        return draw_run(found[0], path, style)
    return draw_runs(found, path, kind, statistic=statistic, band=band, labels=labels, style=style)


def _read(given: Any, metric: str | None) -> list[Series]:
    if isinstance(given, str | Path):
        return [read_run(path, metric) for path in find_runs(given)]
    if not isinstance(given, Series | Iterable):
        raise ConfigError(f"plot: {given!r}; expected a run directory, a file, or records, such as run.history.")
    found = given if isinstance(given, Series) else series_of(given, metric)
    if not len(found.curve()[0]):
        raise ConfigError("The records hold no finished episode and no evaluation yet: nothing to draw. Train first.")
    return [found]


def draw_run(run: Series, path: str | Path | None = None, style: Style = "screen") -> Any:
    """One run: the return of training, as it was and smoothed, and of each evaluation with its range; with several
    agents also the mean return of each. A panel below has the hyperparameters that rules have changed."""
    rows, others = 2 if run.adjusted else 1, [*run.by_agent, *run.adjusted]
    with picture(path, 1, rows, style) as figure:
        axes, *below = figure.subplots(rows, squeeze=False, sharex=True)[:, 0]
        names = named({name: -i for i, name in enumerate(others)}, {}, COLOURS[2:])
        if len(run.steps):
            axes.plot(run.steps, run.returns, color=COLOURS[0], alpha=0.25, linewidth=0.8)
            axes.plot(run.steps, run.smoothed(), color=COLOURS[0], label="training, smoothed (thin: as recorded)")
        if len(run.evaluated):
            low, high = ([f(returns) for returns in run.evaluations] for f in (np.min, np.max))
            means, episodes = run.of(EVALUATION).curve()[1], max(map(len, run.evaluations))
            axes.fill_between(run.evaluated, low, high, color=COLOURS[1], alpha=0.18, linewidth=0)
            label = f"evaluation: mean of {episodes} episodes (shaded: their range)"
            axes.plot(run.evaluated, means, "o-", color=COLOURS[1], markersize=3.5, label=label)
        for agent, (steps, returns) in run.by_agent.items():
            axes.plot(steps, returns, "--", color=names[agent][0], linewidth=1.2, label=names[agent][1])
        finish(axes, _wrapped(f"{run.algorithm} on {run.environment}, seed {run.seed}", axes), up=run.quantity)
        for panel in below:
            for name, (steps, values) in run.adjusted.items():  # as multiples of the first value that is not 0
                first = values[np.flatnonzero(values)[0]]
                panel.plot(steps, values / first, drawstyle="steps-post", color=names[name][0], label=names[name][1])
            panel.set_yscale("log", base=2)
            panel.yaxis.set_major_formatter("{x:g}")
            finish(panel, up="value / first value")
        figure.axes[-1].set_xlabel(run.unit)
        legend(figure)
    return figure


def draw_runs(
    runs: Sequence[Series] | Comparison,
    path: str | Path | None = None,
    kind: Kind = "curves",
    *,
    statistic: Statistic = "iqm",
    band: Band = "bootstrap",
    labels: Sequence[str] = (),
    style: Style = "screen",
) -> Any:
    """Several runs: a panel for each environment, and a line for each configuration of each algorithm. The legend names
    the highest ones, others are grey. All lines are of one metric: evaluations, or training where some run has under
    two.

    kind: "curves", a statistic over the seeds of each configuration, each seed faint; "profile", the share of its runs
        that end above each return; "improvement", the probability that a run of the first configuration ends above one
        of each other. Of Agarwal et al. 2021, arXiv:2108.13264, with 95 % percentile bootstrap intervals over seeds.
    statistic: "iqm", the interquartile mean, "mean" or "median".
    band: of curves: "bootstrap", the interval of the statistic, or "range", from the lowest to the highest seed.
    labels: one for each run; runs of one label are one line. Without them, lines are called by what they differ in.
    Where seeds stopped at different steps, the statistic and the band end with the first that stopped.
    """
    for name, given, known in (("kind", kind, KINDS), ("statistic", statistic, STATISTICS), ("band", band, BANDS)):
        if given not in known:
            raise ConfigError(f"{name} = {given!r}; expected {', '.join(known)}.")
    found = runs if isinstance(runs, Comparison) else compared(runs, labels)
    if kind == "improvement":
        return _draw_improvement(found, path, style)
    units = {run.unit for lines in found.panels.values() for line in lines for run in line.runs}
    (columns, rows), names, across = grid(len(found.panels)), _names(found), " or ".join(sorted(units))
    with picture(path, columns, rows, style) as figure:
        panels = figure.subplots(rows, columns, squeeze=False).reshape(-1)
        for axes in panels[len(found.panels) :]:
            axes.remove()
        for axes, (name, lines) in zip(panels, found.panels.items(), strict=False):
            title = _wrapped(name, axes, columns)
            if kind == "profile":
                _draw_profile(axes, lines, names)
                finish(axes, title, f"{found.quantity} at the end", "share of runs above", steps=False)
            else:
                _draw_curves(axes, lines, names, band, statistic)
                finish(axes, title, across, found.quantity)
        legend(figure, _about(found, kind, band, statistic))
    return figure


def _wrapped(title: str, axes: Any, columns: int = 1) -> str:
    """The title of a panel, in lines that its axes have room for; the figure grows by all but the first."""
    (width, height), size = axes.figure.get_size_inches(), axes.title.get_fontsize() / 72
    title = textwrap.fill(title, int((width / columns - 1) / (0.58 * size)))  # 1 inch: the numbers beside the axes
    axes.figure.set_size_inches(width, height + title.count("\n") * 1.4 * size)
    return title


def named(
    scores: Mapping[str, float], labels: Mapping[str, str], own: Sequence[str] = COLOURS
) -> dict[str, tuple[str, str]]:
    """By key, the colour of a line and its entry in the legend: for as many of the highest ones as there are colours
    their own and their label (the key, where there is none, or another one has it), for all others grey and a count.
    The highest come first, where there are others."""
    order = sorted(scores, key=lambda key: scores[key] if np.isfinite(scores[key]) else -np.inf, reverse=True)
    order = order if len(order) > len(own) else list(scores)
    shown = [labels.get(key, key) for key in order[: len(own)]]
    texts = [label if shown.count(label) == 1 else key for key, label in zip(order, shown, strict=False)]
    found = dict(zip(order, zip(own, texts, strict=False), strict=False))
    rest = order[len(own) :]
    return found | dict.fromkeys(rest, (GREY, f"{len(rest)} other{'s' if len(rest) > 1 else ''}"))


def _names(found: Comparison) -> Names:
    """The highest lines have names: by their mean rank in the panels that they are in."""
    ranks: dict[str, list[float]] = {}
    for lines in found.panels.values():
        scores = [np.mean([run.score for run in line.runs]) for line in lines]
        for place, i in enumerate(np.argsort(scores)):
            ranks.setdefault(lines[i].key, []).append(place / len(lines))
    every = {line.key: line for lines in found.panels.values() for line in lines}
    counts = {key: f", {count} seed{'s' if count > 1 else ''}" for key, count in _counts(found).items()}
    differ = len(set(counts.values())) > 1
    labels = {key: line.label + (counts[key] if differ else "") for key, line in every.items()}
    return named({key: float(np.mean(ranks[key])) for key in every}, labels)


def _counts(found: Comparison) -> dict[str, int]:
    """By key, how many seeds a line has at most."""
    counts: dict[str, int] = {}
    for line in (line for lines in found.panels.values() for line in lines):
        counts[line.key] = max(counts.get(line.key, 0), len(line.runs))
    return counts


def _about(found: Comparison, kind: Kind, band: Band, statistic: Statistic) -> str:
    """What lines and shading are."""
    counts = _counts(found)
    seeds = f"{max(counts.values())} seeds" if len(set(counts.values())) == 1 else "the seeds"
    best = f"the {len(COLOURS)} highest of {len(counts)}; " if len(counts) > len(COLOURS) else ""
    if max(counts.values()) == 1:
        return f"{best}one seed each" if len(counts) > 1 else ""
    if kind == "profile":
        return f"{best}{seeds}; shaded: {BANDS['bootstrap']}"
    return f"{best}{STATISTICS[statistic][0]} of {seeds}; shaded: {BANDS[band]}; thin: each"


def _draw_curves(axes: Any, lines: Sequence[Line], names: Names, band: Band, statistic: Statistic) -> None:
    from matplotlib.collections import LineCollection

    lines, grey = _ordered(lines, names)
    for line in lines:
        colour, label = names[line.key]
        curves = [run.curve() for run in line.runs]
        steps, centre, low, high = aggregate(curves, band, statistic)
        if len(curves) > 1:
            faint = min(0.25, 5 / len(curves))
            axes.add_collection(LineCollection(_points(curves), linewidths=0.7, colors=colour, alpha=faint))
            for points in (each for each in _points(curves) if len(each) == 1):  # of which no line is drawn
                axes.plot(*points.T, ".", color=colour, alpha=0.5, markersize=4)
            axes.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(steps, centre, color=colour, label=label, marker="." if np.isfinite(centre).sum() == 1 else None)
    if grey:
        centres = [aggregate([run.curve() for run in line.runs], "range", statistic)[:2] for line in grey]
        look: Any = {"colors": GREY, "alpha": min(0.4, 20 / len(grey)), "label": names[grey[0].key][1]}
        axes.add_collection(LineCollection(_points(centres), linewidths=0.7, **look))
    axes.autoscale_view()


def _ordered(lines: Sequence[Line], names: Names) -> tuple[list[Line], list[Line]]:
    """(those that have colours of their own, in the order of the legend; those that are grey)."""
    order = {key: place for place, key in enumerate(names)}
    lines = sorted(lines, key=lambda line: order[line.key])
    grey = [line for line in lines if names[line.key][0] == GREY]
    return lines[: len(lines) - len(grey)], grey


def _points(curves: Sequence[tuple[np.ndarray, ...]]) -> list[np.ndarray]:
    return [np.column_stack(curve) for curve in curves]


def _draw_profile(axes: Any, lines: Sequence[Line], names: Names) -> None:
    ordered = [line for part in _ordered(lines, names) for line in part]
    scores = {line.key: np.array([run.score for run in line.runs]) for line in ordered}
    every = np.concatenate(list(scores.values()))
    thresholds = np.linspace(every.min(), every.max(), 201)
    for key, own in scores.items():
        colour, entry = names[key]
        share, low, high = performance_profile(own, thresholds)
        grey = colour == GREY
        look = {"alpha": 0.4, "linewidth": 0.7} if grey else {}
        axes.plot(thresholds, share, color=colour, label=entry, **look)
        if len(own) > 1 and not grey:
            axes.fill_between(thresholds, low, high, color=colour, alpha=0.18, linewidth=0)


def _draw_improvement(found: Comparison, path: str | Path | None, style: Style) -> Any:
    """A row for each line but the first: the probability that a run of the first ends above one of it."""
    scores: dict[str, dict[str, np.ndarray]] = {}  # by key and environment
    labels: dict[str, str] = {}
    for title, lines in found.panels.items():
        for line in lines:
            scores.setdefault(line.key, {})[title] = np.array([run.score for run in line.runs])
            labels[line.key] = line.label
    first, *rest = scores
    others = [key for key in rest if scores[key].keys() & scores[first].keys()]
    if not others:
        raise ConfigError(
            "The probability of improvement compares two or more sets of runs on the same environment; got one. Give "
            "runs of another configuration, or labels."
        )
    with picture(path, 1, 1, style) as figure:
        axes = figure.subplots()
        for row, other in enumerate(others[:ENTRIES]):
            tasks = [title for title in scores[first] if title in scores[other]]
            sets = ([scores[key][title] for title in tasks] for key in (first, other))
            _draw_interval(axes, row, *probability_of_improvement(*sets))
        axes.axvline(0.5, color=GREY, linestyle="--", linewidth=1.2)
        shown = [textwrap.fill(labels[key], 24) for key in others[:ENTRIES]]
        axes.set(yticks=range(len(shown)), yticklabels=shown, xlim=(0, 1), ylim=(len(shown) - 0.5, -0.5))
        title = textwrap.fill(f"{labels[first]}: probability of improvement over", 44)
        finish(axes, title, f"probability (bars: {BANDS['bootstrap']})", steps=False)
    return figure


def _draw_interval(axes: Any, row: int, value: float, low: float, high: float) -> None:
    """A value and its interval, in a row."""
    axes.plot([low, high], [row, row], color=COLOURS[0], linewidth=2.5, alpha=0.45)
    axes.plot([value], [row], "o", color=COLOURS[0], markersize=6)


def draw_episodes(series: dict[str, Sequence[float]], path: str | Path | None = None) -> Any:
    """One panel for each series of numbers by episode, with the mean over a twentieth of it. Without a path it is shown
    in a window."""
    if not any(series.values()):
        raise ConfigError("Nothing has happened yet that could be drawn. Train the agent first.")
    with picture(path, 1, len(series), window=True) as figure:
        for axes, (name, values) in zip(figure.subplots(len(series), squeeze=False)[:, 0], series.items(), strict=True):
            axes.plot(range(1, len(values) + 1), values, color=COLOURS[0], alpha=0.35, linewidth=0.8)
            width = max(1, len(values) // 20)
            if values:
                mean = np.convolve(values, np.full(width, 1 / width), "valid")
                axes.plot(range(width, len(values) + 1), mean, color=COLOURS[0])
            title = f"{name} of each episode" + f", and mean over {width}" * (width > 1)
            finish(axes, title, "episode with gradient steps" if name == "loss" else "episode", name)
    return figure


def draw_estimates(estimates: Mapping[str, Estimate], path: str | Path | None = None) -> Any:
    """A row for each method: the estimate with its interval, beside the behaviour's own value."""
    found = list(estimates.values())
    with picture(path) as figure:
        axes = figure.subplots()
        for row, each in enumerate(found):
            _draw_interval(axes, row, each.value, each.low, each.high)
        axes.axvline(found[0].behaviour, color=COLOURS[1], linestyle="--", label="mean of the recorded episodes")
        axes.set(yticks=range(len(found)), yticklabels=[each.method for each in found])
        axes.invert_yaxis()
        finish(axes, "Off-policy estimates", "mean discounted return (bars: interval)", steps=False)
        legend(figure)
    return figure


class RatePanel(NamedTuple):
    """What is drawn over learning rates: values [n] at rates [n], and their smoothed curve, where there is one.

    y_lim: ends of the vertical axis; None: those of the values.
    """

    label: str
    rates: np.ndarray
    values: np.ndarray
    smoothed: np.ndarray | None = None
    y_lim: tuple[float, float] | None = None


def draw_rates(
    panels: Sequence[RatePanel], suggested: float | None = None, path: str | Path | None = None, title: str = ""
) -> Any:
    """Each over learning rates on a logarithmic axis, with the suggested rate. Written to `path`, or shown in a window;
    returns the matplotlib figure."""
    with picture(path, 1, len(panels), window=True) as figure:
        for axes, panel in zip(figure.subplots(len(panels), squeeze=False, sharex=True)[:, 0], panels, strict=True):
            look = {} if panel.smoothed is None else {"alpha": 0.3, "linewidth": 0.8}
            axes.plot(panel.rates, panel.values, color=COLOURS[0], **look)
            if panel.smoothed is not None:
                axes.plot(panel.rates[: len(panel.smoothed)], panel.smoothed, color=COLOURS[0], label="smoothed")
            if suggested is not None:
                axes.axvline(suggested, color=COLOURS[1], linestyle="--", label=f"suggested: {suggested:.2g}")
            finish(axes, "", "", panel.label, steps=False)
            axes.set(xscale="log", ylim=panel.y_lim)
        figure.axes[0].set_title(title)
        figure.axes[-1].set_xlabel("learning rate (logarithmic)")
        legend(figure)
    return figure


def plot_run(run: Any, path: str | Path | None = None, **options: Any) -> Any:
    """Draw the curve of a run from its history; see `etude.plot`. Returns the matplotlib figure."""
    return plot(run.history, path=path, **options)


class Curve:
    """Draws the learning curve to `path` (a PNG) when the run ends, and now and then before.

    A resumed run's earlier part comes from the `metrics.jsonl` beside the picture, where there is one.
    seconds: at least this long between two drawings (one takes about half a second).
    """

    def __init__(self, path: str | Path, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic):
        self.path: Path = Path(path)
        self._seconds = seconds
        self._clock = clock
        self._history = RunHistory(self.path.with_name("metrics.jsonl"))
        self._drawn = clock()

    def __call__(self, event: Event) -> None:
        new = self._history(event)
        if isinstance(event, Finished) or (new and self._clock() - self._drawn >= self._seconds):
            run = series(self._history)
            if len(run.steps) or len(run.evaluated):
                draw_run(run, self.path)
                gc.collect()  # a picture leaves cycles of references behind, with about 10 MB of images
            self._drawn = self._clock()
