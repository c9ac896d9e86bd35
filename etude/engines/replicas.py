"""On which devices a run trains: one replica of the weights on each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from etude.base.errors import ConfigError
from etude.engines.process_group import MessageGroup

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
