"""The ring as views of the replay read it: itself, or relabelled with other goals (`Hindsight`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from etude.base.checks import Stored
from etude.base.data import Batch
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.replay.episodes import EpisodeIndex


class RingView(Protocol):
    """The methods of `Ring` that views of transitions use. The last axes of `rows` are those of the rows that the view
    was called with; axes of its own (the steps of a path) come before them."""

    spaces: Spaces
    episodes: EpisodeIndex

    def __len__(self) -> int: ...

    def locate(self, positions: np.ndarray) -> np.ndarray: ...

    def ahead(self, rows: np.ndarray, count: int | np.ndarray = 1) -> np.ndarray: ...

    def observation(self, rows: np.ndarray) -> Tree: ...

    def following(self, rows: np.ndarray) -> Tree: ...

    def pair(self, rows: np.ndarray) -> tuple[Tree, Tree]: ...

    def following_part(self, key: str, rows: np.ndarray) -> Tree: ...

    def actions(self, rows: np.ndarray) -> np.ndarray: ...

    def outcome(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...

    def stored(self, rows: np.ndarray, names: Iterable[str] | None = None) -> dict[str, np.ndarray]: ...


class TransitionView(Protocol):
    """A view that needs no more than a `RingView`: its batches are made of rows of episodes."""

    reward_scale: float

    def adjust(self, hyper: Mapping[str, float]) -> None: ...

    def place(self, ring: RingView, rows: np.ndarray) -> np.ndarray:
        """The rows that a batch starts from when these are sampled; placing them again changes nothing."""

    def __call__(self, ring: RingView, rows: np.ndarray, weight: np.ndarray) -> Batch: ...

    def state(self) -> dict[str, Any]: ...

    def check_state(self, saved: Stored) -> None: ...

    def restore(self, state: dict[str, Any]) -> None: ...


class Stateless:
    """A part of a replay with nothing to save."""

    def state(self) -> dict[str, Any]:
        return {}

    def check_state(self, saved: Stored) -> None:
        saved.fields(())

    def restore(self, state: dict[str, Any]) -> None: ...
