"""Which runs are seeds of one configuration, and what their line in a picture is called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from etude.base.errors import ConfigError
from etude.report.series import Series

NAMED = 3  # differences that a label names; it counts the others


class Line(NamedTuple):
    """Runs that differ in their seeds alone, one for each seed, and what to call them."""

    label: str
    runs: tuple[Series, ...]


def lines_of(runs: Iterable[Series], labels: Sequence[str] = ()) -> tuple[list[Line], list[str]]:
    """(the lines of a panel, what a reader should know). A line for each algorithm and configuration; with `labels`,
    one for each run, a line for each label. Of runs with one seed the longest is drawn."""
    groups: dict[Any, list[Series]] = {}
    for i, run in enumerate(runs):
        key = labels[i] if labels else (run.algorithm, *sorted(run.configuration.items()))
        groups.setdefault(key, []).append(run)
    notes: list[str] = []
    distinct = {key: _one_for_each_seed(group, notes) for key, group in groups.items()}
    firsts = [group[0] for group in distinct.values()]
    return [Line(key if labels else _label(group[0], firsts), tuple(group)) for key, group in distinct.items()], notes


def lines_in(runs: Sequence[Series], labels: Sequence[str] = ()) -> tuple[dict[str, list[Line]], list[str]]:
    """(the lines of each environment's panel, notes): see `lines_of`."""
    if labels and len(labels) != len(runs):
        raise ConfigError(f"{len(labels)} labels for {len(runs)} runs; expected one for each, in their order.")
    lines, notes = {}, []
    for environment in sorted({run.environment for run in runs}):
        here = [i for i, run in enumerate(runs) if run.environment == environment]
        lines[environment], found = lines_of([runs[i] for i in here], [labels[i] for i in here] if labels else ())
        notes += found
    return lines, notes


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


def _label(run: Series, firsts: Sequence[Series]) -> str:
    """The algorithm, and where other lines of it differ, in what."""
    alike = [other.configuration for other in firsts if other.algorithm == run.algorithm]
    names = dict.fromkeys(name for configuration in alike for name in configuration)
    differing = [name for name in names if len({configuration.get(name) for configuration in alike}) > 1]
    words = [f"{name}={run.configuration.get(name, 'none')}" for name in differing[:NAMED]]
    more = [f"and {len(differing) - NAMED} more"] if len(differing) > NAMED else []
    return " ".join([run.algorithm, *words, *more])
