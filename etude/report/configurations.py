"""Which runs are seeds of one configuration, and what their line in a picture is called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from etude.report.plots import Series

NAMED = 3  # differences that a label names; it counts the others

# What a run's description says besides these does not change what is learned, or differs from seed to seed.
_LEARNED_FROM = ("config", "explorer", "policies", "data", "env_args", "wrappers")


class Line(NamedTuple):
    """Runs that differ in their seeds alone, one for each seed, and what to call them."""

    label: str
    runs: tuple[Series, ...]


def configuration(description: Mapping[str, Any]) -> dict[str, str]:
    """What a run learned with, flat, without its seed: {"learning_rate": "0.001", "network.widths": "[64, 64]", ...}."""
    flat = {"environments": str(description.get("setup", {}).get("environments", "?"))}
    flat["steps"] = str(description.get("steps", "environment"))
    for name in _LEARNED_FROM:
        flat |= _flat(description.get(name), "" if name == "config" else name)
    return flat


def _flat(value: Any, place: str) -> dict[str, str]:
    if isinstance(value, Mapping):
        prefix = f"{place}." if place else ""
        return {name: text for key, part in value.items() for name, text in _flat(part, f"{prefix}{key}").items()}
    return {} if value is None else {place: str(value)}


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
    return [
        Line(key if labels else _label(group[0], firsts), tuple(group)) for key, group in distinct.items()
    ], notes


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
