"""The pictures of README.md and benchmarks.md: learning curves, and speed beside other libraries."""

from __future__ import annotations

import shutil
from pathlib import Path

import compared
import numpy as np
from markdown_table import title
from matplotlib.ticker import MaxNLocator
from measured import BENCHMARKS, HERE, curves

from etude.report.pictures import COLOURS, finish, legend, picture
from etude.report.series import aggregate

FIGURES = HERE / "figures"
DRAWN = ("defaults.png", "evolution.svg", "simultaneous.svg")  # by the benchmarks themselves
PANELS = {
    "CartPole-v1": ("dqn", "ppo", "rainbow"),
    "LunarLander-v3": ("ppo", "rainbow"),
    "HalfCheetah-v5": ("sac", "td3"),
}
ALGORITHMS = tuple(dict.fromkeys(algorithm for algorithms in PANELS.values() for algorithm in algorithms))  # by colour
SHOWN_STEPS = {"CartPole-v1": 50_000}  # where the fastest algorithms have long finished before the slowest


def learning(path: Path) -> None:
    """Mean and range over seeds of the training return, a panel for each environment."""
    with picture(path, columns=len(PANELS)) as figure:
        for axes, (environment, algorithms) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
            for algorithm in algorithms:
                colour = COLOURS[ALGORITHMS.index(algorithm)]
                (runs,) = [r for name, r in curves(algorithm).items() if name.stem == f"{algorithm}_{environment}"]
                steps, mean, low, high = aggregate([run.curve() for run in runs], "range", "mean")
                axes.plot(steps, mean, color=colour, label=title(algorithm))
                axes.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0)
            finish(axes, f"{environment}\n{len(runs)} seeds", "environment steps")
            axes.set_xlim(0, SHOWN_STEPS.get(environment))
            axes.xaxis.set_major_locator(MaxNLocator(3))
        figure.axes[0].set_ylabel("smoothed training return")
        legend(figure, "mean of the seeds; shaded: their range")


def speed(path: Path) -> None:
    """How many times as many environment steps per second etude takes, a group of bars for each algorithm."""
    rows: dict[str, dict[str, float]] = {}
    for row in compared.rows():
        shown = rows.setdefault(f"{row.algorithm}, {row.environment}", {})
        shown |= {library: ratio["median"] for library, ratio in row.ratios.items()}
    with picture(path, columns=2, rows=2) as figure:
        axes = figure.subplots()
        for i, library in enumerate(compared.COLUMNS):
            places = [place for place, found in enumerate(rows.values()) if library in found]
            widths = [found[library] for found in rows.values() if library in found]
            # A group is as high as the libraries that it has bars of, and centred on its name.
            beside = [_offset(found, library) for found in rows.values() if library in found]
            bars = axes.barh(np.add(places, beside), widths, 0.26, color=COLOURS[i], label=f"against {library}")
            axes.bar_label(bars, fmt="%.3g", fontsize="small", padding=2)
        axes.axvline(1.0, color="black", linewidth=0.8)
        finish(axes, "Environment steps per second", "times as fast", steps=False)
        axes.set(yticks=range(len(rows)), yticklabels=list(rows))
        axes.invert_yaxis()
        legend(figure)


def _offset(found: dict[str, float], library: str) -> float:
    present = [each for each in compared.COLUMNS if each in found]
    return (present.index(library) - (len(present) - 1) / 2) * 0.28


def draw() -> None:
    """Write the pictures."""
    FIGURES.mkdir(exist_ok=True)
    learning(FIGURES / "learning.png")
    speed(FIGURES / "speed.png")
    for name in DRAWN:
        if (BENCHMARKS / name).exists():
            shutil.copy(BENCHMARKS / name, FIGURES)
