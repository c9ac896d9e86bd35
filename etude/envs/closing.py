"""Closing environments: one whose `close` hangs or raises costs a warning, and not what was learned."""

from __future__ import annotations

import sys
import threading
import time
import traceback
import warnings
from typing import Any

from etude.envs.faults import RAISED, explain_error, own_line

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
    line = own_line(reversed(list(traceback.walk_stack(frame)))) if frame is not None else None
    return f" ({line})" if line else ""
