"""Ctrl-C, once: finish the step at hand. Twice: stop at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first SIGINT or SIGTERM, and let the second do what it would have done. Only in the main
    thread, where Python delivers signals; elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = (signal.SIGINT, signal.SIGTERM)
    before = {name: signal.getsignal(name) for name in names}

    def first(name: int, frame: Any) -> None:
        stop()
        for each in names:
            signal.signal(each, before[each])

    for name in names:
        signal.signal(name, first)
    try:
        yield
    finally:
        for name in names:
            signal.signal(name, before[name])
