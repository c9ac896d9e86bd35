"""What a cell of a notebook shows, updated in place. IPython is used where it runs and never imported otherwise."""

from __future__ import annotations

import html
import importlib
import io
import sys
from collections.abc import Sequence
from typing import Any

COLUMNS = 100


def table_as_html(title: str, header: Sequence[str], lines: Sequence[Sequence[str]], most: int = 20) -> str:
    """A line of text and a table of text below it, for what a cell returns; of its lines, the first `most`."""
    rows = [("th", header), *(("td", line) for line in lines[:most])] if lines else []
    cells = ("".join(f"<{kind}>{html.escape(cell)}</{kind}>" for cell in row) for kind, row in rows)
    left = f"<div>and {len(lines) - most} more</div>" if len(lines) > most else ""
    table = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<div><code>{html.escape(title)}</code></div><table>{table}</table>{left}"


def in_notebook() -> bool:
    """Whether this is code of a cell, in Jupyter or what is built on it."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return any(base.__name__ == "ZMQInteractiveShell" for base in type(shell).__mro__)


def show_figures(kind: type) -> None:
    """Let cells show figures of this class of matplotlib also where pyplot, which sees to it, is not imported."""
    ipython = sys.modules["IPython"].get_ipython()
    if not any(kind in each.type_printers for each in ipython.display_formatter.formatters.values()):
        importlib.import_module("IPython.core.pylabtools").select_figure_formats(ipython, {"png"})


class CellOutput:
    """One output of a cell, where a terminal has a `rich.live.Live`. title: its first line, in rich's markup."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._display = importlib.import_module("IPython.display").display
        self._handle: Any = None

    def update(self, renderable: Any, refresh: bool = True) -> None:
        """Show this in the place of what was shown before."""
        data = _rendered(self._title, renderable)
        if self._handle is None:
            self._handle = self._display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)

    def stop(self) -> None:
        """Leave what is shown."""


def _rendered(*parts: Any) -> dict[str, str]:
    """One below the other, as HTML and as text, by media type."""
    from rich.console import Console
    from rich.jupyter import JUPYTER_HTML_FORMAT

    console = Console(
        file=io.StringIO(), record=True, width=COLUMNS, force_jupyter=False, force_terminal=True,
        color_system="truecolor", highlight=False,
    )  # fmt: skip
    console.print(*parts, sep="\n")
    html = console.export_html(code_format=JUPYTER_HTML_FORMAT, inline_styles=True, clear=False)
    return {"text/html": html, "text/plain": console.export_text()}
