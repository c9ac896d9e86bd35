"""An extension of griffe: in docstrings, lines such as `steps: how many` become a list on the site."""

from __future__ import annotations

import re
from typing import Any

import griffe

ITEM = re.compile(r"^(\*{0,2}\w+): ")


class DocstringLists(griffe.Extension):
    """Rewrites the docstring of every object that is loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)


def listed(text: str) -> str:
    """A docstring in which each run of `name: ...` lines, and what is indented below them, is a list in Markdown."""
    lines: list[str] = []
    within = False
    for line in text.splitlines():
        if match := ITEM.match(line):
            if not within and lines and lines[-1]:
                lines.append("")
            line, within = f"- **`{match[1]}`**: {line[match.end() :]}", True
        elif within and line and not line.startswith(" ") and (not lines[-1] or lines[-1].endswith(".")):
            within = False
            lines.append("")
        lines.append(line)
    return "\n".join(lines)
