"""Tables as the pages have them, and the titles of the algorithms' pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

NOTE = "<!-- Written by docs/generate.py. Change that, not this. -->\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def escaped(text: str) -> str:
    """Plain text for Markdown: its asterisks are no emphasis. Code stays as it is."""
    return re.sub(r"(`[^`]*`)|\*", lambda found: found[1] or r"\*", text)


def title(algorithm: str) -> str:
    """How an algorithm is written, as the heading of its page has it."""
    page = Path(__file__).parent / "algorithms" / f"{algorithm}.md"
    return page.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ")
