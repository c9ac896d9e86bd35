"""A line of text now and then, for training that counts episodes."""

from __future__ import annotations

import time
from collections import deque
from typing import Any


class EpisodeLines:
    """Prints the mean reward of the last episodes and the loss: a callback for `RL.train`.

    every: episodes between two lines; None: about ten lines in a run of `total` episodes, or one every ten.
    """

    def __init__(self, total: int | None, every: int | None = None, console: Any = None):
        from rich.console import Console

        self._console = Console(highlight=False) if console is None else console
        self._every = every or max(1, (total or 100) // 10)
        self._total = total
        self._rewards: deque[float] = deque(maxlen=self._every)
        self._began = 0.0

    def on_train_begin(self, logs: dict[str, float]) -> None:
        self._began = time.perf_counter()

    def on_episode_end(self, episode: int, logs: dict[str, float]) -> None:
        self._rewards.append(logs["reward"])
        if (episode + 1) % self._every == 0 or episode + 1 == self._total:
            of = "" if self._total is None else f" of {self._total}"
            loss = f"   loss {logs['loss']:.4g}" if "loss" in logs else "   nothing learned yet"
            mean = sum(self._rewards) / len(self._rewards)
            self._console.print(f"episode {episode + 1}{of}   reward {mean:.4g}{loss}   {self._elapsed()}")

    def on_train_end(self, logs: dict[str, float]) -> None:
        self._console.print(f"done in {self._elapsed()}")

    def _elapsed(self) -> str:
        seconds = time.perf_counter() - self._began
        return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
