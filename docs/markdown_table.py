"""Tables as the pages have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NOTE = "<!-- Written by docs/generate.py. Change that, not this. -->\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
