"""The learning curve of a run as a picture that is always there."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path

from etude.base.events import Event, Finished
from etude.report.history import RunHistory
from etude.report.plots import draw_run
from etude.report.series import series


class Curve:
    """Draws the learning curve to `path` (a PNG) when the run ends, and now and then before.

    A resumed run's earlier part comes from the `metrics.jsonl` beside the picture, where there is one.
    seconds: at least this long between two drawings (one takes about half a second).
    """

    def __init__(self, path: str | Path, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic):
        self.path: Path = Path(path)
        self._seconds = seconds
        self._clock = clock
        self._history = RunHistory(self.path.with_name("metrics.jsonl"))
        self._drawn = clock()

    def __call__(self, event: Event) -> None:
        new = self._history(event)
        if isinstance(event, Finished) or (new and self._clock() - self._drawn >= self._seconds):
            self._draw()

    def _draw(self) -> None:
        run = series(self._history)
        if len(run.steps) or len(run.evaluated):
            draw_run(run, self.path)
            gc.collect()  # a picture leaves cycles of references behind, with about 10 MB of images
        self._drawn = self._clock()
