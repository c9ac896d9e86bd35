"""What losses know of the replicas that divide a batch: how a number is averaged over them. On JAX nothing is: arrays
are those of all replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_mean: ContextVar[Callable[[Any], Any] | None] = ContextVar("replica_mean", default=None)
_count: ContextVar[int] = ContextVar("replica_count", default=1)


@contextmanager
def averaged_by(mean: Callable[[Any], Any], count: int) -> Iterator[None]:
    """Losses in this context are those of a part of the batch. mean: of a tensor over all replicas. count: of these."""
    tokens = _mean.set(mean), _count.set(count)
    try:
        yield
    finally:
        _mean.reset(tokens[0])
        _count.reset(tokens[1])


def mean_over_replicas() -> Callable[[Any], Any] | None:
    """The mean of a tensor over all replicas; None where one computes the loss of the whole batch."""
    return _mean.get()


def replica_count() -> int:
    """How many replicas compute the losses of equal parts of the batch; 1 where one computes that of the whole."""
    return _count.get()
