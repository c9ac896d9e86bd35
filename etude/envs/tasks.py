"""Tasks: plain data that environments are given when an episode begins, such as the levels of a curriculum."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from etude.base.checks import Stored
from etude.base.errors import ConfigError
from etude.envs.configured import is_plain
from etude.envs.multi_agent import MultiAgentEnvironment
from etude.envs.registry import takes

GiveTask = Callable[[Any], dict[str, Any]]  # gives a task to one environment; returns further arguments of its `reset`
_PLAIN = "numbers, texts, booleans, and lists and dicts by text of these"


def task_data(task: Any) -> Any:
    """A copy of a task, with lists in the place of tuples, as a checkpoint gives it back. ConfigError for what is no
    plain data, and for None."""
    if task is None or not is_plain(task):
        raise ConfigError(
            f"task = {task!r}; expected plain data, which is sent to workers and saved with the run: {_PLAIN}. Turn "
            "arrays into lists (array.tolist()), and pass the name or the parameters of an object."
        )
    return _with_lists(task)


def check_stored_task(saved: Stored) -> None:
    """Raise CheckpointError unless this is what `task_data` returns."""
    if saved.value is None or not is_plain(saved.value) or _with_lists(saved.value) != saved.value:
        saved.refuse(f"a task: {_PLAIN}")


def task_giver(env: gym.Env[Any, Any], name: str) -> GiveTask:
    """How one environment takes a task: by the method `set_task(task)` of its outermost wrapper that has one, or of
    itself; else by `reset(options={"task": task})`. ConfigError where its `reset` takes no options.

    It is given a copy, which it may keep and change.
    """
    method = _method(env)
    if method is not None:

        def call(task: Any) -> dict[str, Any]:
            method(copy.deepcopy(task))
            return {}

        return call
    layers: list[Any] = [env]  # and what its wrappers are around, down to PettingZoo's
    while isinstance(layers[-1], gym.Wrapper | MultiAgentEnvironment):
        layers.append(layers[-1].env)
    for layer in layers:
        if not takes(layer.reset, "options"):
            raise ConfigError(
                f"{name} takes no task: it has no method set_task(task), and the reset of "
                f"{type(layer).__qualname__} has no parameter `options`. Write one of the two."
            )
    return lambda task: {"options": {"task": copy.deepcopy(task)}}


def _method(env: gym.Env[Any, Any]) -> Callable[[Any], Any] | None:
    if env.has_wrapper_attr("set_task"):
        found = env.get_wrapper_attr("set_task")
    else:  # PettingZoo's wrappers hand on what they do not have
        inner = env.unwrapped
        found = getattr(inner.env, "set_task", None) if isinstance(inner, MultiAgentEnvironment) else None
    return found if callable(found) else None


def _with_lists(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_with_lists(item) for item in value]
    return {key: _with_lists(item) for key, item in value.items()} if isinstance(value, dict) else value
