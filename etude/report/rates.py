"""Curves over learning rates, as a learning-rate finder draws them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from etude.report.pictures import COLOURS, finish, legend, picture


class RatePanel(NamedTuple):
    """What is drawn over learning rates: values [n] at rates [n], and their smoothed curve, where there is one.

    y_lim: ends of the vertical axis; None: those of the values.
    """

    label: str
    rates: np.ndarray
    values: np.ndarray
    smoothed: np.ndarray | None = None
    y_lim: tuple[float, float] | None = None


def draw_rates(
    panels: Sequence[RatePanel], suggested: float | None = None, path: str | Path | None = None, title: str = ""
) -> Any:
    """Each over learning rates on a logarithmic axis, with the suggested rate. Written to `path`, or shown in a window;
    returns the matplotlib figure."""
    with picture(path, 1, len(panels), window=True) as figure:
        for axes, panel in zip(figure.subplots(len(panels), squeeze=False, sharex=True)[:, 0], panels, strict=True):
            look = {} if panel.smoothed is None else {"alpha": 0.3, "linewidth": 0.8}
            axes.plot(panel.rates, panel.values, color=COLOURS[0], **look)
            if panel.smoothed is not None:
                axes.plot(panel.rates[: len(panel.smoothed)], panel.smoothed, color=COLOURS[0], label="smoothed")
            if suggested is not None:
                axes.axvline(suggested, color=COLOURS[1], linestyle="--", label=f"suggested: {suggested:.2g}")
            finish(axes, "", "", panel.label, steps=False)
            axes.set(xscale="log", ylim=panel.y_lim)
        figure.axes[0].set_title(title)
        figure.axes[-1].set_xlabel("learning rate (logarithmic)")
        legend(figure)
    return figure
