"""Observations of the last k frames: `gymnasium.wrappers.FrameStackObservation`, but for action masks, which are those
of the newest frame."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space

from etude.base import trees
from etude.base.errors import ConfigError
from etude.base.spaces import ACTION_MASK, Dict, Space, leaves, parts
from etude.base.trees import Tree
from etude.envs.texts import is_text

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


def stacked_space(space: Space, count: int) -> Space:
    """The space of `stacked` observations of a space."""
    if isinstance(space, Dict) and ACTION_MASK in space.spaces:
        return Dict({key: part if key == ACTION_MASK else batch_space(part, count) for key, part in parts(space)})
    return batch_space(space, count)


class FrameStack(gym.Wrapper[Any, Any, Any, Any]):
    """An environment of one agent that shows its last `count` frames; an episode begins with its first one repeated."""

    def __init__(self, env: gym.Env[Any, Any], count: int):
        super().__init__(env)
        self.count = count
        self.observation_space = stacked_space(env.observation_space, count)
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
