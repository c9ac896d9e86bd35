"""Pictures of an evolving population."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from etude.base.errors import ConfigError
from etude.report.plots import COLOURS, new_figure, write_figure


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


def draw_evolution(members: Sequence[MemberCurve], path: str | Path) -> None:
    """Panels of fitness, network size, and each hyperparameter that differs between members, over environment steps of
    all members and of evaluations. Writes a PNG; ConfigError where nothing was evaluated."""
    _check(members)
    names = [name for name in members[0].hyperparameters if len({m.hyperparameters.get(name) for m in members}) > 1]
    figure, rows = new_figure(2), 1 + (1 + len(names)) // 2
    figure.set_size_inches(12.8, 4.0 * rows)
    panels = list(figure.subplots(rows, 2, squeeze=False).reshape(-1))
    for axes in panels[2 + len(names) :]:
        axes.remove()
    panels = panels[: 2 + len(names)]
    by_number = {member.number: member for member in members}
    for member in members:
        colour = COLOURS[member.number % len(COLOURS)]
        fitness = _with_birth(member, by_number)
        panels[0].plot(*zip(*fitness, strict=True), "o-", color=colour, linewidth=1.2, markersize=3, alpha=0.8)
        span = [at for at, _ in fitness]
        for axes, value in zip(panels[1:], [member.units, *(member.hyperparameters[n] for n in names)], strict=True):
            axes.plot(span, [value] * len(span), "-", color=colour, linewidth=1.6, alpha=0.8)
    best = [max(point[2] for m in members for point in m.points if point[1] <= at) for at in _times(members)]
    panels[0].step(_times(members), best, where="post", color="#000000", linewidth=1.0, linestyle="--", label="best")
    panels[0].legend(frameon=False, fontsize="small")
    for axes, label in zip(panels, ["fitness", "hidden units and filters", *names], strict=True):
        _finish(axes, "environment steps of all members and evaluations", label)
    for axes, name in zip(panels[2:], names, strict=True):
        values = [member.hyperparameters[name] for member in members]
        if min(values) > 0 and max(values) > 3 * min(values):
            axes.set_yscale("log")
    write_figure(figure, path)


def draw_lineage(members: Sequence[MemberCurve], path: str | Path) -> None:
    """A line for each member, over its own environment steps, coloured by fitness; that of a copy begins at its
    parent's. Writes a PNG; ConfigError where nothing was evaluated."""
    from matplotlib import colormaps

    _check(members)
    rows = {number: row for row, number in enumerate(_in_order(members))}
    values = [value for member in members for _, _, value in member.points if math.isfinite(value)]
    low, high = min(values), max(values)
    figure = new_figure(1)
    figure.set_size_inches(9.0, max(3.0, 0.24 * len(members) + 1.0))
    axes, colours = figure.subplots(), colormaps["viridis"]
    for member in members:
        row, before = rows[member.number], member.born
        if member.parent is not None:
            axes.plot([before, before], [rows[member.parent], row], color="#999999", linewidth=0.8, zorder=1)
        for step, _, value in member.points:
            share = (value - low) / (high - low) if high > low and math.isfinite(value) else 0.0
            axes.plot([before, step], [row, row], color=colours(share), linewidth=3.5, solid_capstyle="butt", zorder=2)
            before = step
        label = f" {member.number}" + (f": {member.change}" if member.change else "")
        axes.annotate(label, (before, row), fontsize=6, va="center")
    axes.set(yticks=[])
    axes.spines["left"].set_visible(False)
    axes.set_xlim(0, 1.25 * max(step for member in members for step, *_ in member.points))  # room for labels
    _finish(axes, "environment steps of a member", "")
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    figure.colorbar(ScalarMappable(Normalize(low, high), colours), ax=axes, label="fitness")
    write_figure(figure, path)


def _check(members: Sequence[MemberCurve]) -> None:
    if not any(math.isfinite(value) for member in members for _, _, value in member.points):
        raise ConfigError("No member was evaluated yet, so that there is nothing to draw. Run the evolution first.")


def _times(members: Sequence[MemberCurve]) -> list[int]:
    return sorted({at for member in members for _, at, _ in member.points})


def _with_birth(member: MemberCurve, by_number: Mapping[int, MemberCurve]) -> list[tuple[int, float]]:
    """(environment steps of all, fitness) of a member, from the evaluation of its parent on that it is a copy of."""
    own = [(at, value) for _, at, value in member.points if math.isfinite(value)]
    if member.parent is not None:
        before = [(at, value) for step, at, value in by_number[member.parent].points if step <= member.born]
        own = before[-1:] + own
    return own or [(0, math.nan)]


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


def _finish(axes: Any, across: str, up: str) -> None:
    from matplotlib.ticker import EngFormatter

    axes.set(xlabel=across, ylabel=up)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(True, alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
