"""What a run has recorded so far, at hand in Python: a list of records, a table, a small curve, a picture."""

from __future__ import annotations

import gc
import html
import importlib
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from etude.base.errors import ConfigError
from etude.base.events import Event, Finished, Started
from etude.envs import name_of
from etude.report.plots import draw_run, plot
from etude.report.records import JsonLines, MetricsRecorder, Record, keep_until, read_records, scalars
from etude.report.series import series

MOST = 20_000
WIDTH, HEIGHT = 320, 80  # of the small curve, in pixels


class RunHistory(list[Record]):
    """The records of a run, the oldest first, as `metrics.jsonl` has them: dicts of numbers by name, and "step".

    A reporter. metrics: a `metrics.jsonl`, which has the earlier part of a run that goes on. Of more than `MOST`
    records, every second one of those that only tell of training is left out; the file has all.
    """

    def __init__(self, metrics: Path | None = None):
        super().__init__()
        self.metrics = metrics
        self._recorder: Callable[[Event], list[Record]] = MetricsRecorder()

    def write_to(self, metrics: Path) -> None:
        """Keep the file `metrics`, too."""
        self.metrics, self._recorder = metrics, JsonLines(metrics).write

    def __call__(self, event: Event) -> list[Record]:
        """Keep the records that an event completes, and return them."""
        new = self._recorder(event)
        if isinstance(event, Started) and not self:
            self.begin(event.step)
        self += new
        if len(self) > MOST:
            training = [i for i, record in enumerate(self) if "time/fps" in record or "train/gradient_steps" in record]
            dropped = set(training[-2::-2])  # the newest stays
            self[:] = [record for i, record in enumerate(self) if i not in dropped]
        return new

    def begin(self, step: int) -> None:
        """Take the earlier part of a run that goes on at a step."""
        if step > 0 and self.metrics is not None and self.metrics.exists():
            self += keep_until(read_records(self.metrics), step)

    def frame(self) -> Any:
        """A row for each record that has numbers, a column for each name: a data frame of pandas, or of polars where
        that alone is installed. ConfigError where neither is."""
        rows = [{"step": record["step"], **numbers} for record in self if (numbers := scalars(record))]
        if importlib.util.find_spec("pandas") is not None:
            return importlib.import_module("pandas").DataFrame(rows)
        if importlib.util.find_spec("polars") is not None:
            return importlib.import_module("polars").DataFrame(rows, infer_schema_length=None)
        raise ConfigError("frame() makes a frame of pandas or polars, and neither is installed: pip install pandas.")

    def title(self, run: Any) -> str:
        """A run in a line: what trains on what, how far it is, and what it earned last, in training or evaluated."""
        found = (record.get("eval/mean_reward", record.get("rollout/ep_rew_mean")) for record in reversed(self))
        last = next((f"return {value:.1f}, " for value in found if value is not None), "")
        what = f"{run.algorithm} on {name_of(run.environment)}"
        return f"<Run: {what}, step {run.step:,}, {last}{run.engine.name}, seed {run.setup.seed}>"

    def as_html(self, title: str) -> str:
        """A line of text, and the curve of returns below it, for a cell of a notebook."""
        steps, returns = series(self).curve()
        text = f"<div><code>{html.escape(title)}</code></div>"
        if len(steps) < 2:
            return text
        low, high = float(returns.min()), float(returns.max())
        across = WIDTH * (steps - steps[0]) / (steps[-1] - steps[0] or 1)
        down = HEIGHT * (high - returns) / (high - low or 1)
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, down, strict=True))
        return (
            f'{text}<svg width="{WIDTH}" height="{HEIGHT}" viewBox="-2 -2 {WIDTH + 4} {HEIGHT + 4}" role="img" '
            f'aria-label="return, from {low:.4g} to {high:.4g}"><polyline points="{line}" fill="none" '
            f'stroke="#0072B2" stroke-width="1.5"/></svg>'
            f"<div><small>return per episode, from {low:.4g} to {high:.4g}, over {steps[-1]:,.0f} steps</small></div>"
        )


def plot_run(run: Any, path: str | Path | None = None, **options: Any) -> Any:
    """Draw the curve of a run from its history; see `etude.plot`. Returns the matplotlib figure."""
    return plot(run.history, path=path, **options)


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
            run = series(self._history)
            if len(run.steps) or len(run.evaluated):
                draw_run(run, self.path)
                gc.collect()  # a picture leaves cycles of references behind, with about 10 MB of images
            self._drawn = self._clock()
