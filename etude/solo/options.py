"""The arguments of `RL.train`: how it collects, what it keeps in the replay, and which callbacks it calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.base import checks
from etude.base.errors import ConfigError
from etude.replay import Buffer

WindowFunction = Callable[[int], "int | None"]  # from the number of a process to how many of its oldest rows to drop


@dataclass(frozen=True)
class ProcessWindows:
    """What each process of the pool drops of its own part."""

    function: WindowFunction

    def kept(self, filled: np.ndarray) -> np.ndarray:
        """How many of the rows of each process stay, [N]; at least 1. ConfigError where the function returns no number
        for one."""
        kept = filled.copy()
        for p in np.flatnonzero(filled > 1).tolist():
            dropped = self.function(p)
            if dropped is not None and not isinstance(dropped, int | float | np.number):
                raise ConfigError(
                    f"window_size_func({p}) returned a {type(dropped).__name__}; expected how many of the oldest "
                    "transitions of this process to drop, or None for none."
                )
            kept[p] = filled[p] - min(max(int(dropped or 0), 0), filled[p] - 1)
        return kept


# Rows to keep, the fraction to keep, the first from how many there are, or what processes drop.
Window = int | float | Callable[[int], int] | ProcessWindows | None


@dataclass(frozen=True)
class Trimming:
    """What is dropped besides the oldest rows of a full replay.

    window: what is kept. every: stored rows between two cuts; None: only when the replay is full.
    """

    window: Window = None
    every: int | None = None

    def __post_init__(self) -> None:
        _check_window("window", self.window)
        if self.every is not None:
            checks.counts(self, "every")
            if self.window is None:
                raise ConfigError("clearing_freq says how often the pool is cut; give window_size, what to keep of it.")

    def after_storing(self, buffer: Buffer, rows: int, stored: int) -> None:
        """Cut the replay where that is due; `rows` of the `stored` ones are new."""
        if self.window is None:
            return
        due = buffer.full if self.every is None else (stored - rows) // self.every != stored // self.every
        if due:
            cut(buffer, self.window)


@dataclass(frozen=True)
class Options:
    """The arguments of `RL.train` besides loss, optimizer and episodes.

    pool_network, processes: so many worker processes collect; none where pool_network is False or processes None. Those
        that would only step, as the network is evaluated in this process, are left out where that is faster.
    parallel_store_and_training: workers that act by themselves collect the next episodes while this process learns.
    num_store: collections before each learning phase.
    window_size, window_size_: what is kept of the pool when it is cut: transitions (an int), the fraction (a float), or
        a function from how many there are to how many to keep. window_size_ counts where window_size is None,
        window_size_pr before both with PR=True, window_size_ppo before all with PPO=True and PR=True.
    window_size_func: from the number of a process to how many of its oldest transitions to drop, before all others; the
        agent's own attribute where train is given none.
    clearing_freq: stored transitions between two cuts; None: the pool is cut when it is full.
    jit_compile: for TensorFlow, whether XLA compiles.
    random: episodes go into random columns of the pool; else into the one that holds least.
    save_data: whether `save` keeps the pool. callbacks: see `solo.callbacks`.
    p: episodes between two printed lines; None: about ten lines in all; 0: none.
    processes_her, processes_pr, shuffle: taken, and without effect. A minibatch is drawn in less time than it takes to
        send it to a process, and a pass over the pool is always shuffled.
    """

    pool_network: bool = True
    processes: int | None = None
    parallel_store_and_training: bool = True
    num_store: int = 1
    processes_her: int | None = None
    processes_pr: int | None = None
    window_size: Window = None
    window_size_func: WindowFunction | None = None
    clearing_freq: int | None = None
    window_size_: int | None = None
    window_size_ppo: int | None = None
    window_size_pr: int | None = None
    jit_compile: bool = True
    random: bool = False
    shuffle: bool = True
    save_data: bool = True
    callbacks: Sequence[Any] = ()
    p: int | None = None

    def __post_init__(self) -> None:
        checks.counts(self, "num_store")
        optional = ("processes", "processes_her", "processes_pr", "clearing_freq")
        checks.counts(self, *(name for name in optional if getattr(self, name) is not None))
        if self.p is not None and self.p < 0:
            raise ConfigError(f"train: p = {self.p}; expected the episodes between two lines, 0 for none, or None.")
        for name in ("window_size", "window_size_", "window_size_ppo", "window_size_pr"):
            _check_window(name, getattr(self, name))

    @property
    def workers(self) -> int:
        """Processes that collect; 0: none but this one."""
        return (self.processes or 0) if self.pool_network else 0

    def first(self, *windows: str) -> Window:
        """The window of each process, or the first of these options that was given, or None."""
        if self.window_size_func is not None:
            return ProcessWindows(self.window_size_func)
        given = (getattr(self, name) for name in windows)
        return next((window for window in given if window is not None), None)


def cut(buffer: Buffer, window: Window) -> None:
    """Drop all but the window."""
    buffer.trim(window.kept(buffer.ring.filled) if isinstance(window, ProcessWindows) else _kept(window, len(buffer)))


def _check_window(name: str, window: Window) -> None:
    if window is None or callable(window) or isinstance(window, ProcessWindows):
        return
    fraction = isinstance(window, float)
    if isinstance(window, bool) or not (0 < window <= 1 if fraction else window >= 1):
        raise ConfigError(
            f"{name} = {window!r}; expected how many transitions to keep (an int), the fraction to keep (a float from "
            "0 to 1), or a function from how many there are to how many to keep."
        )


def _kept(window: int | float | Callable[[int], int] | None, held: int) -> int:
    if callable(window):
        return max(1, min(held, int(window(held))))
    if isinstance(window, float):
        return max(1, int(held * window))
    assert window is not None
    return min(window, held)
