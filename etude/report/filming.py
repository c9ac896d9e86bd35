"""Episodes of an agent in a window, in a notebook, on film or as text: after training, or by a callback while it
trains. Films need neither a display nor a system-wide ffmpeg."""

from __future__ import annotations

import base64
import importlib.util
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from etude.base import checks
from etude.base.errors import ConfigError, MissingExtra
from etude.base.events import Collected, Finished, Learned, Sampled, Started
from etude.base.spaces import Tokens, describe, leaves
from etude.base.text import printable
from etude.checkpoint import replacing, temporary_beside
from etude.envs import AdaptedEnvironment, make_environment
from etude.envs.adapter import task_data
from etude.report.pictures import in_notebook
from etude.rollout.actor import SingleEpisode
from etude.training.callbacks import Callback, as_list
from etude.training.kinds.by_policy import best_explorer


def has_display() -> bool:
    """Whether a window can be opened."""
    return sys.platform in ("win32", "darwin") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def render_without_display() -> None:
    """Let pygame and MuJoCo draw into memory. They read this when they are imported; what the user has set stays."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("MUJOCO_GL", "egl")


def write_video(frames: Iterable[np.ndarray], path: str | Path, fps: float = 30.0) -> int:
    """Write RGB frames [H, W, 3] uint8 to an H.264 mp4 at `path`; returns how many there were.

    fps: frames per second; environments tell theirs as `metadata["render_fps"]`.
    Raises ConfigError where there is no frame, or one is no RGB picture, and MissingExtra without the extra `video`;
    `path` is then left as it was.
    """
    path = Path(path)
    if not can_write_mp4():
        raise MissingExtra(f"{path.name}: an mp4 (a .gif needs nothing more)", "video")
    from imageio_ffmpeg import write_frames

    path.parent.mkdir(parents=True, exist_ok=True)
    partial = temporary_beside(path)
    try:
        pictures = _pictures(frames, "video")
        first = next(pictures)
        size = (first.shape[1], first.shape[0])
        output = {"ffmpeg_log_level": "error", "output_params": ["-f", "mp4"]}
        with closing(write_frames(str(partial), size, fps=fps, macro_block_size=2, **output)) as writer:
            with warnings.catch_warnings():
                # JAX warns of every fork, also of one that turns into ffmpeg at once and is safe.
                warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
                writer.send(None)
            count = 0
            for picture in chain([first], pictures):
                writer.send(picture)
                count += 1
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    os.replace(partial, path)
    return count


def _pictures(frames: Iterable[np.ndarray], film: str) -> Iterator[np.ndarray]:
    """Frames with even height and width (H.264 needs that), all of one size. Raises ConfigError with what is wrong with
    one, and where there is none. film: what is made of them."""
    shape = None
    for count, frame in enumerate(frames):
        given = f"{type(frame).__name__} {getattr(frame, 'shape', '')} {getattr(frame, 'dtype', '')}".strip()
        if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
            raise ConfigError(
                f"Frame {count} is {given}; a video needs RGB arrays of shape [height, width, 3] and dtype uint8."
            )
        even = np.ascontiguousarray(frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2])
        if shape is not None and even.shape != shape:
            raise ConfigError(f"Frame {count} is {given}, the first was {shape}; all frames of a video have one size.")
        shape = even.shape
        yield even
    if shape is None:
        raise ConfigError(f"There is no frame to make a {film} of. Does the environment render with 'rgb_array'?")


def write_film(frames: Iterable[np.ndarray], path: str | Path, fps: float = 30.0) -> int:
    """Write a gif or an mp4, as the name of `path` ends; returns how many frames there were. ConfigError for others."""
    writers = {".gif": write_gif, ".mp4": write_video}
    ending = Path(path).suffix.lower()
    if ending not in writers:
        raise ConfigError(f"{path}: a video is written as .mp4 or .gif; got {ending or 'no ending'}.")
    partial = temporary_beside(Path(path))
    try:  # before anything is played
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.touch()
        partial.unlink()
    except OSError as error:
        raise ConfigError(
            f"The video {path} cannot be written: {error.strerror or error}. Name another file (--video)."
        ) from error
    return writers[ending](frames, path, fps)


def can_write_mp4() -> bool:
    """Whether the extra `video` is installed, which brings ffmpeg."""
    return importlib.util.find_spec("imageio_ffmpeg") is not None


def write_gif(frames: Iterable[np.ndarray], path: str | Path, fps: float = 30.0) -> int:
    """Write RGB frames [H, W, 3] uint8 to a gif that repeats; returns how many there were. See `write_video`."""
    from PIL import Image

    first, *others = map(Image.fromarray, _pictures(frames, "gif"))
    with replacing(Path(path)) as file:
        first.save(file, "GIF", save_all=True, append_images=others, duration=1000 / fps, loop=0)
    return 1 + len(others)


LONGEST = 10_000  # characters of a sample that are reported


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
) -> Film | str | None:  # fmt: skip
    """Play whole episodes with the best actions: in a window, or where a path is given, or in a cell of a notebook, on
    film; of an environment of texts, without a path, as a text. seed: of the first episode; each further one adds 1.
    max_steps: of all together. task: None takes that of `set_task`. ended: called after each episode.

    ConfigError where there is neither a path nor a display, and where the environment cannot be rendered.
    """
    if path is None and plays_texts(run):
        texts = []
        for text, episode in games(run, episodes, max_steps, seed, task):
            texts.append(text)
            ended(episode)
        return "\n".join(texts)
    folder = None
    if path is None and in_notebook():
        folder = tempfile.TemporaryDirectory()  # removed with the film
        path = Path(folder.name, f"film.{_film_format()}")
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


def plays_texts(run: Any) -> bool:
    """Whether what the agent of a run sees are tokens of a text."""
    return any(isinstance(leaf, Tokens) for _, leaf in leaves(run.engine.spaces.observation))


def games(
    run: Any, episodes: int = 1, max_steps: int = 5_000, seed: int = 0, task: Any = None, colour: bool = False
) -> Iterator[tuple[str, SingleEpisode]]:
    """The text of each of some whole episodes, once it ended, and the episode. colour: as the environment renders it
    for a terminal ("ansi"), where it does. Other arguments: see `watch`."""
    environment = None
    if colour and _declares(run, "ansi"):
        with suppress(ConfigError):  # what makes it does not take a render mode
            environment = _rendered(run, "ansi", task)
    with closing(environment or _rendered(run, None, task)) as environment:
        for episode, steps in _episodes(run, environment, episodes, max_steps, seed):
            for _ in steps:
                pass
            text = environment.render()
            yield text if environment.env.render_mode == "ansi" else printable(text), episode


def _declares(run: Any, mode: str) -> bool:
    """Whether the environment of a run declares a render mode."""
    with closing(make_environment(run.environment)) as environment:
        return mode in (environment.env.metadata.get("render_modes") or ())


def _rendered(run: Any, mode: str | None, task: Any) -> AdaptedEnvironment:
    """An environment of the run that renders, and begins its next episode with this task."""
    if mode == "rgb_array" and plays_texts(run) and not _declares(run, mode):
        raise ConfigError(
            "Games of texts have no pictures. Read them: etude watch RUN without --video, run.watch() without a path, "
            "or report.Text while training."
        )
    environment = make_environment(run.environment, **({} if mode is None else {"render_mode": mode}))
    task = run.task if task is None else task_data(task)
    if task is not None:
        try:
            environment.set_task(task)
        except BaseException:
            environment.close()
            raise
    return environment


def _episodes(
    run: Any, environment: AdaptedEnvironment, episodes: int, max_steps: int, seed: int
) -> Iterator[tuple[SingleEpisode, Iterator[None]]]:
    """Episodes to play, each with its steps."""
    for name, value in {"episodes": episodes, "max_steps": max_steps}.items():
        checks.whole_number(name, value)
    actor, left, number = run.actor(), max_steps, 0
    while number < episodes and left:
        episode = SingleEpisode(environment, actor, best_explorer(run.agent, environment.spaces), seed + number)
        yield episode, episode.steps(left)
        left, number = left - episode.length, number + 1


def _played(
    run: Any, environment: AdaptedEnvironment, episodes: int, max_steps: int, seed: int,
    ended: Callable[[SingleEpisode], None] = lambda episode: None,
) -> Iterator[None]:  # fmt: skip
    """Yields after every reset and step, ready to be rendered."""
    for episode, steps in _episodes(run, environment, episodes, max_steps, seed):
        yield from steps
        ended(episode)


def _film_format() -> str:
    """mp4 with the extra `video`, else gif."""
    return "mp4" if can_write_mp4() else "gif"


class _Shown(Callback):
    """Shows episodes with the best actions of the present agent, on an environment of its own, before training and
    after every `every` environment steps. Training goes on with the same numbers."""

    def __init__(self, every: int, max_steps: int, seed: int, task: Any, **numbers: int):
        for name, value in {"every": every, "max_steps": max_steps, **numbers}.items():
            checks.whole_number(f"{type(self).__name__}: {name}", value)
        self.every: int = every
        self.max_steps: int = max_steps
        self.seed: int = seed
        self.task: Any | None = None if task is None else task_data(task)
        self._last = 0  # the step at which something was shown

    def show(self, run: Any, step: int) -> None:
        """Play, and show it."""
        raise NotImplementedError

    def on_train_begin(self, run: Any, event: Started) -> None:
        self._show(run, event.step)

    def on_steps_collected(self, run: Any, event: Collected | Learned) -> None:
        if event.step // self.every > self._last // self.every:
            self._show(run, event.step)

    on_update = on_steps_collected  # on recorded data, nothing is collected

    def on_train_end(self, run: Any, event: Finished) -> None:
        if event.step > self._last:
            self._show(run, event.step)

    def _show(self, run: Any, step: int) -> None:
        self._last = step
        if run.chief:
            self.show(run, step)


class Video(_Shown):
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
        super().__init__(every, max_steps, seed, task)
        if format is None:
            format = _film_format()
        if format not in ("mp4", "gif"):
            raise ConfigError(f"Video: format = {format!r}; expected 'mp4' or 'gif'.")
        self.folder: Path = Path(folder)
        self.format = format

    def show(self, run: Any, step: int) -> None:
        if not has_display():
            render_without_display()
        with closing(_rendered(run, "rgb_array", self.task)) as environment:
            played = _played(run, environment, 1, self.max_steps, self.seed)
            frames = (environment.render() for _ in played)
            write_film(frames, self.folder / f"step-{step}.{self.format}", environment.render_fps)


class Text(_Shown):
    """Reports the text of episodes with the best actions of the present agent, on an environment of its own, before
    training and after every `every` environment steps, to `run.history` (and so the `metrics.jsonl` of a run directory)
    and to other reporters. Training goes on with the same numbers.

    every: environment steps between two reports; gradient steps, on recorded data. reporters: one, or a list of them,
    which the run has as well, such as `TensorBoard` and `WandB`. episodes: of a report. max_steps: at which the last
    of them ends. seed: of the first of them, the same for all reports. task: see `Video`.

    ConfigError, before the first step, where the environment is not one of texts.
    """

    def __init__(
        self, every: int, reporters: Any = (), episodes: int = 1, max_steps: int = 5_000, seed: int = 0,
        task: Any = None,
    ):  # fmt: skip
        super().__init__(every, max_steps, seed, task, episodes=episodes)
        self.episodes: int = episodes
        self.reporters: list[Any] = as_list(reporters)

    def show(self, run: Any, step: int) -> None:
        if not plays_texts(run):
            raise ConfigError(
                f"Text: observations are {describe(run.engine.spaces.observation)}; expected tokens of a text "
                "environment. Film others by report.Video."
            )
        found = list(games(run, self.episodes, self.max_steps, self.seed, self.task))
        texts = tuple(printable(text, LONGEST) for text, _ in found)
        sampled = Sampled(step, texts, tuple(episode.reward for _, episode in found))
        for reporter in (run.history, *self.reporters):
            reporter(sampled)
