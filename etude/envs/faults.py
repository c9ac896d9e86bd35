"""What went wrong in an environment, in words: where, at which line, and what it said, of any length or unprintable;
what `reset` and `step` returned; and environments that cannot be closed."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import time
import traceback
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium
import numpy as np

from etude.base.errors import EnvironmentFault, EtudeError
from etude.envs.observations import LATE_MASK, Mismatch

RAISED = (Exception, SystemExit)  # what code of the user's may raise; Ctrl-C is no fault
RESET = "Expected: def reset(self, *, seed=None, options=None)"
_LONGEST_TEXT = 800  # characters
_LONGEST_TRACEBACK = 20_000
_OURS = (f"{Path(__file__).parents[1]}{os.sep}", f"{Path(gymnasium.__file__).parent}{os.sep}")
_INSTALLED = (*{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}, "<frozen ")


class TracebackText(Exception):
    """A traceback as text: of an exception in another process, or of one that cannot be printed as it is."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


class LateMask(EnvironmentFault):
    """The first action mask in an info, where none was expected: observations have no place for it."""


@dataclass(frozen=True)
class FaultLocation:
    """The place of a fault. Step 0 is the reset; episodes count from 0, and -1 is what comes before the first.

    seed: that the episode began with; None where it had none. task: that the episode was given; None for none.
    """

    name: str
    environment: int | str
    episode: int
    step: int
    seed: int | None = None
    task: Any = None

    def fault(self, what: str, kind: type[EnvironmentFault] = EnvironmentFault) -> EnvironmentFault:
        """An error of this kind that says what is wrong here."""
        at = f"step {self.step}" if self.step else "reset"
        episode = f", episode {self.episode}" if self.episode >= 0 else ""
        begun = "" if self.seed is None else f" The episode began with reset(seed={self.seed})."
        begun += "" if self.task is None else f" Its task: {bounded(repr(self.task))}."
        return kind(f"{self.name}, environment {self.environment}{episode}, {at}: {what.rstrip('.')}.{begun}")

    def mismatch(self, problem: Mismatch) -> EnvironmentFault:
        """The error of an observation that does not fit its space."""
        key = f" {problem.key!r}" if problem.key else ""
        kind = LateMask if problem.message is LATE_MASK else EnvironmentFault
        return self.fault(f"the observation{key} {problem.message}", kind)

    def raised(self, problem: BaseException) -> EnvironmentFault:
        """The error of an environment that raised; to be raised from `cause_of(problem)`."""
        old = isinstance(problem, TypeError) and "reset() got an unexpected keyword" in text_of(problem)
        fix = f". {RESET}" if old else ""
        return self.fault(f"the environment raised {explain_error(problem)}{fix}")


def explain_error(problem: BaseException) -> str:
    """The class and the text of an exception, and the user's line that raised it."""
    line = line_of(problem)
    return f"{type(problem).__name__}: {text_of(problem)}{f' ({line})' if line else ''}"


def report_of(problem: Exception) -> str:
    """An exception in one line of a report: an error of etude speaks for itself."""
    return str(problem) if isinstance(problem, EtudeError) else explain_error(problem)


def cause_of(problem: BaseException) -> BaseException:
    """What to chain an error with: the exception itself, or its traceback as text where Python would print it without
    bounds, or not at all."""
    return problem if text_of(problem) == _text(problem) else TracebackText(traceback_of(problem))


def text_of(problem: BaseException) -> str:
    """What an exception says, of bounded length."""
    text = _text(problem)
    return f"(no text: its __str__ raised {type(text).__name__})" if isinstance(text, BaseException) else bounded(text)


def traceback_of(problem: BaseException) -> str:
    """The traceback of an exception and its causes, of bounded length."""
    try:
        return bounded("".join(traceback.format_exception(problem)), _LONGEST_TRACEBACK)
    except Exception:  # whatever is in the exception that cannot be printed
        return "".join(traceback.format_tb(problem.__traceback__)) + type(problem).__name__


def bounded(text: str, longest: int = _LONGEST_TEXT) -> str:
    """The head and the tail of a text that is too long."""
    if len(text) <= longest:
        return text
    head, tail = 2 * longest // 3, longest // 3
    return f"{text[:head]} [... {len(text) - head - tail} characters left out ...] {text[-tail:]}"


