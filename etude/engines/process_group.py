"""Processes that train one run: how they were started, and what they exchange."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

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


class Transport(Protocol):
    """What carries bytes between processes."""

    rank: int
    size: int

    def exchange(self, what: str, message: bytes) -> list[bytes]:
        """The messages of all processes by rank. what: the name of this exchange. Raises RuntimeError, ValueError or
        ReplicaError where one ended, and ReplicaError where one has left."""

    def leave(self, reason: str) -> None:
        """Whatever the others wait for raises a ReplicaError with this reason. Waits for none of them without end."""


class MessageGroup:
    """A `protocols.ProcessGroup` over a transport. Processes of one run trust each other: values are pickled."""

    def __init__(self, transport: Transport):
        self.rank: int = transport.rank
        self.size: int = transport.size
        self._transport = transport
        self._left = False

    def gather(self, what: str, value: Any) -> list[Any]:
        if self._left:
            raise ReplicaError("This process has left the run. Start all processes again, and resume the run.")
        try:
            messages = self._transport.exchange(what, pickle.dumps((what, value)))
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
            self._transport.leave(f"Process {self.rank} of {self.size} stopped training: {reason}")


def lost(error: Exception) -> ReplicaError:
    """The error of a process that does not answer."""
    reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
    return ReplicaError(
        f"A process of this run ended or does not answer ({reason}). Start all processes again, and continue from the "
        "newest checkpoint: devices='all' (etude resume RUN --devices all)."
    )
