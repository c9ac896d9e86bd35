"""Studies, populations and sweeps as tables and pictures. What is drawn is plain data, by name of hyperparameter."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from etude.base.errors import ConfigError
from etude.report.pictures import COLOURS, GREY, CellOutput, finish, grid, legend, picture
from etude.report.plots import named
from etude.report.terminal import LiveOutput

REDRAW_SECONDS = 0.5
ROWS = 12  # of the live table
WIDE = 1_000  # characters in a line of a file
GROUPS = 4  # of a hyperparameter's numbers, for its importance
DECADES = 10.0  # numbers further apart than this factor are drawn on a logarithmic axis
TICKS = 8  # values of a hyperparameter that are all named; of more, the ends and the middle
MANY = 30  # configurations of which importance says something


class StudyTable(LiveOutput):
    """A live table of a study: give it to `study.run`. Where the output is no terminal, a line for every trial that
    ends.

    console, clock: see `LiveOutput`.
    """

    def __init__(self, console: Any = None, clock: Callable[[], float] = time.monotonic):
        super().__init__(console, clock)
        if console is None and not self._console.is_terminal:
            self._console.width = WIDE
        self._over, self._notes = set[int](), 0
        self._live = CellOutput("study") if self._in_cell else None

    def __call__(self, study: Any) -> None:
        self._tell(study)
        self._begin()
        if self._live is not None and (self._clock() >= self._next or not study.busy):
            self._next = self._clock() + REDRAW_SECONDS
            self._live.update(_grid(study), refresh=True)
            if study.over:
                self.close()

    def _tell(self, study: Any) -> None:
        """Print warnings, and what is over."""
        for number, text in study.notes[self._notes :]:
            self._print(f"trial {number}: {text}")
        self._notes = len(study.notes)
        for trial in study.trials:
            if trial.over and trial.number not in self._over:
                self._over.add(trial.number)
                self._tell_over(study, trial)

    def _tell_over(self, study: Any, trial: Any) -> None:
        """Print how a trial ended that failed; without a terminal, of every trial."""
        if self._live is None and not self._console.is_terminal or trial.status == "failed":
            values = study.space.values(trial.genome.config)
            values = ", ".join(f"{name} {value_text(value)}" for name, value in values.items())
            reason = f" ({trial.reason})" if trial.status == "failed" else ""
            score = number_text(trial.score())
            self._print(f"trial {trial.number} {trial.status} at step {trial.step:,}: {score}, {values}{reason}")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


class EvolutionTable(StudyTable):
    """A live table of the population of an evolution: give it to `evolution.run`. That of every complete generation
    stays above it, and is all that is printed where the output is no terminal."""

    _stays = False  # above it is that of the last generation
    _generation = 0  # the last one that was printed

    def _tell(self, evolution: Any) -> None:
        super()._tell(evolution)
        if evolution.generation > self._generation and not evolution.state.in_flight:
            self._generation = evolution.generation
            self._console.print(_grid(evolution, most=None))
            self._console.print()

    def _tell_over(self, evolution: Any, trial: Any) -> None:
        if trial.status == "failed":
            self._print(f"member {trial.number} failed at step {trial.step:,}: {trial.reason}")


def _grid(study: Any, most: int | None = ROWS) -> Any:
    """The table of a study. most: rows that are shown; None: all."""
    from rich.console import Group
    from rich.table import Table as Grid
    from rich.text import Text

    header, rows = study.table()
    grid = Grid(*header, box=None, header_style="bold", pad_edge=False)
    for row in rows[:most]:
        grid.add_row(*map(Text, row))
    left = f"; {len(rows) - most} more below" if most is not None and len(rows) > most else ""
    return Group(Text(f"{study.summary()}{left}"), grid)


def value_text(value: Any) -> str:
    """A hyperparameter as short text."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def number_text(value: float) -> str:
    """A score as short text; a dash where there is none."""
    return f"{value:.4g}" if np.isfinite(value) else "-"


