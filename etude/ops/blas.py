"""How many threads NumPy multiplies matrices with. Those of its BLAS spin while they wait for each other: for networks
that act, they cost more than they compute, and many times as much where other processes use the cores."""

from __future__ import annotations

import functools
import os
import threading
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

# What says how many threads there are. Where one of these is set, it is left to it.
SETTINGS = (
    "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
)  # fmt: skip
# BLAS takes one thread for smaller matrices anyway: OpenBLAS for products of eight rows with 32,768 numbers, and of one
# row with 9,216. Asking it to takes 4 us.
SMALL = 8_192


def one_thread(largest: int) -> AbstractContextManager[object]:
    """A context in which NumPy's BLAS computes with one thread, where matrices have up to so many numbers."""
    return _NOTHING if largest < SMALL else _limit()


class _OneThread:
    """BLAS has one number of threads for the whole process: the first to enter sets it, and the last to leave puts it
    back."""

    def __init__(self, libraries: list[Any]):
        self._libraries, self._before = libraries, [1] * len(libraries)
        self._entered, self._lock = 0, threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            if not self._entered:
                self._before = [library.get_num_threads() for library in self._libraries]
                for library in self._libraries:
                    library.set_num_threads(1)
            self._entered += 1

    def __exit__(self, *problem: object) -> None:
        with self._lock:
            self._entered -= 1
            if not self._entered:
                for library, number in zip(self._libraries, self._before, strict=True):
                    library.set_num_threads(number)


_NOTHING: AbstractContextManager[object] = nullcontext()


@functools.cache
def _limit() -> AbstractContextManager[object]:
    if any(name in os.environ for name in SETTINGS):
        return _NOTHING
    from threadpoolctl import ThreadpoolController

    libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    # SciPy brings a BLAS of its own, which nothing here computes with.
    own = [library for library in libraries if "scipy" not in Path(library.filepath).parent.name]
    return _OneThread(own)
