"""An environment with arguments for what makes it, with wrappers around what that made, and with stacked frames."""

from __future__ import annotations

import difflib
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector.utils import batch_space

from etude.base import checks, trees
from etude.base.errors import ConfigError
from etude.base.spaces import ACTION_MASK, Dict, Origins, describe, leaves, parts
from etude.base.trees import Tree
from etude.envs.observations import is_text

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
    several = wrappers is None or isinstance(wrappers, Iterable) and not isinstance(wrappers, str)
    given: tuple[Any, ...] = tuple(wrappers or ()) if several else (wrappers,)
    for wrapper in given:
        if not (callable(wrapper) or isinstance(wrapper, str) and ":" in wrapper):
            raise ConfigError(f"wrappers: {wrapper!r}; expected a callable, or 'module:Name' of one, or 'drop:KEY'.")
    checks.whole_number("frame_stack", frame_stack, of=": frames")
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


Frames = tuple[Tree, ...]  # of one episode, the newest last


def follow(frames: Frames, observation: Tree, count: int) -> Frames:
    """The last `count` frames with this observation as the newest. Without earlier ones it begins an episode, and is
    repeated."""
    newest = trees.map(np.array, observation)  # an environment may write to what it returned
    return (*frames[1:], newest) if frames else (newest,) * count


def stacked(frames: Frames) -> Tree:
    """One observation whose leaves [count, ...] have the frames along a new first axis."""
    newest = frames[-1]
    if isinstance(newest, dict) and ACTION_MASK in newest:
        seen = [{key: part for key, part in frame.items() if key != ACTION_MASK} for frame in frames]
        return {**trees.stack(seen), ACTION_MASK: newest[ACTION_MASK]}
    return trees.stack(list(frames))


class FrameStack(gym.Wrapper[Any, Any, Any, Any]):
    """An environment of one agent that shows its last `count` frames; an episode begins with its first one repeated."""

    def __init__(self, env: gym.Env[Any, Any], count: int):
        super().__init__(env)
        self.count = count
        space = env.observation_space
        self.observation_space = batch_space(space, count)
        if isinstance(space, Dict) and ACTION_MASK in space.spaces:
            each = {key: part if key == ACTION_MASK else batch_space(part, count) for key, part in parts(space)}
            self.observation_space = Dict(each)
        self._frames: Frames = ()

    def reset(self, **kwargs: Any) -> Any:
        """Start an episode. What is not (observation, info) is returned as it is."""
        self._frames = ()
        return self._with_frames(self.env.reset(**kwargs), 2)

    def step(self, action: Any) -> Any:
        """One step. What is not a tuple of five is returned as it is."""
        return self._with_frames(self.env.step(action), 5)

    def _with_frames(self, result: Any, length: int) -> Any:
        if not isinstance(result, tuple) or len(result) != length:
            return result  # explained where all environments' results are
        self._frames = follow(self._frames, result[0], self.count)
        return stacked(self._frames), *result[1:]


def with_frame_stack(env: Any, count: int) -> FrameStack:
    """The environment with its frames stacked. ConfigError for what is not an environment of one agent, and for
    texts."""
    if isinstance(env, gym.Env):
        if texts := [".".join(map(str, path)) for path, leaf in leaves(env.observation_space) if is_text(leaf)]:
            raise ConfigError(
                f"frame_stack = {count} stacks numbers, and the observation {texts[0]!r} is a text. Leave it out by "
                f"wrappers=['drop:{texts[0]}'] (--drop {texts[0]}), or frame_stack at 1."
            )
        return FrameStack(env, count)
    raise ConfigError(
        f"frame_stack = {count} stacks the observations of one agent, of a gymnasium.Env; got a "
        f"{type(env).__module__}.{type(env).__qualname__}. Leave frame_stack at 1, or stack the frames in the "
        "environment."
    )
