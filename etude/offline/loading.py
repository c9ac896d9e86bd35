"""The recorded data of a run: episodes in memory, or those that a checkpoint holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.base.data import Episode, Steps
from etude.base.errors import ConfigError, DataError
from etude.base.spaces import Space, Spaces, describe
from etude.offline.dataset import Dataset
from etude.offline.files import read


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
    """The episodes that `data` stands for: a path, a `Dataset`, or canonical episodes; `CheckpointedData` as it is.

    spaces: the agent's. action_space: the environment's own. Raises ConfigError for other data, and DataError where
    there are no episodes or they have other spaces.
    """
    if isinstance(data, CheckpointedData):
        return data
    source = Spaces(spaces.observation, action_space)
    if isinstance(data, str | Path):
        found = read(data, source)
    elif isinstance(data, Dataset):
        found = data
    elif isinstance(data, Sequence) and all(isinstance(episode, Episode) for episode in data):
        found = Dataset(tuple(data), source)
    else:
        raise ConfigError(
            f"data is a {type(data).__name__}; expected the path of a file (.h5, .hdf5, .parquet), an "
            "etude.offline.Dataset, or a list of episodes."
        )
    if not found.episodes:
        raise DataError("There are no episodes to learn from; expected at least one.")
    for what, mine, theirs in (
        ("observations", found.spaces.observation, spaces.observation),
        ("actions", found.spaces.action, spaces.action),
    ):
        if describe(mine) != describe(theirs):
            raise DataError(
                f"The data holds {what} of {describe(mine)}, and the environment has {describe(theirs)}. Give the "
                "environment that the data was recorded in."
            )
    return found
