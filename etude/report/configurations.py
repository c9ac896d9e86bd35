"""Which runs are seeds of one configuration, and what their line in a picture is called."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from etude.base.errors import ConfigError
from etude.report.series import Series, common_quantity

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
