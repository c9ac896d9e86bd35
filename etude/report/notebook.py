"""What a cell of a notebook shows, updated in place. IPython is used where it runs and never imported otherwise."""

from __future__ import annotations

import importlib
import io
import sys
from typing import Any

COLUMNS = 100


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
