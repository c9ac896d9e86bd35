"""What a person at a terminal reads: a progress bar, tables, every event or some episodes as lines of text."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TextIO, cast

import numpy as np

from etude.base.data import EpisodeEnd, Estimate, listed
from etude.base.events import Adjusted, Collected, Estimated, Evaluated, Event, Finished, Learned, Started, Warned
from etude.base.text import Lasting
from etude.report.pictures import CellOutput, in_notebook
from etude.report.records import MetricsRecorder, means_by_agent, scalars

RECENT_EPISODES = 100  # as in the field: Mnih et al. 2015 and every library since
REDRAW_SECONDS = 0.25
LINE_SECONDS = 10.0


class LiveOutput:
    """The base of what is redrawn in its place, at a terminal or in a cell of a notebook.

    console: a `rich.console.Console`; by default one on the standard error stream, and the cell's output in a notebook.
    """

    _stays = True  # at a terminal, when it is over

    def __init__(self, console: Any = None, clock: Callable[[], float] = time.monotonic):
        from rich.console import Console

        self._in_cell = console is None and in_notebook()
        self._console = console or Console(file=cast(Any, Lasting(sys.stderr)), highlight=False, force_jupyter=False)
        self._clock, self._next = clock, 0.0
        self._live: Any = None

    def _begin(self) -> None:
        """Take the terminal, where the output is one."""
        if self._live is None and self._console.is_terminal:
            from rich.live import Live

            # Redrawn by events and not by a thread: training never shares its cores with what is shown.
            self._live = Live(console=self._console, auto_refresh=False, transient=not self._stays)
            self._live.start()

    def close(self) -> None:
        """Give the terminal back. May be called twice."""
        if self._live is not None:
            self._live.stop()
            self._live = None


class Progress(LiveOutput):
    """A progress bar over environment steps, with recent returns, evaluations, losses, steps/s and the time left.

    In a notebook it is one output of the cell, updated in place. Where the output is neither that nor a terminal, it
    prints a line every ten seconds and at each evaluation instead.

    console, clock: see `LiveOutput`.
    """

    def __init__(self, console: Any = None, clock: Callable[[], float] = time.monotonic):
        super().__init__(console, clock)
        self._state = _State()

    def __call__(self, event: Event) -> None:
        now = self._clock()
        self._state.take(event, now)
        # Where lines are printed, that of the last step comes with `Finished`.
        at_end = self._live is None and 0 < self._state.total <= self._state.step
        if isinstance(event, Started):
            about = {**event.description.get("setup", {}), **event.description}
            words = [str(about[key]) for key in ("algorithm", "environment") if key in about]
            rest = ", ".join(f"{key} {about[key]}" for key in ("engine", "device", "seed") if key in about)
            title = f"[bold]{_escape(' on '.join(words))}[/]" + (f" ({_escape(rest)})" if rest else "")
            if self._in_cell:
                self._live = CellOutput(title)
                self._draw(now)
            else:
                self._console.print(title)
                self._begin()
                if self._live is None:
                    self._next = now + LINE_SECONDS
        elif isinstance(event, Warned):
            self._console.print(f"[yellow]step {event.step:,}: {_escape(event.message)}[/]")
        elif isinstance(event, Adjusted):
            self._console.print(
                f"step {event.step:,}: {event.name} {event.before:.4g} -> {event.after:.4g} ({_escape(event.reason)})"
            )
        elif isinstance(event, Finished):
            self._draw(now)
            self.close()
        elif (now >= self._next or isinstance(event, Evaluated | Estimated)) and not at_end:
            self._draw(now)

    def _draw(self, now: float) -> None:
        if self._live is None:
            self._next = now + LINE_SECONDS
            self._console.print("  ".join(f"{name} {value}" for name, value in self._state.facts(now)), soft_wrap=True)
        else:
            self._next = now + REDRAW_SECONDS
            from rich.console import Group
            from rich.progress_bar import ProgressBar
            from rich.table import Table as Grid
            from rich.text import Text

            share = self._state.step / self._state.total if self._state.total else 0.0
            bar = Grid.grid(padding=(0, 1), expand=False)
            bar.add_row(
                ProgressBar(1.0, min(share, 1.0), width=40, complete_style="cyan", finished_style="green"),
                Text(f"{share:4.0%}", style="bold"),
            )
            grid = Grid.grid(padding=(0, 2))
            for name, text in self._state.facts(now):
                grid.add_row(Text(f"{name:>10}", style="dim"), Text(text))
            self._live.update(Group(bar, grid) if self._state.total else grid, refresh=True)


class Table:
    """Prints a table of all numbers every `every` environment steps, and each evaluation.

    console: a `rich.console.Console`; by default one on the standard output.
    """

    def __init__(self, every: int = 10_000, console: Any = None):
        from rich.console import Console

        self._console = console or Console(file=cast(Any, Lasting(sys.stdout)), highlight=False)
        self._recorder = MetricsRecorder(every)

    def __call__(self, event: Event) -> None:
        from rich.table import Table as Grid

        for record in self._recorder(event):
            values = scalars(record)
            if not values:
                continue
            grid = Grid("metric", title=f"step {record['step']:,}", title_justify="left")
            grid.add_column("value", justify="right")
            for tag, value in values.items():
                grid.add_row(tag, _number(value))
            self._console.print(grid)


class _State:
    """What the progress bar shows, kept up to date event by event."""

    def __init__(self) -> None:
        self.step, self.first_step, self.total = 0, 0, 0
        self.began = self.compiled = 0.0  # a time, and seconds
        self.finished = False
        self.episodes: deque[EpisodeEnd] = deque(maxlen=RECENT_EPISODES)
        self.losses: dict[str, float] = {}
        self.metrics: dict[str, deque[float]] = {}  # the means of the last collections with values
        self.evaluation: Evaluated | None = None
        self.estimated: Estimated | None = None
        self.best: float | None = None

    def take(self, event: Event, now: float) -> None:
        late = isinstance(event, Evaluated) and event.step < self.step  # beside training
        self.step = self.step if late else event.step
        if isinstance(event, Started):
            self.first_step, self.began, self.finished, self.compiled = event.step, now, False, 0.0
            self.total = int(event.description.get("end") or event.description.get("total") or 0)
        elif isinstance(event, Collected):
            self.episodes.extend(event.episodes)
            for name, values in event.metrics.items():
                self.metrics.setdefault(name, deque(maxlen=RECENT_EPISODES)).append(float(values.mean()))
        elif isinstance(event, Learned):
            self.losses = event.losses
            self.compiled += event.compile_seconds
        elif isinstance(event, Evaluated):
            self.evaluation = event
            self.best = event.mean if event.best else self.best
        elif isinstance(event, Estimated):
            self.estimated = event
        elif isinstance(event, Finished):
            self.finished = True

    def rate(self, now: float) -> float:
        """Environment steps per second since this session started."""
        return (self.step - self.first_step) / max(now - self.began, 1e-9)

    def facts(self, now: float) -> list[tuple[str, str]]:
        """What is known, as (name, text)."""
        rate = self.rate(now)
        facts = [("step", f"{self.step:,}" + (f"/{self.total:,}" if self.total else ""))]
        if self.episodes:
            mean = sum(episode.total for episode in self.episodes) / len(self.episodes)
            each = _named(means_by_agent(self.episodes))
            facts.append(
                ("return", f"{_number(mean)} ({each + '; ' if each else ''}last {len(self.episodes)} episodes)")
            )
        if self.evaluation is not None:
            best = "" if self.best is None else f", best {_number(self.best)}"
            each = _named(self.evaluation.mean_by_agent)
            found = [_number(self.evaluation.mean)] if self.evaluation.returns else []
            mean_of = ", ".join([*found, *filter(None, [_named(self.evaluation.metrics)])])
            mean_of += f" ({each})" if each else ""
            facts.append(("evaluated", f"{mean_of} at step {self.evaluation.step:,}{best}"))
        if self.estimated is not None:
            each = _named({name: found.value for name, found in self.estimated.estimates.items()})
            facts.append(("estimated", f"{each} at step {self.estimated.step:,}"))
        if self.losses:
            facts.append(("losses", _named(self.losses)))
        if self.metrics:
            facts.append(("metrics", _named({name: sum(each) / len(each) for name, each in self.metrics.items()})))
        facts.append(("steps/s", f"{rate:,.0f}"))
        if self.compiled >= 1.0:
            facts.append(("compiled", _duration(self.compiled)))
        if self.finished:
            facts.append(("took", _duration(now - self.began)))
        elif self.total and rate > 0:
            facts.append(("left", _duration((self.total - self.step) / rate)))
        return facts


def _named(values: dict[str, float]) -> str:
    return listed(f"{name} {_number(value)}" for name, value in values.items())


def _number(value: float) -> str:
    if value != value or abs(value) >= 1e12:
        return f"{value:.4g}"
    if value == int(value) and abs(value) >= 1000:
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


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
                shown += _fields(field.name, getattr(event, field.name), isinstance(event, Started))
        self._stream.write("  ".join(shown) + "\n")
        self._stream.flush()


def _fields(name: str, value: Any, begins: bool) -> list[str]:
    if begins and isinstance(value, dict):
        return [f"{key} {value[key]}" for key in ("algorithm", "environment", "engine", "end") if key in value]
    if name == "episodes" and isinstance(value, tuple):
        returns = ", ".join(f"{episode.total:.4g}" for episode in value)
        return [f"returns {returns}"] if returns else []
    if isinstance(value, Estimate):
        return [str(value)]
    if isinstance(value, dict):
        return [text for key, part in value.items() for text in _fields(key, part, False)]
    if isinstance(value, np.ndarray):
        return [f"{name} {value.mean():.4g}"]
    if isinstance(value, tuple):
        return [f"{name} {', '.join(map(_value, value))}"] if value else []
    return [f"{name} {_value(value)}"]


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("\n", "\\n")


class EpisodeLines:
    """Prints the mean reward of the last episodes and the loss: a callback for `RL.train`.

    every: episodes between two lines; None: about ten lines in a run of `total` episodes, or one every ten.
    """

    def __init__(self, total: int | None, every: int | None = None, console: Any = None):
        from rich.console import Console

        self._console = Console(highlight=False) if console is None else console
        self._every = every or max(1, (total or 100) // 10)
        self._total = total
        self._rewards: deque[float] = deque(maxlen=self._every)
        self._began = 0.0

    def on_train_begin(self, logs: dict[str, float]) -> None:
        self._began = time.perf_counter()

    def on_episode_end(self, episode: int, logs: dict[str, float]) -> None:
        self._rewards.append(logs["reward"])
        if (episode + 1) % self._every == 0 or episode + 1 == self._total:
            of = "" if self._total is None else f" of {self._total}"
            loss = f"   loss {logs['loss']:.4g}" if "loss" in logs else "   nothing learned yet"
            mean = sum(self._rewards) / len(self._rewards)
            self._console.print(f"episode {episode + 1}{of}   reward {mean:.4g}{loss}   {self._elapsed()}")

    def on_train_end(self, logs: dict[str, float]) -> None:
        self._console.print(f"done in {self._elapsed()}")

    def _elapsed(self) -> str:
        seconds = time.perf_counter() - self._began
        return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
