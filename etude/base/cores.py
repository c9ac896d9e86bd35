"""How many cores there are for this process, and how many others use them."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import NamedTuple


class Busy(NamedTuple):
    """Processes that need a core each: right after an engine acts, and while it learns. It leaves them theirs, where
    its framework can be told: threads that share a core wait for each other at every operation, and go on looking for
    work when there is none."""

    acting: int = 0
    learning: int = 0


def usable_cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def physical_cores() -> int:
    """Those of `usable_cores` that are not two threads of one; all of them where the system does not say."""
    if sys.platform != "linux":
        return usable_cores()
    path = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    with contextlib.suppress(OSError):
        return len({Path(path.format(core)).read_text() for core in os.sched_getaffinity(0)})
    return usable_cores()


def left_beside(processes: int) -> int:
    """Those that so many other busy processes leave, and at least one."""
    return max(1, usable_cores() - processes)
