"""How large shards become, in every format."""

from __future__ import annotations

import numpy as np
import pytest
from recordings import SPACES, each_format

from etude.base.data import Episode
from etude.base.spaces import Box, Spaces
from etude.offline import Writer
from etude.offline.files import metadata_of

pytestmark = pytest.mark.usefixtures("quick_shards")
NUMBERS = Spaces(Box(-np.inf, np.inf, (3,), np.float32), Box(-1, 1, (2,), np.float32))


def size_of(path):
    return sum(each.stat().st_size for each in [path, *path.rglob("*")] if each.is_file())


def written(folder, form, lengths, max_bytes):
    """The sizes of the shards of random episodes of these lengths, and the transitions in each."""
    rng = np.random.default_rng(0)
    with Writer(folder, form, max_bytes=max_bytes, compression="none", spaces=NUMBERS) as writer:
        for length in lengths:
            noise = rng.normal(size=(length + 1, 3)).astype(np.float32)
            writer.write(
                [Episode(noise, noise[1:, :2].clip(-1, 1), noise[1:, 0], True, False, {"log_prob": noise[1:, 1]})]
            )
    paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    return list(map(size_of, paths)), [metadata_of(path)["transitions"] for path in paths]


@each_format
def test_shards_end_within_five_percent_of_their_size(tmp_path, form):
    spaces, rng = SPACES["box"], np.random.default_rng(0)
    size, episodes = {"parquet": (2**19, 100), "hdf5": (2**20, 130), "jsonl": (2**20, 40)}.get(form, (2**20, 80))
    with Writer(tmp_path, form, max_bytes=size, spaces=spaces) as writer:
        for _ in range(episodes):
            noise = rng.normal(size=(501, *spaces.observation.shape)).astype(np.float32)
            action = rng.uniform(spaces.action.low, spaces.action.high, (500, 2)).astype(np.float32)
            writer.write([Episode(noise, action, noise[1:, 0], True, False, {"log_prob": noise[1:, 1]})])
    sizes = [size_of(path) for path in sorted(tmp_path.iterdir())][:-1]
    assert len(sizes) > 1 and all(0.95 * size <= each <= 1.05 * size for each in sizes), sizes


@each_format
def test_shards_of_short_episodes_end_within_five_percent_of_their_size(form, tmp_path):
    lengths = np.random.default_rng(1).integers(20, 200, 150 if form == "minari" else 200).tolist()
    sizes, transitions = written(tmp_path, form, lengths, 2**19)
    assert len(sizes) >= 2 and sum(transitions) == sum(lengths)
    assert all(abs(size / 2**19 - 1) <= 0.05 for size in sizes[:-1])


@each_format
def test_an_episode_longer_than_a_shard_is_one(form, tmp_path):
    lengths = [4_000, 5_000, 4_000, 30, 30]
    sizes, transitions = written(tmp_path, form, lengths, 2**16)
    assert transitions == [4_000, 5_000, 4_000, 60] and min(sizes[:3]) > 2**16
