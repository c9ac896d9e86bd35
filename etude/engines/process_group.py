"""Processes that train one run: how they were started, and what they exchange."""

from __future__ import annotations

import contextlib
import os
import pickle
from typing import Any, NamedTuple, Protocol

from etude.base.errors import ConfigError, ReplicaError

_LEFT = "the end"  # the exchange of a process that leaves


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

    def exchange(self, message: bytes) -> list[bytes]:
        """The messages of all processes by rank. Raises RuntimeError, ValueError or ReplicaError where one ended."""


class MessageGroup:
    """A `protocols.ProcessGroup` over a transport. Processes of one run trust each other: values are pickled."""

    def __init__(self, transport: Transport):
        self.rank, self.size, self._transport = transport.rank, transport.size, transport
        self._left = False

    def gather(self, what: str, value: Any) -> list[Any]:
        if self._left:
            raise ReplicaError("This process has left the run. Start all processes again, and resume the run.")
        try:
            messages = self._transport.exchange(pickle.dumps((what, value)))
        except ReplicaError:
            raise
        except (RuntimeError, ValueError) as error:
            raise lost(error) from error
        found = [pickle.loads(message) for message in messages]
        for rank, (other, given) in enumerate(found):
            if other == _LEFT:
                self._left = True
                raise ReplicaError(f"Process {rank} of {self.size} stopped training: {given}")
            if other != what:
                self.leave(f"it is at {what!r}, and process {rank} is at {other!r}.")
                raise ReplicaError(
                    f"Process {self.rank} of {self.size} is at {what!r}, and process {rank} is at {other!r}; all "
                    "processes of a run have to do the same. Train, evaluate and save in all of them alike."
                )
        return [given for _, given in found]

    def leave(self, reason: str) -> None:
        if self._left:
            return
        self._left = True
        with contextlib.suppress(RuntimeError, ValueError):
            self._transport.exchange(pickle.dumps((_LEFT, reason)))


def lost(error: Exception) -> ReplicaError:
    """The error of a process that does not answer."""
    reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
    return ReplicaError(
        f"A process of this run ended or does not answer ({reason}). Start all processes again, and continue from the "
        "newest checkpoint: etude resume RUN --devices all."
    )
