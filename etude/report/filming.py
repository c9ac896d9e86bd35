"""Episodes of an agent in a window, in a notebook or on film: after training, or by a callback while it trains."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from etude.base.errors import ConfigError
from etude.base.events import Collected, Finished, Started
from etude.envs import AdaptedEnvironment, make_environment
from etude.envs.tasks import task_data
from etude.report.display import has_display, render_without_display
from etude.report.notebook import in_notebook
from etude.report.video import can_write_mp4, write_film
from etude.rollout.actor import SingleEpisode
from etude.training.assembly.exploration import best_for
from etude.training.callbacks import Callback


class Film(NamedTuple):
    """A film of episodes, which a notebook shows. folder: that goes with it, where nobody asked for a file."""

    path: Path
    frames: int
    fps: float
    folder: Any = None

    def __repr__(self) -> str:
        return f"{self.path}: {self.frames} frames, {self.frames / self.fps:.1f} s at {self.fps:g} frames per second"

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.path.read_bytes()).decode()
        if self.path.suffix.lower() == ".gif":
            return f'<img src="data:image/gif;base64,{data}">'
        return f'<video controls autoplay loop muted src="data:video/mp4;base64,{data}"></video>'


def watch(
    run: Any, path: str | Path | None = None, episodes: int = 1, max_steps: int = 5_000, seed: int = 0,
    task: Any = None, ended: Callable[[SingleEpisode], None] = lambda episode: None,
) -> Film | None:  # fmt: skip
    """Play whole episodes with the best actions: in a window, or where a path is given, or in a cell of a notebook, on
    film. seed: of the first episode; each further one adds 1. max_steps: of all together. task: None takes that of
    `set_task`. ended: called after each episode.

    ConfigError where there is neither a path nor a display, and where the environment cannot be rendered.
    """
    folder = None
    if path is None and in_notebook():
        folder = tempfile.TemporaryDirectory()  # removed with the film
        path = Path(folder.name, f"film.{film_format()}")
    if not has_display():
        if path is None:
            raise ConfigError("There is no display for a window. Record a video: run.watch('out.gif').")
        render_without_display()
    with closing(_rendered(run, "human" if path is None else "rgb_array", task)) as environment:
        played = _played(run, environment, episodes, max_steps, seed, ended)
        if path is None:  # environments show themselves
            for _ in played:
                pass
            return None
        frames = (environment.render() for _ in played)
        return Film(Path(path), write_film(frames, path, environment.render_fps), environment.render_fps, folder)


def _rendered(run: Any, mode: str, task: Any) -> AdaptedEnvironment:
    """An environment of the run that renders, and begins its next episode with this task."""
    environment = make_environment(run.environment, render_mode=mode)
    task = run.task if task is None else task_data(task)
    if task is not None:
        try:
            environment.set_task(task)
        except BaseException:
            environment.close()
            raise
    return environment


def _played(
    run: Any, environment: AdaptedEnvironment, episodes: int, max_steps: int, seed: int,
    ended: Callable[[SingleEpisode], None] = lambda episode: None,
) -> Iterator[None]:  # fmt: skip
    """Yields after every reset and step, ready to be rendered."""
    actor, left = run.actor(), max_steps
    for number in range(episodes):
        episode = SingleEpisode(environment, actor, best_for(run.agent, environment.spaces), seed + number)
        yield from episode.steps(left)
        left -= episode.length
        ended(episode)


def film_format() -> str:
    """mp4 with the extra `video`, else gif."""
    return "mp4" if can_write_mp4() else "gif"


class Video(Callback):
    """Films an episode with the best actions of the present agent, on an environment of its own, before training and
    after every `every` environment steps: `folder/step-<step>.mp4`, or `.gif`. Training goes on with the same numbers.

    every: environment steps between two films. folder: made if it is missing. max_steps: at which a film ends.
    seed: of the filmed episodes, the same for all. format: "mp4" or "gif"; None: mp4 with the extra `video`. task: of
    the filmed episodes, plain data; None: that of `run.set_task` at the time.

    ConfigError, before the first step, where the environment cannot render to arrays, or takes no tasks.
    """

    def __init__(
        self,
        every: int,
        folder: str | Path = "videos",
        max_steps: int = 5_000,
        seed: int = 0,
        format: str | None = None,
        task: Any = None,
    ):
        for name, value in (("every", every), ("max_steps", max_steps)):
            if type(value) is not int or value < 1:
                raise ConfigError(f"Video: {name} = {value!r}; expected a whole number of at least 1.")
        if format is None:
            format = film_format()
        if format not in ("mp4", "gif"):
            raise ConfigError(f"Video: format = {format!r}; expected 'mp4' or 'gif'.")
        self.every: int = every
        self.folder: Path = Path(folder)
        self.max_steps: int = max_steps
        self.seed: int = seed
        self.format = format
        self.task: Any | None = None if task is None else task_data(task)
        self._filmed = 0  # the step of the last film

    def on_train_begin(self, run: Any, event: Started) -> None:
        if not has_display():
            render_without_display()
        self._film(run, event.step)

    def on_steps_collected(self, run: Any, event: Collected) -> None:
        if event.step // self.every > self._filmed // self.every:
            self._film(run, event.step)

    def on_train_end(self, run: Any, event: Finished) -> None:
        if event.step > self._filmed:
            self._film(run, event.step)

    def _film(self, run: Any, step: int) -> None:
        self._filmed = step
        with closing(_rendered(run, "rgb_array", self.task)) as environment:
            played = _played(run, environment, 1, self.max_steps, self.seed)
            frames = (environment.render() for _ in played)
            write_film(frames, self.folder / f"step-{step}.{self.format}", environment.render_fps)
