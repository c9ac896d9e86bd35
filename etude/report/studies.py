"""Studies as tables and pictures. What is drawn is plain data, by name of hyperparameter."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from etude.base.errors import ConfigError
from etude.report.notebook import CellOutput, in_notebook
from etude.report.pictures import COLOURS, GREY, finish, picture
from etude.report.streams import Lasting

REDRAW_SECONDS = 0.5
ROWS = 12  # of the live table
WIDE = 1_000  # characters in a line of a file
GROUPS = 4  # of a hyperparameter's numbers, for its importance
DECADES = 10.0  # numbers further apart than this factor are drawn on a logarithmic axis
TICKS = 8  # values of a hyperparameter that are all named; of more, the ends and the middle
MANY = 30  # configurations of which importance says something


class StudyTable:
    """A live table of a study: give it to `study.run`. Where the output is no terminal, a line for every trial that
    ends.

    console: a `rich.console.Console`; by default one on the standard error stream.
    """

    _stays = True  # when the study is over

    def __init__(self, console: Any = None, clock: Callable[[], float] = time.monotonic):
        from rich.console import Console

        in_cell = console is None and in_notebook()
        self._console = console or Console(file=cast(Any, Lasting(sys.stderr)), highlight=False, force_jupyter=False)
        if console is None and not self._console.is_terminal:
            self._console.width = WIDE
        self._clock, self._next, self._over, self._notes = clock, 0.0, set[int](), 0
        self._live: Any = CellOutput("study") if in_cell else None

    def __call__(self, study: Any) -> None:
        from rich.live import Live

        self._tell(study)
        if self._live is None and self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=not self._stays)
            self._live.start()
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
            values = named(study.space.values(trial.genome.config))
            reason = f" ({trial.reason})" if trial.status == "failed" else ""
            score = number_text(trial.score())
            self._print(f"trial {trial.number} {trial.status} at step {trial.step:,}: {score}, {values}{reason}")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Give the terminal back. May be called twice."""
        if self._live is not None:
            self._live.stop()
            self._live = None


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


def named(values: Mapping[str, Any]) -> str:
    """Hyperparameters in a line."""
    return ", ".join(f"{name} {value_text(value)}" for name, value in values.items())


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
