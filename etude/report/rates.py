"""Curves over learning rates, as a learning-rate finder draws them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from etude.report.plots import COLOURS, new_figure, new_window, write_figure


def draw_rates(
    rates: np.ndarray,
    values: np.ndarray,
    label: str,
    suggested: float | None = None,
    y_lim: tuple[float, float] | None = None,
    path: str | Path | None = None,
) -> Any:
    """Values [n] over learning rates [n] on a logarithmic axis, and the suggested rate. Written to `path`, or shown in
    a window; returns the matplotlib figure."""
    figure = new_figure(1) if path is not None else new_window(1)
    axes = figure.subplots()
    axes.plot(rates, values, color=COLOURS[0], linewidth=1.6)
    if suggested is not None:
        axes.axvline(suggested, color=COLOURS[1], linestyle="--", label=f"suggested: {suggested:.2g}")
        axes.legend(frameon=False, fontsize="small")
    axes.set(xscale="log", xlabel="learning rate", ylabel=label)
    if y_lim is not None:
        axes.set_ylim(*y_lim)
    axes.grid(True, alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if path is None:
        figure.show()
    else:
        write_figure(figure, path)
    return figure
