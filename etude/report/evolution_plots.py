"""Pictures of an evolving population. All return the matplotlib figure, and write it to `path` where one is given."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from etude.base.errors import ConfigError
from etude.report.pictures import COLOURS, GREY, finish, grid, legend, picture
from etude.report.plots import named


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
    _check(members)
    held = {"hidden units and filters": [float(member.units) for member in members]}
    held |= {name: [m.hyperparameters[name] for m in members] for name in members[0].hyperparameters}
    held = {name: values for name, values in held.items() if len(set(values)) > 1}
    by_number = {member.number: member for member in members}
    best = {f"member {m.number}": max((value for *_, value in m.points), default=-math.inf) for m in members}
    names = named(best, {}, COLOURS[:-1])
    (columns, rows), times = grid(1 + len(held)), _times(members)
    with picture(path, columns, rows) as figure:
        panels = figure.subplots(rows, columns, squeeze=False).reshape(-1)
        for axes in panels[1 + len(held) :]:
            axes.remove()
        order = list(names)
        for i, member in sorted(enumerate(members), key=lambda each: order.index(f"member {each[1].number}")):
            colour, label = names[f"member {member.number}"]
            look = {"color": colour, "markersize": 3, "linewidth": 1.2, "zorder": 1 if colour == GREY else 2}
            fitness = _with_birth(member, by_number)
            panels[0].plot(*zip(*fitness, strict=True), "o-", label=label, **look)
            for axes, values in zip(panels[1:], held.values(), strict=False):
                axes.plot([at for at, _ in fitness], [values[i]] * len(fitness), "o-", **look)
        highest = [max(value for m in members for _, at, value in m.points if at <= time) for time in times]
        panels[0].step(times, highest, where="post", color=GREY, linewidth=1.0, linestyle="--", label="highest so far")
        across = "environment steps of all\nmembers and evaluations"
        finish(panels[0], "fitness of the members", across, "mean return of an evaluation")
        for axes, (name, values) in zip(panels[1:], held.items(), strict=False):
            finish(axes, name, across)
            _scale(axes, values)
        legend(figure)
    return figure


def _scale(axes: Any, values: Sequence[float]) -> None:
    """A logarithmic axis for numbers far apart, which says so; whole numbers have whole ticks."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

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


def draw_lineage(members: Sequence[MemberCurve], path: str | Path | None = None) -> Any:
    """A line for each member, over its own environment steps, coloured by fitness; that of a copy begins at its
    parent's. ConfigError where nothing was evaluated."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    _check(members)
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
        finish(axes, "Lineage: number of each member, and what changed", "environment steps of a member")
        axes.set(yticks=[])
        axes.spines["left"].set_visible(False)
        axes.set_xlim(0, 1.6 * max(step for member in members for step, *_ in member.points))  # room for labels
        ticks = None if high > low else [low]
        figure.colorbar(coloured, ax=axes, label="fitness: mean return of an evaluation", ticks=ticks)
    return figure


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
