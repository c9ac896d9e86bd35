"""Making an environment with arguments, and putting wrappers around it."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from etude.base.errors import ConfigError
from etude.base.spaces import ACTION_MASK, Dict, describe

Named = tuple[str, Callable[[Any], Any]]  # a wrapper, and what it is called in messages


def make_wrapped(
    env: Any, make: Callable[..., Any], args: dict[str, Any], wrappers: Sequence[Named], **kwargs: Any
) -> Any:
    """What `make` makes with these arguments, wrapped by each in turn. env: what was given, for messages."""
    try:
        made = make(**{**args, **kwargs})
    except TypeError as problem:
        found = re.search(r"unexpected keyword argument '(\w+)'", str(problem))
        if found is None or found[1] not in args:
            raise
        raise ConfigError(_unknown(env, make, found[1])) from problem
    for name, wrap in wrappers:
        try:
            made = wrap(made)
        except TypeError as problem:
            raise ConfigError(
                f"The wrapper {name} cannot be put around the environment: {problem}. It is called with the "
                "environment alone; one that takes more is given as a function of yours: 'module:name', or in Python "
                "functools.partial(Wrapper, number=3)."
            ) from problem
    return made


def without_entry(env: Any, key: str) -> gym.Env[Any, Any]:
    """An environment whose Dict observations lack this entry. ConfigError where they have none, or no other one."""
    space = getattr(env, "observation_space", None)
    if not isinstance(space, Dict) or key not in space.spaces or len(space.spaces) == 1:
        seen = describe(space) if isinstance(space, gym.Space) else "those of several agents"
        raise ConfigError(
            f"drop:{key} (--drop {key}) leaves an entry out of Dict observations, and these are {seen}. Name one of "
            "several entries, or leave drop off."
        )
    return gym.wrappers.FilterObservation(env, [other for other in space.spaces if other != key])


class MasksInInfo(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose `action_masks()` says which actions are allowed now, the convention of sb3-contrib: its
    masks as `info["action_mask"]`, but where an info has one of its own."""

    def reset(self, **options: Any) -> Any:
        return self._with_mask(self.env.reset(**options))

    def step(self, action: Any) -> Any:
        return self._with_mask(self.env.step(action))

    def _with_mask(self, result: Any) -> Any:
        if not isinstance(result, tuple) or not result or not isinstance(result[-1], dict):
            return result  # what is wrong with it is told where it is read
        return *result[:-1], {ACTION_MASK: self.get_wrapper_attr("action_masks")(), **result[-1]}


def _unknown(env: Any, make: Callable[..., Any], name: str) -> str:
    known = _parameters(env, make)
    near = difflib.get_close_matches(name, known, 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    takes = f" It takes {', '.join(known)}." if known else ""
    return f"The environment {env if isinstance(env, str) else make!r} takes no argument {name!r}.{hint}{takes}"


def _parameters(env: Any, make: Callable[..., Any]) -> list[str]:
    """The names of the arguments that an environment can be made with, as far as they can be read."""
    name = env.rpartition(":")[2] if isinstance(env, str) else ""  # of `module:Id-v0`, too
    with_spec = name in gym.registry
    entry = gym.spec(name).entry_point if with_spec else make
    creator = load_env_creator(entry) if isinstance(entry, str) else entry
    try:
        parameters = inspect.signature(creator).parameters.values() if creator is not None else ()
    except (TypeError, ValueError):  # of a compiled module
        return []
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return [*named, *(["max_episode_steps"] if with_spec and "max_episode_steps" not in named else [])]
