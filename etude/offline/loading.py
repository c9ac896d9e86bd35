"""The recorded data of a run: episodes in memory, or those that a checkpoint holds."""

from __future__ import annotations

import copy
import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from etude.base import trees
from etude.base.data import CLIPPED, LOG_PROB, SAMPLED_ACTION, Episode, Steps
from etude.base.errors import ConfigError, DataError
from etude.base.spaces import Space, Spaces, describe, leaves, origins_of, tree_of, with_origins, within
from etude.base.trees import Tree
from etude.offline.dataset import Dataset, counted_from_start, counted_from_zero
from etude.offline.files import FORMATS, read
from etude.offline.reader import EpisodeSource, Reader, is_remote
from etude.offline.tables import ArrowTable, FormattedDataset


@dataclass(frozen=True)
class CheckpointedData:
    """Data whose transitions a checkpoint's replay holds. about: the `summary` of the data that was trained on."""

    about: dict[str, Any]

    def __len__(self) -> int:
        """The number of transitions."""
        return self.about["transitions"]

    def summary(self) -> dict[str, Any]:
        """The data in plain numbers."""
        return self.about

    def steps(self) -> Steps | None:
        """None: the transitions come with the state of the replay."""
        return None


RecordedData = Dataset | CheckpointedData


def load_data(data: Any, spaces: Spaces, action_space: Space) -> RecordedData:
    """The episodes that `data` stands for, in memory: what a `Reader` reads, a `Dataset`, a table, canonical episodes,
    or an `EpisodeSource`; `CheckpointedData` as it is.

    spaces: the agent's. action_space: the environment's own. Raises ConfigError for other data, and DataError where
    there are no episodes or they have other spaces.
    """
    if isinstance(data, CheckpointedData):
        return data
    source = Spaces(spaces.observation, action_space)
    found = _loaded(data, source)
    if not found.episodes:
        raise DataError("There are no episodes to learn from; expected at least one.")
    found = _counted_alike(found, spaces.observation)
    for what, mine, theirs in (
        ("observations", found.spaces.observation, spaces.observation),
        ("actions", found.spaces.action, spaces.action),
    ):
        if describe(mine) != describe(theirs):
            raise DataError(
                f"The data holds {what} of {describe(mine)}, and the environment has {describe(theirs)}. Give the "
                "environment that the data was recorded in."
            )
    # The same episodes with the actions that the environment executed; samples that `log_prob` is of are kept
    space = found.spaces.action
    actions = [within(space, episode.action) for episode in found.episodes]
    pairs = list(zip(found.episodes, actions, strict=True))
    if all(np.array_equal(episode.action, action) for episode, action in pairs):
        return found
    samples = LOG_PROB in found.episodes[0].extras and CLIPPED not in found.episodes[0].extras
    return replace(
        found,
        episodes=tuple(
            replace(
                episode,
                action=action,
                extras={SAMPLED_ACTION: episode.action, **episode.extras} if samples else episode.extras,
            )
            for episode, action in pairs
        ),
    )


def _counted_alike(data: Dataset, space: Space) -> Dataset:
    """The same episodes, whose observations are counted from the origins of this space."""
    own, wanted = data.source.observation, origins_of(space)
    if str(origins_of(own)) == str(wanted):
        return data
    there = with_origins(own, wanted) if not origins_of(own) else space

    def counted(observation: Tree) -> Tree:
        pairs = zip(trees.leaves(observation), leaves(own), leaves(there), strict=True)
        each = (counted_from_zero(new, counted_from_start(old, leaf)) for leaf, (_, old), (_, new) in pairs)
        return tree_of(space, each)

    episodes = tuple(replace(episode, observation=counted(episode.observation)) for episode in data.episodes)
    return replace(data, episodes=episodes, source=replace(data.source, observation=there))


def _loaded(data: Any, source: Spaces) -> Dataset:
    if isinstance(data, Dataset):
        return data
    if isinstance(data, Reader):
        data, own = copy.copy(data), data.source
        data.source = replace(own, observation=with_origins(own.observation, origins_of(source.observation)))
        return data.read()
    if isinstance(data, str | os.PathLike):
        return read(Path(data), source) if _is_one_file(os.fspath(data)) else Reader(data, spaces=source).read()
    if isinstance(data, ArrowTable | FormattedDataset):
        return read(data, source)
    if isinstance(data, EpisodeSource):
        return Dataset(tuple(data.episodes(np.random.default_rng(0))), source)
    if isinstance(data, Sequence) and all(isinstance(each, Episode) for each in data):
        return Dataset(tuple(data), source)
    if isinstance(data, Sequence) and all(isinstance(each, str | os.PathLike) for each in data):
        return Reader(data, spaces=source).read()
    raise ConfigError(
        f"data is a {type(data).__name__}; expected the path of a file or folder ({', '.join(FORMATS)}, Minari), a "
        "list of these, an etude.offline.Reader or Dataset, a list of episodes, or an object with spaces and "
        "episodes(rng)."
    )


def _is_one_file(name: str) -> bool:
    path = Path(name)
    return not (is_remote(name) or path.is_dir() or glob.has_magic(name)) and (path.suffix != "" or path.exists())