def line_of(problem: BaseException) -> str | None:
    """`file:line` of the user's code that raised; see `_own_line`."""
    return _own_line(traceback.walk_tb(problem.__traceback__))


def _own_line(frames: Iterable[tuple[FrameType, int]]) -> str | None:
    """`file:line` of the innermost frame, which is the last, of the user's code; of an installed package where there is
    none of it; never of etude or Gymnasium. None where there is no such frame."""
    lines = [(frame.f_code.co_filename, line) for frame, line in frames]
    outside = [(file, line) for file, line in lines if not file.startswith(_OURS)]
    own = [(file, line) for file, line in outside if not file.startswith(_INSTALLED)]
    for file, line in reversed(own or outside):
        return f"{file}:{line}"
    return None


def _text(problem: BaseException) -> str | BaseException:
    try:
        return str(problem)
    except RAISED as unprintable:
        return unprintable


SECONDS = 5.0  # that the environments of one name may take to close


def close_all(environments: list[Any], name: str) -> None:
    """Close environments, and empty the list. Warns of what goes wrong."""
    until = time.monotonic() + SECONDS
    while environments:
        wrong = explain_closing(environments.pop(), max(0.1, until - time.monotonic()))
        if wrong is not None:
            warnings.warn(f"{name}: {wrong}", RuntimeWarning, stacklevel=3)


def explain_closing(env: Any, seconds: float | None = None) -> str | None:
    """Close an environment; why that failed, None where it did not. A `close` that hangs is left behind, in a thread
    that ends with the program."""
    if getattr(env, "render_mode", None) is not None:  # windows and contexts of OpenGL belong to this thread
        return _close(env)
    wrong: list[str | None] = []
    thread = threading.Thread(target=lambda: wrong.append(_close(env)), name="etude-close", daemon=True)
    thread.start()
    seconds = SECONDS if seconds is None else seconds
    thread.join(seconds)
    if not wrong:
        return f"close() did not return within {seconds:.1f} s{_place(thread)}; the environment is left unclosed."
    # Some resources only the thread that made them may close.
    return None if wrong[0] is None else _close(env)


def _close(env: Any) -> str | None:
    try:
        env.close()
    except RAISED as problem:
        return f"close() raised {explain_error(problem)}."
    return None


def _place(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    line = _own_line(reversed(list(traceback.walk_stack(frame)))) if frame is not None else None
    return f" ({line})" if line else ""


def check_reset(result: Any, where: FaultLocation) -> tuple[Any, dict[str, Any]]:
    """What `reset` returned, as (observation, info)."""
    wrong = explain_reset(result)
    if wrong is None:
        return result
    raise where.fault(wrong)


def explain_reset(result: Any) -> str | None:
    """Why a result of `reset` cannot be used; None where it can."""
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        return None
    got = f"a tuple of {len(result)}" if isinstance(result, tuple) else f"a bare {type(result).__name__}"
    return f"reset returned {got}; expected (observation, info). End it with `return observation, {{}}`"


def explain_step(result: Any) -> str:
    """Why a result of `step` that is not a five-tuple cannot be used."""
    if isinstance(result, tuple) and len(result) == 4 and not isinstance(result[3], dict):
        return "step returned four values; the info is missing: return observation, reward, terminated, truncated, {}"
    if isinstance(result, tuple) and len(result) == 4:
        return (
            "step returned four values, as the old Gym API does; expected (observation, reward, terminated, truncated, "
            "info). Split `done`: terminated where the task ended, truncated where time ran out"
        )
    got = f"{len(result)} values" if isinstance(result, tuple | list) else f"a {type(result).__name__}"
    return f"step returned {got}; expected (observation, reward, terminated, truncated, info)"


def explain_flag(name: str, value: Any) -> str | None:
    """Why a `terminated` or `truncated` cannot be used; None where it is a bool, or a 0 or 1 that stands for one."""
    if isinstance(value, bool | np.bool_) or (isinstance(value, int | float | np.number) and value in (0, 1)):
        return None
    return f"{name} is {repr(value)[:80]}, a {type(value).__name__}; expected one bool, such as `bool(...)` gives"


def as_flag(name: str, value: Any) -> bool:
    """A flag as a bool; TypeError where it cannot be used."""
    wrong = explain_flag(name, value)
    if wrong is not None:
        raise TypeError(wrong)
    return bool(value)
