"""The devices of a run, one replica of the weights on each: the processes that drive them, what these exchange, and how
they notice that one has ended."""

from __future__ import annotations

import os
import pickle
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from etude.base.errors import ConfigError, EtudeError, ReplicaError


class Launch(NamedTuple):
    """How `torchrun`, `accelerate launch` or another launcher started this process.

    rank, size: among all processes. local_rank, local_size: among those of this machine.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int


def launched() -> Launch | None:
    """What the environment variables of a launcher say; None where there are none. ConfigError for what is no rank."""
    if "WORLD_SIZE" not in os.environ or "RANK" not in os.environ:
        return None
    rank, size = _number("RANK"), _number("WORLD_SIZE")
    local_rank = _number("LOCAL_RANK") if "LOCAL_RANK" in os.environ else rank
    local_size = _number("LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in os.environ else size
    if not 0 <= rank < size:
        raise ConfigError(f"RANK = {rank} and WORLD_SIZE = {size}; expected a rank from 0 to below the world size.")
    return Launch(rank, size, local_rank, local_size)


def _number(name: str) -> int:
    text = os.environ[name]
    if not text.isdigit():
        raise ConfigError(f"The environment variable {name} = {text!r}; expected a whole number, as torchrun sets it.")
    return int(text)


class MessageGroup(ABC):
    """A `protocols.ProcessGroup` that exchanges bytes. Processes of one run trust each other: values are pickled."""

    def __init__(self, rank: int, size: int):
        self.rank: int = rank
        self.size: int = size
        self._left = False

    @abstractmethod
    def _exchange(self, what: str, message: bytes) -> list[bytes]:
        """The messages of all processes by rank. what: the name of this exchange. Raises RuntimeError, ValueError or
        ReplicaError where one ended, and ReplicaError where one has left."""

    @abstractmethod
    def _abandon(self, reason: str) -> None:
        """Whatever the others wait for raises a ReplicaError with this reason. Waits for none of them without end."""

    def gather(self, what: str, value: Any) -> list[Any]:
        if self._left:
            raise ReplicaError("This process has left the run. Start all processes again, and resume the run.")
        try:
            messages = self._exchange(what, pickle.dumps((what, value)))
        except ReplicaError:
            raise
        except (RuntimeError, ValueError) as error:
            raise lost(error) from error
        found = [pickle.loads(message) for message in messages]
        for rank, (other, _) in enumerate(found):
            if other != what:
                self._left = True
                raise ReplicaError(
                    f"Process {self.rank} of {self.size} is at {what!r}, and process {rank} is at {other!r}; all "
                    "processes of a run have to do the same. Train, evaluate and save in all of them alike."
                )
        return [given for _, given in found]

    def in_all(self, what: str, function: Callable[[], Any]) -> list[Any]:
        value, failure = None, None
        try:
            value = function()
        except EtudeError as error:
            failure = error
        found = self.gather(what, (value, failure))
        failed = [rank for rank, (_, other) in enumerate(found) if other is not None]
        if failed:
            rank = failed[0] if failure is None else self.rank
            failure = failure or found[rank][1]
            if len(failed) < self.size:
                failure.args = (f"In process {rank} of {self.size}: {failure}", *failure.args[1:])
            failure.in_all_processes = True
            raise failure
        return [value for value, _ in found]

    def leave(self, reason: str) -> None:
        if not self._left:
            self._left = True
            self._abandon(f"Process {self.rank} of {self.size} stopped training: {reason}")


def lost(error: Exception) -> ReplicaError:
    """The error of a process that does not answer."""
    reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
    return ReplicaError(
        f"A process of this run ended or does not answer ({reason}). Start all processes again, and continue from the "
        "newest checkpoint: devices='all' (etude resume RUN --devices all)."
    )


Devices = int | str | None  # a number of devices, "all", or None: one


@dataclass(frozen=True)
class Replicas:
    """The devices of a run, each with a replica of its weights and a part of every batch.

    count: of all processes. device: "cpu", "cuda:1" or "auto", of this process's replica in torch. devices: in JAX,
    those of all processes. group: the processes; None where there is one. strategy: in TensorFlow, what
    `strategy_replicas` returned.
    """

    count: int
    device: str = "auto"
    devices: tuple[Any, ...] = ()
    group: MessageGroup | None = None
    strategy: Any = None


def share_of(n: int, rank: int, size: int) -> slice:
    """The part of n examples that belongs to a replica. ConfigError where they cannot be divided equally."""
    if n % size:
        raise ConfigError(indivisible(n, size))
    return slice(rank * n // size, (rank + 1) * n // size)


def indivisible(n: int, size: int) -> str:
    """The message about batches that cannot be divided equally."""
    return (
        f"A batch of {n} examples cannot be divided over {size} devices; expected a multiple of {size}. Change the "
        f"batch size (batch_size, minibatch_size) to {-(-n // size) * size}, or the number of devices."
    )


BEAT = 2.0  # seconds between two heartbeats, and between two looks at them
PATIENCE = 20.0  # seconds without a heartbeat after which a process counts as lost
_ENDED = 3 * BEAT  # the same, once a collective has failed
_LEFT = "left: "  # what a process publishes that has left, before the reason


class Heartbeat:
    """Shows which processes failed or hang: a thread of each counts up a number in the group's store, and publishes
    for which collective its process waits, or why it has left.

    The thread also runs while its process waits, evaluates or steps a slow environment; not where the process was
    stopped, its machine is unreachable, or an extension keeps Python's lock. It alone waits for the store.

    store: a `torch.distributed.Store`, or what has its `add`, `set` and `get`. RuntimeError where it is gone.
    """

    def __init__(self, store: Any, rank: int, size: int, clock: Callable[[], float] = time.monotonic):
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

    def wait(self, what: str, work: Any) -> None:
        """Wait for a collective, a `torch.distributed.Work` or what has its `wait` and `is_completed`. RuntimeError
        where a process ended, has no heartbeat, or waits for another one for good; ReplicaError where one has left."""
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


def _completed(work: Any) -> bool:
    """Whether a collective completes within `BEAT`. RuntimeError where it fails."""
    try:
        work.wait(timedelta(seconds=BEAT))
    except RuntimeError:
        if work.is_completed():
            raise
        return False
    return True
