"""Signals that reach a run while it trains.

Ctrl-C and SIGTERM, once: finish the step at hand, save and end. Twice: what they would have done without a run.
SIGHUP, of a terminal that was closed: save and end, however often it comes (the kernel and the shell each send one).
SIGUSR1, which Slurm sends before it preempts a job: save and go on.
A program's own handler of Ctrl-C or SIGTERM is called once the run has ended.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def obeying_signals(stop: Callable[[], None], save: Callable[[], None]) -> Iterator[None]:
    """Call `stop` or `save` when a signal asks for it. Only in the main thread, where Python delivers signals.

    SIGHUP and SIGUSR1 are left alone where they are ignored (nohup), or where the program handles them itself. Children
    that an environment forks inherit the handlers: there each does what it would have done without a run, but for
    Ctrl-C, which reaches them with the run and must not end them before the step at hand has.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner, obeyed = os.getpid(), list[int]()
    interrupts = {int(name): signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)}
    asked = {"SIGHUP": stop, "SIGUSR1": save}  # Windows has neither
    numbers = {getattr(signal, name): ask for name, ask in asked.items() if hasattr(signal, name)}
    defaults = {number: ask for number, ask in numbers.items() if signal.getsignal(number) is signal.SIG_DFL}

    def stop_once(number: int, frame: Any) -> None:
        handle(interrupts)
        if os.getpid() == owner:
            obeyed.append(number)
            stop()
        elif number != signal.SIGINT:
            signal.raise_signal(number)

    def obey(number: int, frame: Any) -> None:
        if os.getpid() == owner:
            defaults[number]()
        else:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def handle(handlers: Mapping[int, Any]) -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    handle(dict.fromkeys(interrupts, stop_once) | dict.fromkeys(defaults, obey))
    try:
        yield
    finally:
        handle(interrupts | dict.fromkeys(defaults, signal.SIG_DFL))
    for number in obeyed:
        if callable(interrupts[number]) and interrupts[number] is not signal.default_int_handler:
            signal.raise_signal(number)
