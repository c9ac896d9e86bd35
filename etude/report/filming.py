"""A callback that films episodes of the agent while it trains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etude.base.errors import ConfigError
from etude.base.events import Collected, Finished, Started
from etude.envs import AdaptedEnvironment, make_environment
from etude.envs.tasks import task_data
from etude.report.display import has_display, render_without_display
from etude.report.video import can_write_mp4, write_film
from etude.rollout.actor import SingleEpisode
from etude.training.build import best_for
from etude.training.callbacks import Callback


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
            format = "mp4" if can_write_mp4() else "gif"
        if format not in ("mp4", "gif"):
            raise ConfigError(f"Video: format = {format!r}; expected 'mp4' or 'gif'.")
        self.every, self.folder, self.max_steps, self.seed, self.format = every, Path(folder), max_steps, seed, format
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
        environment = make_environment(run.environment, render_mode="rgb_array")
        task = run.task if self.task is None else self.task
        try:
            if task is not None:
                environment.set_task(task)
            path = self.folder / f"step-{step}.{self.format}"
            write_film(self._frames(run, environment), path, environment.render_fps)
        finally:
            environment.close()

    def _frames(self, run: Any, environment: AdaptedEnvironment) -> Iterator[Any]:
        episode = SingleEpisode(environment, run.actor(), best_for(run.agent, environment.spaces), self.seed)
        for _ in episode.steps(self.max_steps):
            yield environment.render()
