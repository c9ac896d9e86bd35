"""How many cores there are for this process."""

from __future__ import annotations

import os
import sys


def usable_cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def left_beside(processes: int) -> int:
    """Those that so many other busy processes leave, and at least one."""
    return max(1, usable_cores() - processes)
