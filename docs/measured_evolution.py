"""What benchmarks.md says of evolution: tables from benchmarks/evolution.json, where there is one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from markdown_table import table
from measured import NOT_MEASURED, read

STARTS = {"0.1": "a tenth of the preset's", "1.0": "the preset's", "10.0": "ten times the preset's"}


def evolution(part: str, head: Sequence[str]) -> str:
    """A table of one part, a row for each group of seeds. head: of the columns that name the group."""
    held = read("evolution").get("cells", {})
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for key, cell in held.items():
        kind, *name, seed = key.split("/")
        if kind == part and int(seed) < 100:
            groups.setdefault(tuple(name), []).append(cell)
    if not groups:
        return NOT_MEASURED
    weighed = any("megabytes" in cell for cells in groups.values() for cell in cells)
    rows = [
        [*(STARTS.get(word, word) for word in name), *_reached(cells), *([_most(cells)] if weighed else [])]
        for name, cells in sorted(groups.items())
    ]
    return table([*head, "seeds that reach it", "steps", "seconds", *(["most MB"] if weighed else [])], rows)


def _reached(cells: list[dict[str, Any]]) -> list[str]:
    reached = sum(cell["reached"] for cell in cells)
    spreads = [_spread([cell[what] for cell in cells]) if reached else "" for what in ("steps", "seconds")]
    return [f"{reached} of {len(cells)}", *spreads]


def _spread(found: list[float | None]) -> str:
    values = [math.inf if value is None else value for value in found]
    return f"{_text(statistics.median(values))} ({_text(min(values))} to {_text(max(values))})"


def _text(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else "never"


def _most(cells: list[dict[str, Any]]) -> str:
    return f"{max(cell['megabytes'] for cell in cells):.0f}"
