"""The learning curve of a run as a picture that is always there."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path

from etude.base.events import Event, Finished, Started
from etude.report.json_lines import keep_until, read_records
from etude.report.plots import draw_run
from etude.report.records import MetricsRecorder, Record
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
        self._recorder = MetricsRecorder()
        self._records: list[Record] = []
        self._drawn = clock()

    def __call__(self, event: Event) -> None:
        new = self._recorder(event)
        if isinstance(event, Started) and not self._records:
            self._records = self._earlier(event.step)
        self._records += new
        if isinstance(event, Finished) or (new and self._clock() - self._drawn >= self._seconds):
            self._draw()

    def _earlier(self, step: int) -> list[Record]:
        file = self.path.with_name("metrics.jsonl")
        return keep_until(read_records(file), step) if step > 0 and file.exists() else []

    def _draw(self) -> None:
        run = series(self._records)
        if len(run.steps) or len(run.evaluated):
            draw_run(run, self.path)
            gc.collect()  # a picture leaves cycles of references behind, with about 10 MB of images
        self._drawn = self._clock()