def draw_parallel_coordinates(
    values: Mapping[str, Sequence[Any]], scores: Sequence[float], path: str | Path | None = None, title: str = ""
) -> Any:
    """A line for each configuration through its values, coloured by its score; the last axis is the score. Those that
    failed (not finite) are dotted and grey. Returns the matplotlib figure."""
    _check(values, scores)
    from matplotlib import colormaps

    found = np.array(scores, np.float64)
    finite = found[np.isfinite(found)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    axes_values = [_positions(name, column) for name, column in {**values, "score": list(found)}.items()]
    with picture(path, 1 if len(axes_values) < 5 else 2) as figure:
        axes = figure.subplots()
        for i in np.argsort(np.where(np.isfinite(found), found, -np.inf)):
            heights = [positions[int(i)] for _, positions, _ in axes_values]
            colour: Any = GREY
            style = ":"
            if np.isfinite(found[i]):
                colour, style = colormaps["viridis"]((found[i] - low) / (high - low) if high > low else 1.0), "-"
            axes.plot(range(len(heights)), heights, style, color=colour, linewidth=1.2, alpha=0.85)
        for place, (_, _, ticks) in enumerate(axes_values):
            axes.axvline(place, color="#444444", linewidth=0.8)
            for height, text in ticks:
                axes.annotate(
                    text, (place, height), (3, 2), textcoords="offset points", fontsize="small",
                    bbox={"boxstyle": "square,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.7},
                )  # fmt: skip
        count = f"{len(scores)} configuration{'s' if len(scores) > 1 else ''}"
        finish(axes, f"{title}: {count}, coloured by score" if title else f"{count}, coloured by score", steps=False)
        turned = {"rotation": 25, "ha": "right"} if len(axes_values) > 4 else {}
        axes.set_xticks(range(len(axes_values)), [name for name, _, _ in axes_values], **turned)
        axes.set_yticks([])
        axes.set_xlim(-0.1, len(axes_values) - 0.6)
        axes.spines["left"].set_visible(False)
    return figure


def _positions(name: str, column: Sequence[Any]) -> tuple[str, list[float], list[tuple[float, str]]]:
    """(what the axis is called, where each value is on it from 0 to 1, its ticks)."""
    if not _numeric(column):
        distinct = list(dict.fromkeys(map(str, column)))
        places = {text: i / max(1, len(distinct) - 1) for i, text in enumerate(distinct)}
        return name, [places[str(value)] for value in column], [(place, text) for text, place in places.items()]
    numbers = np.array(column, np.float64)
    known = np.unique(numbers[np.isfinite(numbers)])
    if not known.size:
        return name, [0.0] * len(numbers), []
    logarithmic = known[0] > 0 and known[-1] / known[0] > DECADES
    scale: Any = np.log if logarithmic else np.asarray
    low, high = float(scale(known[0])), float(scale(known[-1]))
    scaled = scale(np.where(np.isfinite(numbers), numbers, known[0]))
    if len(known) > TICKS:
        middle = np.sqrt(known[0] * known[-1]) if logarithmic else (known[0] + known[-1]) / 2
        known = np.array([known[0], middle, known[-1]])
    ticks = [(float(scale(value) - low) / (high - low or 1.0), f"{value:.3g}") for value in known]
    return f"{name}\n(logarithmic)" if logarithmic else name, ((scaled - low) / (high - low or 1.0)).tolist(), ticks


def _numeric(column: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in column)


def importance(values: Mapping[str, Sequence[Any]], scores: Sequence[float]) -> dict[str, float]:
    """For each hyperparameter, the share of the variance of the scores that lies between groups of its values: the
    correlation ratio, adjusted for the number of groups (Kelley 1935), and at least 0. Numbers are grouped by quarters.
    Of each alone: interactions are not seen. NaN where there is no variance, or each group has a single value.

    Scores that are not finite count as the lowest one that is.
    """
    _check(values, scores)
    found = np.array(scores, np.float64)
    finite = found[np.isfinite(found)]
    found = np.where(np.isfinite(found), found, finite.min() if finite.size else 0.0)
    return {name: _correlation_ratio(_groups(column), found) for name, column in values.items()}


def _groups(column: Sequence[Any]) -> np.ndarray:
    distinct = list(dict.fromkeys(map(str, column)))
    if not _numeric(column) or len(distinct) <= GROUPS:
        return np.array([distinct.index(str(value)) for value in column])
    order = np.argsort(np.argsort(np.array(column, np.float64), kind="stable"), kind="stable")
    return order * GROUPS // len(column)


def _correlation_ratio(groups: np.ndarray, scores: np.ndarray) -> float:
    total = float(((scores - scores.mean()) ** 2).sum())
    parts = [scores[groups == group] for group in np.unique(groups)]
    if total == 0 or not 1 < len(parts) < len(scores):
        return float("nan")
    within = float(sum(((part - part.mean()) ** 2).sum() for part in parts))
    return max(0.0, 1.0 - within / total * (len(scores) - 1) / (len(scores) - len(parts)))


def draw_importance(
    shares: Mapping[str, float], path: str | Path | None = None, title: str = "", configurations: int = 0
) -> Any:
    """A bar for each hyperparameter, the most important one on top. Returns the matplotlib figure. configurations: how
    many it is computed from."""
    known = {name: share for name, share in shares.items() if np.isfinite(share)}
    if not known:
        raise ConfigError(
            "The importance of hyperparameters needs several scores for some value. Try more configurations."
        )
    ordered = sorted(known.items(), key=lambda pair: pair[1])
    few = "only " if configurations < MANY else ""
    with picture(path) as figure:
        axes = figure.subplots()
        axes.barh([name for name, _ in ordered], [share for _, share in ordered], color=COLOURS[0])
        axes.set(xlim=(0, 1))
        from_these = f"importance, from {few}{configurations} configurations" if configurations else "importance"
        across = "share of the variance of scores between its values"
        finish(axes, f"{title}\n{from_these}" if title else from_these, across, steps=False)
    return figure


def _check(values: Mapping[str, Sequence[Any]], scores: Sequence[float]) -> None:
    if not scores or any(len(column) != len(scores) for column in values.values()):
        raise ConfigError("A study without scores has nothing to draw. Run it first.")


class MemberCurve(NamedTuple):
    """What is drawn of a member.

    number, parent: of the member and of the one that it is a copy of. born: its parent's step then. change: what the
    mutation changed. points: (step of the member, environment steps of all members and evaluations until then, fitness)
    of each evaluation. hyperparameters: by name. units: hidden units and filters of its networks.
    """

    number: int
    parent: int | None
    born: int
    change: str
    points: Sequence[tuple[int, int, float]]
    hyperparameters: Mapping[str, float]
    units: int


def draw_evolution(members: Sequence[MemberCurve], path: str | Path | None = None) -> Any:
    """Panels of fitness, network size, and each hyperparameter, as far as they differ between members, over environment
    steps of all members and of evaluations. The legend names the fittest members, others are grey. ConfigError where
    nothing was evaluated."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

    _check_evaluated(members)
    held = {"hidden units and filters": [float(member.units) for member in members]}
    held |= {name: [m.hyperparameters[name] for m in members] for name in members[0].hyperparameters}
    held = {name: values for name, values in held.items() if len(set(values)) > 1}
    by_number = {member.number: member for member in members}
    best = {f"member {m.number}": max((value for *_, value in m.points), default=-math.inf) for m in members}
    names = named(best, {}, COLOURS[:-1])
    (columns, rows), times = grid(1 + len(held)), sorted({at for member in members for _, at, _ in member.points})
    with picture(path, columns, rows) as figure:
        panels = figure.subplots(rows, columns, squeeze=False).reshape(-1)
        for axes in panels[1 + len(held) :]:
            axes.remove()
        order = list(names)
        for i, member in sorted(enumerate(members), key=lambda each: order.index(f"member {each[1].number}")):
            colour, label = names[f"member {member.number}"]
            look = {"color": colour, "markersize": 3, "linewidth": 1.2, "zorder": 1 if colour == GREY else 2}
            # (environment steps of all, fitness) of a member, from the evaluation of its parent on that it is a copy of
            own = [(at, value) for _, at, value in member.points if math.isfinite(value)]
            if member.parent is not None:
                before = [(at, value) for step, at, value in by_number[member.parent].points if step <= member.born]
                own = before[-1:] + own
            fitness = own or [(0, math.nan)]
            panels[0].plot(*zip(*fitness, strict=True), "o-", label=label, **look)
            for axes, values in zip(panels[1:], held.values(), strict=False):
                axes.plot([at for at, _ in fitness], [values[i]] * len(fitness), "o-", **look)
        highest = [max(value for m in members for _, at, value in m.points if at <= time) for time in times]
        panels[0].step(times, highest, where="post", color=GREY, linewidth=1.0, linestyle="--", label="highest so far")
        across = "steps of all members\nand evaluations"
        finish(panels[0], "fitness of the members", across, "mean return of an evaluation")
        for axes, (name, values) in zip(panels[1:], held.items(), strict=False):
            finish(axes, name, across)
            # A logarithmic axis for numbers far apart, which says so; whole numbers have whole ticks
            whole = all(float(value).is_integer() for value in values)
            if min(values) > 0 and max(values) > 3 * min(values):
                axes.set_yscale("log", base=2 if whole else 10)
                axes.set_ylabel("logarithmic")
                axes.yaxis.set_minor_formatter(NullFormatter())
                if whole:
                    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            elif whole:
                axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
            else:
                axes.yaxis.set_major_formatter("{x:.3g}")
        legend(figure)
    return figure


def draw_lineage(members: Sequence[MemberCurve], path: str | Path | None = None) -> Any:
    """A line for each member, over its own environment steps, coloured by fitness; that of a copy begins at its
    parent's. ConfigError where nothing was evaluated."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    _check_evaluated(members)
    rows = {number: row for row, number in enumerate(_in_order(members))}
    values = [value for member in members for _, _, value in member.points if math.isfinite(value)]
    low, high = min(values), max(values)
    scale = Normalize(low, high) if high > low else Normalize(low - 1, high + 1)  # all equal: the colour of the middle
    coloured: Any = ScalarMappable(scale, colormaps["viridis"])
    with picture(path) as figure:
        figure.set_size_inches(6.4, max(3.0, 0.24 * len(members) + 1.2))
        axes = figure.subplots()
        for member in members:
            row, before = rows[member.number], member.born
            if member.parent is not None:
                axes.plot([before, before], [rows[member.parent], row], color=GREY, linewidth=0.8, zorder=1)
            for step, _, value in member.points:
                colour = coloured.to_rgba(value if math.isfinite(value) else low)
                axes.plot([before, step], [row, row], color=colour, linewidth=3.5, solid_capstyle="butt", zorder=2)
                before = step
            label = f" {member.number}" + (f": {member.change}" if member.change else "")
            axes.annotate(label, (before, row), fontsize="small", va="center")
        finish(axes, "Lineage: number of each member, and what changed", "steps of a member")
        axes.set(yticks=[])
        axes.spines["left"].set_visible(False)
        axes.set_xlim(0, 1.6 * max(step for member in members for step, *_ in member.points))  # room for labels
        ticks = None if high > low else [low]
        figure.colorbar(coloured, ax=axes, label="fitness: mean return of an evaluation", ticks=ticks)
    return figure


def _check_evaluated(members: Sequence[MemberCurve]) -> None:
    if not any(math.isfinite(value) for member in members for _, _, value in member.points):
        raise ConfigError("No member was evaluated yet, so that there is nothing to draw. Run the evolution first.")


def _in_order(members: Sequence[MemberCurve]) -> list[int]:
    """Numbers so that children follow their parents."""
    children: dict[int | None, list[int]] = {}
    for member in members:
        children.setdefault(member.parent, []).append(member.number)
    found: list[int] = []
    waiting = list(reversed(children.get(None, [])))
    while waiting:
        number = waiting.pop()
        found.append(number)
        waiting += reversed(children.get(number, []))
    return found


LINE_SECONDS = 10.0


class SweepProgress(LiveOutput):
    """A progress bar over the environment steps of all runs of a sweep, with the mean return of their last episodes:
    give it to `sweep.run`. Where the output is no terminal, a line every ten seconds.

    console: a `rich.console.Console`; by default one on the standard error stream, also in a notebook.
    """

    def __init__(self, console: Any = None, clock: Callable[[], float] = time.monotonic):
        super().__init__(console, clock)
        self._began, self._over, self._notes = clock(), False, 0
        self._first: int | None = None  # steps that had been taken before

    def __call__(self, sweep: Any) -> None:
        for text in sweep.notes[self._notes :]:
            self._console.print(text, style="yellow", markup=False, soft_wrap=True)
        self._notes = len(sweep.notes)
        self._begin()
        now, total = self._clock(), sweep.steps * len(sweep.seeds)
        done = sum(at.step for at in sweep.at.values())
        self._first = done if self._first is None else self._first
        over = done >= total and not self._over
        if (now < self._next or self._over) and not over:
            return
        self._over = over
        self._next = now + (LINE_SECONDS if self._live is None else REDRAW_SECONDS)
        means = [at.mean for at in sweep.at.values() if at.mean is not None]
        rate = (done - self._first) / max(1e-9, now - self._began)
        left = f"  {(total - done) / rate:,.0f} s left" if rate else ""
        mean = number_text(sum(means) / len(means)) if means else "-"
        text = f"{len(sweep.seeds)} seeds  step {done:,} of {total:,}  return {mean}  {rate:,.0f} steps/s{left}"
        if self._live is None:
            self._console.print(text, markup=False, soft_wrap=True)
        else:
            from rich.console import Group
            from rich.progress_bar import ProgressBar
            from rich.text import Text

            self._live.update(Group(Text(text), ProgressBar(total, done)), refresh=True)
