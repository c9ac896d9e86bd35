"""An environment with arguments for what makes it, with wrappers around what that made, and with stacked frames."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from etude.base.errors import ConfigError
from etude.base.spaces import Origins

DROP = "drop:"  # with the key of an entry of Dict observations, a wrapper that leaves it out
Wrapper = str | Callable[[Any], Any]  # "module:Name", DROP, or what is called with an environment and returns one


@dataclass(frozen=True)
class ConfiguredEnvironment:
    """What is given to make environments, and how.

    env: a name, or a callable. args: keyword arguments for what makes it, plain data. wrappers: each is called with
        what the one before it returned; the first with the environment. frame_stack: how many frames an observation
        stacks, around all wrappers. global_state: whether observations of several agents hold the environment's
        `state()`. masks: whether infos hold action masks at some steps, so that observations have one at every step.
        origins: see `base.spaces.with_origins`; None where nothing has looked for any yet.
    """

    env: Any
    args: dict[str, Any]
    wrappers: tuple[Wrapper, ...]
    frame_stack: int = 1
    global_state: bool = False
    masks: bool = False
    origins: Origins | None = field(default=None, compare=False)


def configured(
    env: Any, args: Mapping[str, Any] | None, wrappers: Iterable[Wrapper] | None, frame_stack: int = 1
) -> Any:
    """`env` with these arguments, wrappers and stacked frames; itself where there are none. ConfigError for what cannot
    be any of these."""
    if args is not None and not (isinstance(args, Mapping) and all(isinstance(name, str) for name in args)):
        raise ConfigError(f"env_args = {args!r}; expected a dict by name, such as {{'is_slippery': False}}.")
    for name, value in (args or {}).items():
        if not is_plain(value):
            raise ConfigError(
                f"env_args: {name} = {value!r} is no plain data, which is saved with the run; expected numbers, texts, "
                "booleans, None, and lists and dicts of these. For others give a callable that makes the environment."
            )
    given = (wrappers,) if isinstance(wrappers, str) or callable(wrappers) else tuple(wrappers or ())
    for wrapper in given:
        if not (callable(wrapper) or isinstance(wrapper, str) and ":" in wrapper):
            raise ConfigError(f"wrappers: {wrapper!r}; expected a callable, or 'module:Name' of one, or 'drop:KEY'.")
    if type(frame_stack) is not int or frame_stack < 1:
        raise ConfigError(f"frame_stack = {frame_stack!r}; expected a whole number of frames, of at least 1.")
    if not (args or given or frame_stack > 1):
        return env
    return ConfiguredEnvironment(env, dict(args or {}), given, frame_stack)


def with_global_state(env: Any) -> ConfiguredEnvironment:
    """An environment of several agents whose observations hold its `state()`."""
    return replace(_as_configured(env), global_state=True)


def with_masks(env: Any) -> ConfiguredEnvironment:
    """An environment in whose infos there are action masks at some steps."""
    return replace(_as_configured(env), masks=True)


def counted_from(env: Any, origins: Origins) -> ConfiguredEnvironment:
    """An environment whose observations are counted from these origins."""
    return replace(_as_configured(env), origins=origins)


def as_given(env: Any) -> Any:
    """What `with_masks` and `counted_from` were given."""
    if not isinstance(env, ConfiguredEnvironment):
        return env
    bare = replace(env, masks=False, origins=None)
    return env.env if bare == ConfiguredEnvironment(env.env, {}, ()) else bare


def _as_configured(env: Any) -> ConfiguredEnvironment:
    return env if isinstance(env, ConfiguredEnvironment) else ConfiguredEnvironment(env, {}, ())


def like(configured_env: Any, env: Any) -> Any:
    """Another environment in the wrappers and stacked frames of a configured one, and with its state and masks where
    that one has them; the arguments stay with the other."""
    if not isinstance(configured_env, ConfiguredEnvironment):
        return env
    if not isinstance(env, ConfiguredEnvironment):
        env = configured(env, None, configured_env.wrappers, configured_env.frame_stack)
    env = with_masks(env) if configured_env.masks else env
    env = counted_from(env, configured_env.origins) if configured_env.origins else env
    return with_global_state(env) if configured_env.global_state else env


def frame_stack_of(env: Any) -> int:
    """How many frames an observation stacks; 1 where it is a single one."""
    return env.frame_stack if isinstance(env, ConfiguredEnvironment) else 1


def is_plain(value: Any) -> bool:
    """Whether this is plain data, which a checkpoint can hold: finite numbers, texts, booleans, None, and lists, tuples
    and dicts by text of these."""
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(type(key) is str and is_plain(item) for key, item in value.items())
    return value is None or type(value) in (bool, int, str) or type(value) is float and math.isfinite(value)
