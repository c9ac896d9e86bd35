"""The state of a rollout as plain data, by environment number: the same whatever the number of workers was."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from etude import trees
from etude.data import EpisodeEnd, Steps
from etude.errors import CheckpointError
from etude.seeding import generator, generator_state
from etude.spaces import Spaces, zeros
from etude.trees import Tree

Ahead = Steps | tuple[Steps, ...]  # what `collect` or `collect_episodes` is to return next

_TREES = ("observation", "next_observation", "final_observation")


def pack(columns: list[dict[str, Any]], ahead: Ahead | None = None) -> dict[str, Any]:
    """The state of all environments, in the order of their numbers, and what was collected ahead."""
    return {
        "environments": {str(i): column for i, column in enumerate(columns)},
        "ahead": _plain_ahead(ahead),
    }


def unpack(state: dict[str, Any], environments: int, spaces: Spaces) -> tuple[list[dict[str, Any]], Ahead | None]:
    """What `pack` was given; raises CheckpointError where it is of another number of environments."""
    columns = state["environments"]
    if len(columns) != environments:
        raise CheckpointError(
            f"The saved rollout has {len(columns)} environments, this one {environments}. Resume with the same number."
        )
    return [columns[str(i)] for i in range(environments)], _ahead(state["ahead"], spaces)


def open_episodes(state: dict[str, Any]) -> np.ndarray:
    """The numbers of the open episodes in a saved state, [N]."""
    columns = state["environments"]
    return np.array([columns[str(i)]["episode"] for i in range(len(columns))], np.int64)


def given_up(episodes: np.ndarray, run_seed: int, step: int, spaces: Spaces) -> dict[str, Any]:
    """A state from which every environment begins the episode after `episodes` [N], with new noise: what is left where
    a rollout failed in the middle of a chunk."""
    action = zeros(spaces.action, 0)
    nowhere = [np.empty(0) for _ in trees.leaves(zeros(spaces.observation))]  # equals no observation: nothing replays
    columns = []
    for column, episode in enumerate(episodes.tolist()):
        opened = {"episode": episode, "seed": 0, "actions": action, "observation": nowhere}
        noise = generator_state(generator(run_seed, "explore again", column, step))
        counted = {"episode": episode, "length": 0, "total": 0.0, "restarted": True, "generator": noise}
        columns.append({"open": opened, **counted})
    return pack(columns)


def notes(lost: list[int]) -> list[str]:
    """What to tell about environments whose open episode could not be replayed."""
    if not lost:
        return []
    numbers = ", ".join(str(number) for number in sorted(lost))
    return [f"The open episode of environment {numbers} could not be replayed; it starts a new episode."]


def _plain_ahead(ahead: Ahead | None) -> Any:
    if isinstance(ahead, tuple):
        return [_plain(steps) for steps in ahead]
    return None if ahead is None else _plain(ahead)


def _plain(steps: Steps) -> dict[str, Any]:
    plain = {field.name: getattr(steps, field.name) for field in fields(steps)}
    for name in _TREES:
        plain[name] = dict(trees.items(plain[name]))
    plain["episodes"] = [list(end) for end in steps.episodes]
    return plain


def _ahead(plain: Any, spaces: Spaces) -> Ahead | None:
    if isinstance(plain, list):
        return tuple(_steps(part, spaces) for part in plain)
    return None if plain is None else _steps(plain, spaces)


def _steps(plain: dict[str, Any], spaces: Spaces) -> Steps:
    values = dict(plain)
    for name in _TREES:
        values[name] = _tree(values[name], spaces)
    values["episodes"] = tuple(EpisodeEnd(*end) for end in plain["episodes"])
    return Steps(**values)


def _tree(leaves: dict[str, np.ndarray], spaces: Spaces) -> Tree:
    structure = zeros(spaces.observation)
    found = iter([leaves[path] for path, _ in trees.items(structure)])
    return trees.map(lambda _: next(found), structure)
