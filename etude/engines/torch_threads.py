"""How many threads torch computes with on the CPU."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from etude.base.cores import physical_cores, usable_cores
from etude.base.forks import home_of

SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@contextmanager
def limited(threads: int | None) -> Iterator[None]:
    """Compute with so many threads at most; None, or a number that the user chose: with those that there are."""
    leave_to_home()
    own = torch.get_num_threads()
    if threads is None or threads >= own or own not in _defaults():
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(own)


def leave_to_home() -> None:
    """Compute with one thread in a process that was forked from one where torch ran: it has none of the threads that
    torch would give a part of the work to, and wait for."""
    if home_of("torch") != os.getpid() and torch.get_num_threads() > 1:
        torch.set_num_threads(1)


@functools.cache
def _defaults() -> set[int]:
    """The numbers of threads that torch has where nobody chose one: it takes one for each core, or, with MKL, for each
    physical core. What `torch.set_num_threads` was given shows by being another."""
    return set() if any(name in os.environ for name in SETTINGS) else {usable_cores(), physical_cores()}
