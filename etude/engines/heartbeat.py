"""Heartbeats of the processes of one run, by which those that wait know which of the others hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

BEAT = 2.0  # seconds between two heartbeats, and between two looks at them
PATIENCE = 20.0  # seconds without a heartbeat after which a process counts as lost


class Store(Protocol):
    """What all processes of a group read and write."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to a whole number, which begins at 0; returns the sum. RuntimeError where the store is gone."""


class Work(Protocol):
    """A collective under way."""

    def wait(self, timeout: timedelta, /) -> Any:
        """Until it is completed. RuntimeError where it is not in time, or fails."""

    def is_completed(self) -> bool:
        """Whether it has ended, or failed."""


class Heartbeat:
    """Distinguishes processes that compute from those that hang: a thread of each counts up a number in the group's
    store.

    The thread also runs while its process waits, evaluates or steps a slow environment; not where the process was
    stopped, its machine is unreachable, or an extension keeps Python's lock.
    """

    def __init__(self, store: Store, rank: int, size: int, clock: Callable[[], float] = time.monotonic):
        self._store, self._rank, self._clock = store, rank, clock
        self._counts = dict.fromkeys(range(size), 0)
        self._heard = dict.fromkeys(range(size), clock())
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._lost: str | None = None  # what ended the group

    def start(self, group: Any = None) -> None:
        """Beat until `stop`. The thread keeps the group alive."""
        self._thread = threading.Thread(target=self._run, args=(group,), daemon=True, name="heartbeat")
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(1.0)

    def beat(self) -> None:
        """Count up, and note which numbers have changed. RuntimeError where the store is gone."""
        for rank, before in self._counts.items():
            count = self._store.add(f"etude/heartbeat/{rank}", int(rank == self._rank))
            if count != before:
                self._counts[rank], self._heard[rank] = count, self._clock()

    def silent(self) -> list[int]:
        """The ranks of the processes without a heartbeat for `PATIENCE`; of all, where the store does not answer."""
        now = self._clock()
        return [rank for rank, heard in self._heard.items() if now - heard > PATIENCE]

    def wait(self, work: Work) -> None:
        """Wait for a collective. RuntimeError where a process ended, or has no heartbeat."""
        while self._lost is None and not _completed(work):
            if silent := self.silent():
                who = f"process {', '.join(map(str, silent))} gave" if self._rank not in silent else "the store gives"
                self._lost = f"{who} no heartbeat for {PATIENCE:.0f} s"
        if self._lost is not None:
            raise RuntimeError(self._lost)

    def _run(self, group: Any) -> None:
        try:
            while not self._stopped.wait(BEAT):
                self.beat()
        except RuntimeError:  # the store is gone
            self._stopped.wait()
        if self._lost is not None:
            threading.Event().wait()  # to destroy the group would wait for a collective that never completes


def _completed(work: Work) -> bool:
    """Whether a collective completes within `BEAT`. RuntimeError where it fails."""
    try:
        work.wait(timedelta(seconds=BEAT))
    except RuntimeError:
        if work.is_completed():
            raise
        return False
    return True
