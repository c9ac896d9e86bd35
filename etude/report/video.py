"""Frames to an mp4 or a gif, without a display and without a system-wide ffmpeg."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Generator, Iterable
from pathlib import Path

import numpy as np

from etude.base.errors import ConfigError, MissingExtra
from etude.checkpoint import replacing, temporary_beside


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
    writer, count, shape = None, 0, None
    try:
        for frame in frames:
            picture = _checked(frame, count, shape)
            if writer is None:
                shape = picture.shape
                size = (shape[1], shape[0])
                output = {"ffmpeg_log_level": "error", "output_params": ["-f", "mp4"]}
                writer = write_frames(str(partial), size, fps=fps, macro_block_size=2, **output)
                _start(writer)
            writer.send(picture)
            count += 1
    except BaseException:
        _stop(writer)
        partial.unlink(missing_ok=True)
        raise
    _stop(writer)
    if not count:
        raise ConfigError("There is no frame to make a video of. Does the environment render with 'rgb_array'?")
    os.replace(partial, path)
    return count


def _start(writer: Generator[object, np.ndarray | None, None]) -> None:
    with warnings.catch_warnings():
        # JAX warns of every fork, also of one that turns into ffmpeg at once and is safe.
        warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
        writer.send(None)


def _stop(writer: Generator[object, np.ndarray | None, None] | None) -> None:
    if writer is not None:
        writer.close()


def _checked(frame: np.ndarray, count: int, shape: tuple[int, ...] | None) -> np.ndarray:
    """A frame with even height and width (H.264 needs that), or a message that says what is wrong with it."""
    given = f"{type(frame).__name__} {getattr(frame, 'shape', '')} {getattr(frame, 'dtype', '')}".strip()
    if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
        raise ConfigError(
            f"Frame {count} is {given}; a video needs RGB arrays of shape [height, width, 3] and dtype uint8."
        )
    even = np.ascontiguousarray(frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2])
    if shape is not None and even.shape != shape:
        raise ConfigError(f"Frame {count} is {given}, the first was {shape}; all frames of a video have one size.")
    return even


def write_film(frames: Iterable[np.ndarray], path: str | Path, fps: float = 30.0) -> int:
    """Write a gif or an mp4, as the name of `path` ends; returns how many frames there were. ConfigError for others."""
    writers = {".gif": write_gif, ".mp4": write_video}
    ending = Path(path).suffix.lower()
    if ending not in writers:
        raise ConfigError(f"{path}: a video is written as .mp4 or .gif; got {ending or 'no ending'}.")
    _require_writable(Path(path))  # before anything is played
    return writers[ending](frames, path, fps)


def _require_writable(path: Path) -> None:
    """Raise ConfigError where no file can be written there."""
    partial = temporary_beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.touch()
        partial.unlink()
    except OSError as error:
        raise ConfigError(
            f"The video {path} cannot be written: {error.strerror or error}. Name another file (--video)."
        ) from error


def can_write_mp4() -> bool:
    """Whether the extra `video` is installed, which brings ffmpeg."""
    return importlib.util.find_spec("imageio_ffmpeg") is not None


def write_gif(frames: Iterable[np.ndarray], path: str | Path, fps: float = 30.0) -> int:
    """Write RGB frames [H, W, 3] uint8 to a gif that repeats; returns how many there were. See `write_video`."""
    from PIL import Image

    pictures: list[np.ndarray] = []
    path, shape = Path(path), None
    for frame in frames:
        pictures.append(_checked(frame, len(pictures), shape))
        shape = pictures[0].shape
    if not pictures:
        raise ConfigError("There is no frame to make a gif of. Does the environment render with 'rgb_array'?")
    first, *others = map(Image.fromarray, pictures)
    with replacing(path) as file:
        first.save(file, "GIF", save_all=True, append_images=others, duration=1000 / fps, loop=0)
    return len(pictures)
