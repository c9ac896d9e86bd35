"""How many cores there are for this process, and how many others use them."""

from __future__ import annotations

import os
import sys
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


def left_beside(processes: int) -> int:
    """Those that so many other busy processes leave, and at least one."""
    return max(1, usable_cores() - processes)
