"""What losses know of the replicas that divide a batch: how a number is averaged over them. On JAX nothing is: arrays
are those of all replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_mean: ContextVar[Callable[[Any], Any] | None] = ContextVar("replica_mean", default=None)


@contextmanager
def averaged_by(mean: Callable[[Any], Any]) -> Iterator[None]:
    """Losses in this context are those of a part of the batch. mean: of a tensor over all replicas."""
    token = _mean.set(mean)
    try:
        yield
    finally:
        _mean.reset(token)


def mean_over_replicas() -> Callable[[Any], Any] | None:
    """The mean of a tensor over all replicas; None where one computes the loss of the whole batch."""
    return _mean.get()
