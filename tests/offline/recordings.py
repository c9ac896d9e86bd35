"""Datasets whose every number says where it belongs: (episode, t)."""

from __future__ import annotations

import numpy as np
import pytest

from etude.base.data import Episode
from etude.base.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Spaces, Tuple
from etude.offline import Dataset
from etude.offline.dataset import canonical_spaces

each_format = pytest.mark.parametrize("form", ("parquet", "hdf5", "jsonl", "minari"))
CODE = Box(-np.inf, np.inf, (2,), np.float64)
NESTED = Dict({"code": CODE, "more": Tuple([Discrete(9, start=3), Box(0, 255, (2, 3, 1), np.uint8)])})
CHOICES = MultiDiscrete([[2, 3]], start=[[0, 5]])
SPACES = {
    "box": Spaces(CODE, Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32))),
    "discrete": Spaces(CODE, Discrete(5, start=-1)),
    "multidiscrete": Spaces(NESTED, MultiDiscrete([3, 4], start=[1, -2])),
    "multibinary": Spaces(NESTED, MultiBinary(3)),
    "free": Spaces(NESTED, Box(-np.inf, np.inf, (1,), np.float32)),
    "wide": Spaces(CODE, Box(-2, 3, (2, 3), np.float64)),
    "several": Spaces(
        NESTED,
        Dict(
            {
                "b": Box(0, 9, (), np.float32),
                "a": Tuple([MultiDiscrete([[2, 3]], start=[[0, 5]]), Discrete(4, start=1)]),
            }
        ),
    ),
}


def episode(number: int, length: int, spaces: Spaces, terminated: bool = True) -> Episode:
    """Codes (number, t) everywhere, in canonical values; actions of all sizes."""
    rng = np.random.default_rng(number)
    codes = np.stack([np.full(length + 1, number), np.arange(length + 1)], -1).astype(np.float32)
    observation = codes
    if isinstance(spaces.observation, Dict):
        image = rng.integers(0, 256, (length + 1, 2, 3, 1)).astype(np.uint8)
        observation = {"code": codes, "more": (np.arange(length + 1) % 9, image)}
    space = canonical_spaces(spaces).action
    space.seed(number)
    action = np.stack([space.sample() for _ in range(length)])
    reward = (100 * number + np.arange(length)).astype(np.float32)
    extras = {"log_prob": -reward - 1, "place": codes[:-1] + 0.5}
    return Episode(observation, action, reward, terminated, not terminated, extras)


def dataset(kind: str) -> Dataset:
    """Four episodes: terminated, truncated, of one transition, and terminated again."""
    spaces = SPACES[kind]
    episodes = (
        episode(1, 4, spaces),
        episode(2, 3, spaces, False),
        episode(3, 1, spaces, False),
        episode(4, 2, spaces),
    )
    return Dataset(episodes, spaces, "Codes-v0")
