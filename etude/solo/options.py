"""How `RL.train` collects, what of the pool it lets go, and whom it tells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from etude import checks
from etude.errors import ConfigError
from etude.replay import Buffer

Window = int | float | Callable[[int], int] | None  # rows to keep, the fraction to keep, or the first from how many


@dataclass(frozen=True)
class Trimming:
    """What is forgotten besides the oldest rows of a full pool.

    window: what is kept. every: stored rows between two cuts; None: only when the pool is full. on_policy: what is kept
        where `update_param` would empty the pool and priorities keep it.
    """

    window: Window = None
    every: int | None = None
    on_policy: Window = None

    def __post_init__(self) -> None:
        for name in ("window", "on_policy"):
            _check_window(name, getattr(self, name))
        if self.every is not None:
            checks.counts(self, "every")
            if self.window is None:
                raise ConfigError("clearing_freq says how often the pool is cut; give window_size, what to keep of it.")

    def after_storing(self, buffer: Buffer, rows: int, stored: int) -> None:
        """Cut the pool where that is due; `rows` of the `stored` ones are new."""
        if self.window is None:
            return
        due = buffer.full if self.every is None else (stored - rows) // self.every != stored // self.every
        if due:
            buffer.trim(_kept(self.window, len(buffer)))

    def after_update(self, buffer: Buffer) -> None:
        """Cut the pool after `update_param`; without a window, to the newer half."""
        window = self.window if self.on_policy is None else self.on_policy
        buffer.trim(_kept(0.5 if window is None else window, len(buffer)))


@dataclass(frozen=True)
class Options:
    """The arguments of `RL.train` besides loss, optimizer and episodes; see there."""

    pool_network: bool = True
    processes: int | None = None
    parallel_store_and_training: bool = True
    num_store: int = 1
    processes_her: int | None = None
    processes_pr: int | None = None
    window_size: Window = None
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

    def trimming(self, ppo: bool, pr: bool) -> Trimming:
        """What is forgotten, for these settings."""
        window = self.window_size if self.window_size is not None else self.window_size_
        if pr and not ppo and self.window_size_pr is not None:
            window = self.window_size_pr
        on_policy = self.window_size_ppo if self.window_size_ppo is not None else self.window_size_pr
        return Trimming(window, self.clearing_freq, on_policy if ppo else None)


def _check_window(name: str, window: Window) -> None:
    if window is None or callable(window):
        return
    fraction = isinstance(window, float)
    if isinstance(window, bool) or not (0 < window <= 1 if fraction else window >= 1):
        raise ConfigError(
            f"{name} = {window!r}; expected how many transitions to keep (an int), the fraction to keep (a float from "
            "0 to 1), or a function from how many there are to how many to keep."
        )


def _kept(window: Window, held: int) -> int:
    if callable(window):
        return max(1, min(held, int(window(held))))
    if isinstance(window, float):
        return max(1, int(held * window))
    assert window is not None
    return min(window, held)
