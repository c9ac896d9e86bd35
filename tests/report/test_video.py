import importlib.util

import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image

from etude.base.errors import ConfigError, MissingExtra
from etude.report import Video, write_film, write_video


def frames(count, height=64, width=96):
    for i in range(count):
        frame = np.zeros((height, width, 3), np.uint8)
        frame[..., 0] = 10 * i
        yield frame


def test_a_video_has_every_frame_at_the_given_rate(tmp_path):
    assert write_video(frames(20), tmp_path / "deep" / "out.mp4", fps=10) == 20
    read = imageio_ffmpeg.read_frames(str(tmp_path / "deep" / "out.mp4"))
    about = next(read)
    reds = [np.frombuffer(frame, np.uint8).reshape(64, 96, 3)[..., 0].mean() for frame in read]
    assert about["fps"] == 10
    assert about["size"] == (96, 64)
    assert len(reds) == 20
    np.testing.assert_allclose(reds, 10 * np.arange(20), atol=6)


def test_odd_sizes_lose_one_row_or_column(tmp_path):
    write_video(frames(2, height=65, width=97), tmp_path / "out.mp4")
    assert next(imageio_ffmpeg.read_frames(str(tmp_path / "out.mp4")))["size"] == (96, 64)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([], "no frame"),
        ([None], "Frame 0 is NoneType"),
        ([np.zeros((8, 8, 3))], r"Frame 0 is ndarray \(8, 8, 3\) float64; a video needs RGB"),
        ([np.zeros((8, 8, 3), np.uint8), np.zeros((8, 10, 3), np.uint8)], "Frame 1 .* one size"),
    ],
)
def test_what_is_no_video_is_refused_and_leaves_nothing_behind(tmp_path, bad, message):
    with pytest.raises(ConfigError, match=message):
        write_video(bad, tmp_path / "out.mp4")
    assert list(tmp_path.iterdir()) == []


def test_an_environment_that_fails_while_it_is_filmed_leaves_the_old_video(tmp_path):
    write_video(frames(3), tmp_path / "out.mp4")
    before = (tmp_path / "out.mp4").read_bytes()

    def failing():
        yield from frames(2)
        raise RuntimeError("the environment broke")

    with pytest.raises(RuntimeError, match="the environment broke"):
        write_video(failing(), tmp_path / "out.mp4")
    assert [path.name for path in tmp_path.iterdir()] == ["out.mp4"]
    assert (tmp_path / "out.mp4").read_bytes() == before


@pytest.mark.parametrize(("name", "start"), [("out.gif", b"GIF89a"), ("OUT.MP4", b"\x00\x00\x00")])
def test_a_film_is_what_its_name_says(name, start, tmp_path):
    assert write_film(frames(3), tmp_path / name, fps=10) == 3
    assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.parametrize("name", ["out.avi", "out"])
def test_another_kind_of_film_is_refused(name, tmp_path):
    with pytest.raises(ConfigError, match=r"as \.mp4 or \.gif"):
        write_film(frames(3), tmp_path / name)
    assert not (tmp_path / name).exists()


def test_without_ffmpeg_an_mp4_is_refused_with_what_to_write_and_a_callback_films_gifs(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"out\.mp4: an mp4 \(a \.gif .*'etude\[video\]'"):
        write_film(frames(3), tmp_path / "out.mp4")
    assert not (tmp_path / "out.mp4").exists()
    assert Video(8).format == "gif"
    assert write_film(frames(3), tmp_path / "out.gif") == 3
    with Image.open(tmp_path / "out.gif") as film:
        assert (film.n_frames, film.size) == (3, (96, 64))
