"""What a process that was forked can still use of the one before it and what it leaves alone; what others are sent."""

from __future__ import annotations

import functools
import io
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

import cloudpickle

from etude.base.errors import ConfigError


@functools.cache
def home_of(what: str) -> int:
    """The process that has used something first: this one, or one that it was forked from since."""
    return os.getpid()


_RUNS: dict[str, tuple[str, Callable[[Any], Any]]] = {  # framework -> one of its modules, and whether that says it runs
    "torch": ("torch", bool),
    "jax": ("jax._src.xla_bridge", lambda module: vars(module).get("_backends")),
    "tensorflow": (
        "tensorflow.python.eager.context",
        lambda module: vars(vars(module).get("_context") or module).get("_initialized"),
    ),
}


def _note_what_runs() -> None:
    """A program may use frameworks without etude, too."""
    for framework, (module, runs) in _RUNS.items():
        if module in sys.modules and runs(sys.modules[module]):
            home_of(framework)


if sys.platform != "win32":
    os.register_at_fork(before=_note_what_runs)


def check_home(framework: str) -> None:
    """Raise ConfigError where a framework that computes in threads of its own runs in a process that this one was
    forked from: a fork has none of the threads, and would wait for them for ever."""
    home = home_of(framework)
    if home != os.getpid():
        raise ConfigError(
            f"This process was forked from process {home}, where {framework} runs in threads that a fork does not have "
            "and would wait for, for ever. Start processes by multiprocessing.get_context('spawn') or "
            "'forkserver', or fork before anything runs on it; runs on torch may be made in a fork."
        )


def check_own_workers(process: int) -> None:
    """Raise ConfigError where workers were started by another process, which this one was forked from."""
    if process != os.getpid():
        raise ConfigError(
            f"The workers are those of process {process}, which this one was forked from, and which goes on with them. "
            "In a fork, load the run from a checkpoint, or make another one."
        )


def when_dropped(holder: Any, function: Callable[..., Any], *arguments: Any) -> weakref.finalize[..., Any]:
    """Call a function once nothing holds an object any more; not at the end of the program, and not in a process that
    was forked since, which has a copy."""
    found = weakref.finalize(holder, _here, os.getpid(), function, arguments)
    found.atexit = False
    return found


def _here(process: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    if os.getpid() == process:
        function(*arguments)


class _Pickler(cloudpickle.Pickler):
    """Sends cached functions of the main module, which others do not import, as what they cache."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type(home_of)) and (obj.__module__ == "__main__" or "<locals>" in obj.__qualname__):
            return functools.lru_cache(**obj.cache_parameters()), (obj.__wrapped__,)
        return super().reducer_override(obj)


def dumps(value: Any) -> bytes:
    """Pickled by cloudpickle; functions of `functools.lru_cache`, as environments of PettingZoo have them, too."""
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()
