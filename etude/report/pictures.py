"""How pictures look: size, fonts, colours, the legend, and the file. No display is needed. Also what cells of notebooks
show: IPython is used where it runs and never imported otherwise."""

from __future__ import annotations

import html
import importlib
import io
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from etude.base.errors import ConfigError
from etude.checkpoint import replacing

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


# Okabe & Ito 2008, "Color universal design": told apart with every kind of colour vision, and in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREY = "#999999"  # of what the legend does not name
ENTRIES = len(COLOURS) + 1  # of a legend at most: the highest lines, and one for all others
FORMATS = ("png", "svg", "pdf")
Style = Literal["screen", "paper"]

SAMPLE = 8  # characters as wide as the sample of a colour in a legend
WIDE = 6.6  # inches of several panels side by side: their text is readable in 400 pixels
_LOOK: dict[str, Any] = {
    "axes.grid": True, "grid.alpha": 0.3, "grid.linewidth": 0.6, "axes.spines.top": False, "axes.spines.right": False,
    "axes.titlesize": "medium", "legend.frameon": False, "legend.fontsize": "small", "legend.title_fontsize": "small",
    "xtick.labelsize": "small", "ytick.labelsize": "small", "figure.constrained_layout.use": True,
    "pdf.fonttype": 42, "svg.fonttype": "none",
}  # fmt: skip
STYLES: dict[Style, dict[str, Any]] = {
    "screen": {"figure.figsize": (5.0, 3.0), "figure.dpi": 192, "font.size": 10.0, "lines.linewidth": 1.8},
    # A column of most proceedings, and a font that goes with Times.
    "paper": {
        "figure.figsize": (3.3, 2.1), "figure.dpi": 300, "font.size": 8.0, "lines.linewidth": 1.2,
        "font.family": "STIXGeneral", "mathtext.fontset": "stix",
    },
}  # fmt: skip


@contextmanager
def picture(
    path: str | Path | None, columns: int = 1, rows: int = 1, style: Style = "screen", window: bool = False
) -> Iterator[Any]:
    """A matplotlib figure in the size of so many panels; what is drawn within the context has its style. At its end it
    is written to `path`, where there is one. window: without a path it is shown."""
    if style not in STYLES:
        raise ConfigError(f"style = {style!r}; expected {' or '.join(STYLES)}.")
    from matplotlib import rc_context

    look: Any = {**_LOOK, **STYLES[style]}
    with rc_context(look):
        if path is None and window:
            from matplotlib import pyplot  # the only place that opens windows

            figure: Any = pyplot.figure()
        else:
            from matplotlib.figure import Figure  # without pyplot: no global state, no window, no display

            if in_notebook():
                ipython = sys.modules["IPython"].get_ipython()  # pyplot, which sees to it, is not imported
                if not any(Figure in each.type_printers for each in ipython.display_formatter.formatters.values()):
                    importlib.import_module("IPython.core.pylabtools").select_figure_formats(ipython, {"png"})
            figure = Figure()
        width, height = figure.get_size_inches()
        figure.set_size_inches(width if columns == 1 else WIDE, height * rows)
        yield figure
        if path is None:
            if window:
                figure.show()
            return
        kind = Path(path).suffix.lstrip(".").lower() or FORMATS[0]
        if kind not in FORMATS:
            raise ConfigError(f"The picture {path} is none that etude writes; expected .png, .svg or .pdf.")
        with replacing(Path(path)) as file:  # whole, so that a viewer never sees half of one; the same bytes each time
            figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else None)


def grid(panels: int) -> tuple[int, int]:
    """(columns, rows) of so many panels."""
    return min(2, panels), -(-panels // 2)


def legend(figure: Any, title: str = "") -> None:
    """Name the lines of all panels below them, each label once; the figure grows by it. title: what they show."""
    from matplotlib import rcParams

    found: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if not found:
        return
    (width, height), size = figure.get_size_inches(), rcParams["font.size"] * 0.83 / 72  # of "small" text, in inches
    room = int(width / (0.55 * size)) - SAMPLE
    columns = min(len(found), max(1, (room + SAMPLE) // (max(map(len, found), default=0) + SAMPLE)))
    labels = [textwrap.fill(label, room) for label in found]
    title = textwrap.fill(title, room)
    lines = sum(label.count("\n") + 1 for label in labels) / columns + (title.count("\n") + 1 if title else 0)
    figure.set_size_inches(width, height + (lines + 1) * 1.5 * size)
    drawn = figure.legend(
        found.values(), labels, loc="outside lower left", ncols=columns, title=title, alignment="left"
    )
    for handle in drawn.legend_handles:
        handle.set_alpha(1)


def finish(axes: Any, title: str = "", across: str = "", up: str = "", steps: bool = True) -> None:
    """Name a panel and its axes. steps: whether numbers of steps are across."""
    from matplotlib.ticker import EngFormatter

    axes.set(title=title, xlabel=across, ylabel=up)
    if steps:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_xlim(left=0)
