"""What a person at a terminal sees of a sweep."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, cast

from etude.report.streams import Lasting
from etude.report.studies import number_text

REDRAW_SECONDS = 0.5
LINE_SECONDS = 10.0


class SweepProgress:
    """A progress bar over the environment steps of all runs of a sweep, with the mean return of their last episodes:
    give it to `sweep.run`. Where the output is no terminal, a line every ten seconds.

    console: a `rich.console.Console`; by default one on the standard error stream.
    """

    def __init__(self, console: Any = None, clock: Callable[[], float] = time.monotonic):
        from rich.console import Console

        self._console = console or Console(file=cast(Any, Lasting(sys.stderr)), highlight=False, force_jupyter=False)
        self._clock, self._began, self._next, self._over = clock, clock(), 0.0, False
        self._first: int | None = None  # steps that had been taken before
        self._live: Any = None
        self._notes = 0

    def __call__(self, sweep: Any) -> None:
        for text in sweep.notes[self._notes :]:
            self._console.print(text, style="yellow", markup=False, soft_wrap=True)
        self._notes = len(sweep.notes)
        if self._live is None and self._console.is_terminal:
            from rich.live import Live

            self._live = Live(console=self._console, auto_refresh=False, transient=False)
            self._live.start()
        now, total = self._clock(), sweep.steps * len(sweep.seeds)
        done = sum(at.step for at in sweep.at.values())
        self._first = done if self._first is None else self._first
        over = done >= total and not self._over
        if (now < self._next or self._over) and not over:
            return
        self._over = over
        self._next = now + (LINE_SECONDS if self._live is None else REDRAW_SECONDS)
        text = self._text(sweep, done, total, now)
        if self._live is None:
            self._console.print(text, markup=False, soft_wrap=True)
        else:
            self._live.update(_bar(text, done, total), refresh=True)

    def _text(self, sweep: Any, done: int, total: int, now: float) -> str:
        means = [at.mean for at in sweep.at.values() if at.mean is not None]
        rate = (done - (self._first or 0)) / max(1e-9, now - self._began)
        left = f"  {(total - done) / rate:,.0f} s left" if rate else ""
        mean = number_text(sum(means) / len(means)) if means else "-"
        return f"{len(sweep.seeds)} seeds  step {done:,} of {total:,}  return {mean}  {rate:,.0f} steps/s{left}"

    def close(self) -> None:
        """Give the terminal back. May be called twice."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def _bar(text: str, done: int, total: int) -> Any:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    return Group(Text(text), ProgressBar(total, done))
