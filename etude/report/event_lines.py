"""Every event as a line of text."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, TextIO

import numpy as np

from etude.base.data import Estimate
from etude.base.events import Event, Started
from etude.report.streams import Lasting


class EventLines:
    """Prints every event, with its numbers, as one line.

    stream: None for the standard output.
    """

    def __init__(self, stream: TextIO | None = None):
        self._stream = Lasting(sys.stdout if stream is None else stream)

    def __call__(self, event: Event) -> None:
        shown = [f"step {event.step:,}", type(event).__name__]
        for field in dataclasses.fields(event):
            if field.name != "step" and not field.name.startswith("_"):
                shown += _shown(field.name, getattr(event, field.name), isinstance(event, Started))
        self._stream.write("  ".join(shown) + "\n")
        self._stream.flush()


def _shown(name: str, value: Any, begins: bool) -> list[str]:
    if begins and isinstance(value, dict):
        return [f"{key} {value[key]}" for key in ("algorithm", "environment", "engine", "end") if key in value]
    if name == "episodes" and isinstance(value, tuple):
        returns = ", ".join(f"{episode.total:.4g}" for episode in value)
        return [f"returns {returns}"] if returns else []
    if isinstance(value, Estimate):
        return [str(value)]
    if isinstance(value, dict):
        return [text for key, part in value.items() for text in _shown(key, part, False)]
    if isinstance(value, np.ndarray):
        return [f"{name} {value.mean():.4g}"]
    if isinstance(value, tuple):
        return [f"{name} {', '.join(map(_text, value))}"] if value else []
    return [f"{name} {_text(value)}"]


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("\n", "\\n")
