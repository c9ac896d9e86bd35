"""Signals that reach a run while it trains.

Ctrl-C and SIGTERM, once: finish the step at hand, save and end. Twice: what they would have done without a run.
SIGHUP, of a terminal that was closed: save and end, however often it comes (the kernel and the shell each send one).
SIGUSR1, which Slurm sends before it preempts a job: save and go on.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def obeying_signals(stop: Callable[[], None], save: Callable[[], None]) -> Iterator[None]:
    """Call `stop` or `save` when a signal asks for it. Only in the main thread, where Python delivers signals.

    SIGHUP and SIGUSR1 are left alone where they are ignored (nohup), or where the program handles them itself.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts = {name: signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)}

    def stop_once(name: int, frame: Any) -> None:
        stop()
        for each, handler in interrupts.items():
            signal.signal(each, handler)

    asked = {"SIGHUP": stop, "SIGUSR1": save}  # Windows has neither
    defaults = [
        getattr(signal, name)
        for name in asked
        if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) is signal.SIG_DFL
    ]
    for name in interrupts:
        signal.signal(name, stop_once)
    for number in defaults:
        signal.signal(number, lambda name, frame: asked[signal.Signals(name).name]())
    try:
        yield
    finally:
        for name, handler in interrupts.items():
            signal.signal(name, handler)
        for number in defaults:
            signal.signal(number, signal.SIG_DFL)
