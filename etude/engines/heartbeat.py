"""Heartbeats of the processes of one run, by which those that wait know which of the others failed or hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

from etude.base.errors import ReplicaError

BEAT = 2.0  # seconds between two heartbeats, and between two looks at them
PATIENCE = 20.0  # seconds without a heartbeat after which a process counts as lost
_ENDED = 3 * BEAT  # the same, once a collective has failed
_LEFT = "left: "  # what a process publishes that has left, before the reason


class Store(Protocol):
    """What all processes of a group read and write. RuntimeError where it is gone."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to a whole number, which begins at 0; returns the sum."""

    def set(self, key: str, text: str, /) -> None:
        """Keep a text in the place of the one before."""

    def get(self, key: str, /) -> bytes:
        """The text that was set."""


class Work(Protocol):
    """A collective under way."""

    def wait(self, timeout: timedelta, /) -> Any:
        """Until it is completed. RuntimeError where it is not in time, or fails."""

    def is_completed(self) -> bool:
        """Whether it has ended, or failed."""


class Heartbeat:
    """Shows which processes failed or hang: a thread of each counts up a number in the group's store, and publishes
    for which collective its process waits, or why it has left.

    The thread also runs while its process waits, evaluates or steps a slow environment; not where the process was
    stopped, its machine is unreachable, or an extension keeps Python's lock. It alone waits for the store.
    """

    def __init__(self, store: Store, rank: int, size: int, clock: Callable[[], float] = time.monotonic):
        self._store, self._rank, self._clock = store, rank, clock
        self._name = f"etude/{store.add(f'etude/groups/{rank}', 1)}"  # of this group, the same in all processes
        self._counts = dict.fromkeys(range(size), 0)
        self._heard = dict.fromkeys(range(size), clock())
        self._states = dict.fromkeys(range(size), "")  # what each published: "": it does not wait
        self._since = clock()  # when the last of these changed
        self._collectives = 0
        self._thread: threading.Thread | None = None
        self._stopped, self._due, self._noticed = threading.Event(), threading.Event(), threading.Event()
        self._lost: Exception | None = None  # what ended the group

    def start(self, group: Any = None) -> None:
        """Beat until `stop`. The thread keeps the group alive."""
        self._thread = threading.Thread(target=self._run, args=(group,), daemon=True, name="heartbeat")
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._due.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(1.0)

    def leave(self, reason: str) -> None:
        """Let the others raise a ReplicaError with this reason, in whatever they wait for. Returns once they know it,
        or do not answer."""
        if self._lost is None:
            self._lose(ReplicaError(reason))
            self._noticed.wait(_ENDED)

    def beat(self) -> None:
        """Count up, publish the state of this process, and note what the others have. RuntimeError where the store is
        gone."""
        own, states = self._states[self._rank], {}
        self._store.set(f"{self._name}/state/{self._rank}", own)
        for rank, before in self._counts.items():
            count = self._store.add(f"{self._name}/beats/{rank}", int(rank == self._rank))
            if count != before:
                self._counts[rank], self._heard[rank] = count, self._clock()
            if rank != self._rank and count:
                states[rank] = self._store.get(f"{self._name}/state/{rank}").decode()
        for rank, state in states.items():
            if state != self._states[rank]:
                self._states[rank], self._since = state, self._clock()
                if state.startswith(_LEFT):
                    self._store.add(f"{self._name}/noticed/{rank}", 1)
        if own.startswith(_LEFT) and self._store.add(f"{self._name}/noticed/{self._rank}", 0) == len(self._counts) - 1:
            self._noticed.set()

    def silent(self, seconds: float = PATIENCE) -> list[int]:
        """The ranks of the processes without a heartbeat for so long; of all, where the store does not answer."""
        now = self._clock()
        return [rank for rank, heard in self._heard.items() if now - heard > seconds]

    def wait(self, what: str, work: Work) -> None:
        """Wait for a collective. RuntimeError where a process ended, has no heartbeat, or waits for another one for
        good; ReplicaError where one has left."""
        self._collectives += 1
        failed: RuntimeError | None = None
        while self._lost is None:
            try:
                if failed is not None:
                    time.sleep(BEAT)  # until it shows who has ended
                elif _completed(work):
                    self._states[self._rank] = ""
                    return
            except RuntimeError as error:
                failed, self._since = error, self._clock()
            state = f"{what} ({self._collectives})"
            if self._states[self._rank] != state:
                self._states[self._rank], self._since = state, self._clock()
            if problem := self._problem(failed):
                self._lose(problem)
        raise self._lost

    def _lose(self, error: Exception) -> None:
        """The group has ended. Whoever waits for this process hears why."""
        self._lost, self._states[self._rank] = error, _LEFT + str(error)
        self._due.set()

    def _problem(self, failed: RuntimeError | None) -> Exception | None:
        """What ended the group, where something did. failed: the error of the collective."""
        if left := [state for state in self._states.values() if state.startswith(_LEFT)]:
            return ReplicaError(left[0].removeprefix(_LEFT))
        patience, why = (PATIENCE, "") if failed is None else (_ENDED, f": {failed}")
        if silent := self.silent(patience):
            who = f"process {', '.join(map(str, silent))}"
            who = who if self._rank not in silent else "process 0, or the launcher that keeps the store,"
            return RuntimeError(f"{who} gave no heartbeat for {patience:.0f} s{why}")
        states, still = set(self._states.values()), self._clock() - self._since
        if failed is not None and still > 2 * _ENDED:
            return failed
        if "" not in states and len(states) > 1 and still > PATIENCE:
            waits = ", ".join(f"process {rank} for {state}" for rank, state in self._states.items())
            return RuntimeError(f"all wait, {waits}; all processes of a run have to do the same")
        return None

    def _run(self, group: Any) -> None:
        try:
            while not self._stopped.is_set():
                self._due.wait(BEAT)
                self._due.clear()
                self.beat()
        except RuntimeError:  # the store is gone
            self._noticed.set()
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
