"""The state of a rollout as plain data, by environment index. It does not depend on the number of workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeGuard

import numpy as np

from etude.base import trees
from etude.base.checks import MOST, Stored
from etude.base.data import INFO, EpisodeEnd, Steps, WorkerGradients
from etude.base.errors import CheckpointError
from etude.base.seeding import check_generator, generator, generator_state
from etude.base.spaces import Spaces, limits, zeros
from etude.envs.adapter import check_stored_task

Ahead = Steps | tuple[Steps, ...]  # what `collect` or `collect_episodes` is to return next
_TREES = ("observation", "next_observation", "final_observation")


def pack(columns: list[dict[str, Any]], ahead: Ahead | None = None) -> dict[str, Any]:
    """The state of all environments, in their order, and what was collected ahead."""
    return {"environments": {str(i): column for i, column in enumerate(columns)}, "ahead": _plain_ahead(ahead)}


def unpack(state: dict[str, Any], environments: int, spaces: Spaces) -> tuple[list[dict[str, Any]], Ahead | None]:
    """What `pack` was given; raises CheckpointError for another number of environments."""
    columns = state["environments"]
    if len(columns) != environments:
        raise CheckpointError(
            f"The saved rollout has {len(columns)} environments, this one {environments}. Resume with the same number."
        )
    plain, ahead = state["ahead"], None
    if plain is not None:
        ahead = steps_of(plain, spaces) if isinstance(plain, list) else steps_of([plain], spaces)[0]
    return [columns[str(i)] for i in range(environments)], ahead


def with_ahead(state: dict[str, Any], ahead: Ahead) -> dict[str, Any]:
    """A saved state whose rollout returns `ahead` next. What the state held ahead followed these steps and is left out:
    the environments go on from where they are, with rows that do not continue the last ones."""
    columns = state["environments"]
    if state["ahead"] is not None:
        columns = {name: {**column, "restarted": True} for name, column in columns.items()}
    return {**state, "environments": columns, "ahead": _plain_ahead(ahead)}


def answers(ahead: Ahead | None, steps: int, columns: Sequence[int]) -> TypeGuard[Steps]:
    """Whether what was collected ahead is so many time steps of the environments with these numbers."""
    return isinstance(ahead, Steps) and ahead.shape[0] == steps and ahead.columns.tolist() == list(columns)


def given_up(episodes: np.ndarray, run_seed: int, step: int, spaces: Spaces) -> dict[str, Any]:
    """A state from which every environment begins the episode after `episodes` [N] (-1: the first one), with new noise:
    for a rollout that failed while it was collecting."""
    noise = (generator(run_seed, "explore again", column, step) for column in range(len(episodes)))
    return pack([nowhere(*each, spaces) for each in zip(episodes.tolist(), noise, strict=True)])


def nowhere(episode: int, noise: np.random.Generator, spaces: Spaces) -> dict[str, Any]:
    """The state of an environment that begins the episode after this one (-1: the first one), with this generator."""
    no_observation = [np.empty(0) for _ in trees.leaves(zeros(spaces.observation))]  # no replay ends here
    opened = {"episode": episode, "seed": 0, "actions": zeros(spaces.action, 0), "observation": no_observation}
    counted = {"episode": max(episode, 0), "length": 0, "total": 0.0, "restarted": True}
    return {"open": opened, **counted, "generator": generator_state(noise)}


def check_rollout(saved: Stored, environments: int, spaces: Spaces, gradients: Mapping[str, np.ndarray]) -> None:
    """Raise CheckpointError unless this is the state of a rollout of so many environments.

    gradients: those that it may hold, by name.
    """
    held = saved.fields(("environments", "ahead"), ("worker_gradients", "turn", "counted"))
    columns = held["environments"].table()
    if len(columns) != environments:
        raise CheckpointError(
            f"The saved rollout has {len(columns)} environments, this one {environments}. Resume with the same number."
        )
    for column in held["environments"].fields(str(i) for i in range(environments)).values():
        _check_column(column, spaces)
    ahead = held["ahead"]
    if isinstance(ahead.value, list):
        check_steps(ahead, environments, spaces)
    elif ahead.value is not None:
        _check_part(ahead, environments, spaces)
    for name, most in (("turn", environments - 1), ("counted", MOST)):
        if name in held:
            held[name].whole(0, most)
    if "worker_gradients" in held:
        for number, found in held["worker_gradients"].table().items():
            if number not in columns:
                found.refuse(f"one of environment 0 to {environments - 1}", f"gradients of {number!r}")
            _check_gradients(found, environments, spaces, gradients)


def _check_column(saved: Stored, spaces: Spaces) -> None:
    """One environment. The states of explorer and agent may be missing, or be those of others: see `Collector`."""
    counted = ("open", "episode", "length", "total", "restarted", "generator")
    by_agent = () if spaces.agents is None else ("total_by_agent",)
    held = saved.fields(counted, ("explorer_state", "recurrent_state", *by_agent))
    held["episode"].whole(-1)
    held["length"].whole()
    held["total"].number()
    if "total_by_agent" in held:
        held["total_by_agent"].array(np.float64, (len(spaces.agents or ()),), nan=True)
    held["restarted"].flag()
    check_generator(held["generator"])
    if "explorer_state" in held:
        held["explorer_state"].array(np.float64, (None,), nan=True)
    if "recurrent_state" in held:
        held["recurrent_state"].array(np.float32, (None,), any_width=True)
    # The open episode, with its task if it was given one, or its state; its number alone if it cannot be replayed.
    opened = held["open"].fields(("episode",), ("seed", "actions", "observation", "task", "state"))
    begun = opened["episode"].whole(-1) >= 0
    if "state" in opened:  # of a compiled rollout
        for leaf in opened["state"].items():
            if not isinstance(leaf.value, np.ndarray | np.generic):
                leaf.refuse("an array")
    if len(opened) == 1 or "state" in opened:
        return
    opened = held["open"].fields(("episode", "seed", "actions", "observation"), ("task",))
    if "task" in opened:
        check_stored_task(opened["task"])
    opened["seed"].whole(0, 2**31 - 1)
    action, leaves = zeros(spaces.action), trees.leaves(zeros(spaces.observation))
    opened["actions"].array(action.dtype, (None, *action.shape), *limits(spaces.action)[0], any_width=True)
    for leaf in opened["observation"].items(len(leaves)) if begun else []:
        if not isinstance(leaf.value, np.ndarray | np.generic):
            leaf.refuse("an array")


def check_steps(saved: Stored, environments: int, spaces: Spaces) -> None:
    """Raise CheckpointError unless these are the parts of collected steps of a run of so many environments."""
    for part in saved.items():
        _check_part(part, environments, spaces)


def _check_part(saved: Stored, environments: int, spaces: Spaces) -> None:
    held = saved.fields(field.name for field in fields(Steps))
    t, n = held["terminated"].array(np.bool_, (None, None)).shape
    held["truncated"].array(np.bool_, (t, n))
    ended = np.argwhere(held["terminated"].value | held["truncated"].value)
    for name, shape in zip(_TREES, ((t, n), (n,), (len(ended),)), strict=True):
        own = zeros(spaces.observation, *shape)
        leaves = held[name].fields(path for path, _ in trees.items(own))
        for (path, leaf), ends in zip(trees.items(own), limits(spaces.observation), strict=True):
            leaves[path].array(leaf.dtype, leaf.shape, *ends)
    action, each = zeros(spaces.action, t, n), () if spaces.agents is None else (len(spaces.agents),)
    held["action"].array(action.dtype, action.shape, *limits(spaces.action)[0], any_width=True)
    held["reward"].array(np.float32, (t, n, *each) if np.ndim(held["reward"].value) > 2 else (t, n))
    if not np.array_equal(held["final_index"].array(np.int64, ended.shape), ended):
        held["final_index"].refuse("the rows that ended an episode, in order", "other rows")
    columns = held["columns"].array(np.int64, (n,), 0, environments - 1)
    if len(np.unique(columns)) != n:
        held["columns"].refuse("each environment once")
    held["restarted"].array(np.bool_, (n,))
    for name, extra in held["extras"].table().items():
        kept = name.startswith(INFO)  # whatever the environment returned
        limit = np.inf if kept else None
        shape = (t, n, *np.shape(extra.value)[2:])
        extra.array(np.float32, shape, limit and -limit, limit, nan=kept or name == "priority")
    _check_ends(held["episodes"], environments, spaces)


def _check_gradients(saved: Stored, environments: int, spaces: Spaces, gradients: Mapping[str, np.ndarray]) -> None:
    held = saved.fields(field.name for field in fields(WorkerGradients))
    held["steps"].whole()
    held["gradient_steps"].whole()
    _check_ends(held["episodes"], environments, spaces)
    if held["gradients"].value != {}:
        for name, gradient in held["gradients"].fields(gradients).items():
            gradient.array(gradients[name].dtype, gradients[name].shape)
    for name in ("losses", "metrics"):
        for number in held[name].table().values():
            number.number(-np.inf, np.inf, nan=True)


def _check_ends(saved: Stored, environments: int, spaces: Spaces) -> None:
    """Episodes that ended; with several agents, they may hold the return of each."""
    for end in saved.items():
        least = len(EpisodeEnd._fields) - 1
        several = spaces.agents is not None and len(end.items()) > least
        environment, episode, length, total, truncated, *by_agent = end.items(least + several)
        environment.whole(0, environments - 1)
        episode.whole()
        length.whole()
        total.number()
        truncated.flag()
        for each in by_agent:
            for number in each.fields(spaces.agents or ()).values():
                number.number()


def plain_ends(episodes: Iterable[EpisodeEnd]) -> list[list[Any]]:
    """Episodes that ended as plain data; without returns by agent if there are none."""
    return [[value for value in end if value is not None] for end in episodes]


def ends_of(plain: Iterable[list[Any]]) -> tuple[EpisodeEnd, ...]:
    """What `plain_ends` was given."""
    return tuple(EpisodeEnd(*end) for end in plain)


def notes(lost: list[int]) -> list[str]:
    """Notes on environments whose open episode could not be replayed."""
    if not lost:
        return []
    numbers = ", ".join(str(number) for number in sorted(lost))
    return [f"The open episode of environment {numbers} could not be replayed; it starts a new episode."]


def plain_steps(parts: Iterable[Steps]) -> list[dict[str, Any]]:
    """Parts of collected steps as plain data and arrays."""
    plain = [{field.name: getattr(steps, field.name) for field in fields(steps)} for steps in parts]
    for part in plain:
        part.update({name: dict(trees.items(part[name])) for name in _TREES}, episodes=plain_ends(part["episodes"]))
    return plain


def steps_of(plain: Iterable[dict[str, Any]], spaces: Spaces) -> tuple[Steps, ...]:
    """What `plain_steps` was given."""
    structure, found = zeros(spaces.observation), []
    for part in plain:
        read = {name: trees.from_items(structure, part[name]) for name in _TREES}
        found.append(Steps(**{**part, **read, "episodes": ends_of(part["episodes"])}))
    return tuple(found)


def _plain_ahead(ahead: Ahead | None) -> Any:
    if ahead is None or isinstance(ahead, tuple):
        return None if ahead is None else plain_steps(ahead)
    return plain_steps([ahead])[0]
