"""What is wrong with one value that an environment returned, more strictly than running needs, and random actions that
its masks allow: for checking it."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from etude.base.spaces import (
    ACTION_MASK,
    Box,
    Dict,
    Discrete,
    Hybrid,
    MultiBinary,
    Space,
    Spaces,
    Tuple,
    describe,
    leaves,
    parts,
    tree_of,
)
from etude.envs.multi_agent import MultiAgentEnvironment
from etude.envs.observations import flat_mask, is_text, maskable
from etude.multi_agent import joint


class Found(NamedTuple):
    """A mistake by name, with its fix."""

    name: str
    message: str


def check_observation(value: Any, space: Space, key: str = "") -> Found | None:
    """The first thing that is wrong with an observation."""
    what = f"The observation {key!r}" if key else "The observation"
    if isinstance(space, Dict):
        if not isinstance(value, dict) or set(value) != set(space.spaces):
            got = f"the keys {sorted(value)}" if isinstance(value, dict) else type(value).__name__
            return Found("structure", f"{what} is {got}. Return a dict with the keys {sorted(space.spaces)}.")
    elif isinstance(space, Tuple):
        if not isinstance(value, tuple) or len(value) != len(space.spaces):
            return Found("structure", f"{what} is {type(value).__name__}. Return a tuple of {len(space.spaces)}.")
    else:
        return _check_leaf(value, space, what)
    checks = (
        check_observation(value[name], part, f"{key}.{name}" if key else str(name)) for name, part in parts(space)
    )
    return next((found for found in checks if found is not None), None)


def _check_leaf(value: Any, space: Space, what: str) -> Found | None:
    if is_text(space):
        if not isinstance(value, str):
            return Found("dtype", f"{what} is a {type(value).__name__}, its space {space}. Return a text.")
        text = f"{what} is {value[:80]!r}, outside of {space}. Widen the space, or return another text."
        return None if space.contains(value) else Found("bounds", text)
    if not isinstance(value, np.ndarray | np.generic | int):
        return Found("dtype", f"{what} is a {type(value).__name__}. Return np.array(..., dtype=np.{space.dtype}).")
    array = np.asarray(value)
    if array.shape != space.shape:
        fix = "Make what you return and observation_space agree"
        return Found("shape", f"{what} has shape {array.shape}, its space {describe(space)}. {fix}.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return Found("finite", f"{what} holds {_first(array, ~np.isfinite(array))}. Every value must be finite.")
    if array.dtype != space.dtype and not isinstance(value, int):
        return Found(
            "dtype", f"{what} is {array.dtype}, its space {space.dtype}. Return it with .astype(np.{space.dtype})."
        )
    if isinstance(space, Box) and not space.contains(array):
        outside = (array < space.low) | (array > space.high)
        bounds = f"{_first(space.low, outside)} to {_first(space.high, outside)}"
        fix = "Widen observation_space, or clip what you return"
        return Found("bounds", f"{what} holds {_first(array, outside)} where its space has {bounds}. {fix}.")
    if not isinstance(space, Box) and not space.contains(value):
        return Found("bounds", f"{what} is {value}, outside {describe(space)}. Make the space larger.")
    return None


def _first(array: np.ndarray, where: np.ndarray) -> Any:
    return array[where].flat[0]


def check_reward(reward: Any) -> Found | None:
    """A reward is one finite number."""
    if isinstance(reward, np.ndarray) or not isinstance(reward, int | float | np.number | np.bool_):
        kind = f"an array of shape {reward.shape}" if isinstance(reward, np.ndarray) else f"a {type(reward).__name__}"
        return Found("reward", f"The reward is {kind}. Return one number: float(reward).")
    if not np.isfinite(reward):
        return Found("reward", f"The reward is {reward}. It must be finite: guard what can divide by zero or overflow.")
    return None


def check_flag(name: str, value: Any) -> Found | None:
    """`terminated` and `truncated` are bools."""
    if isinstance(value, bool | np.bool_):
        return None
    return Found("done", f"{name} is {value!r}, a {type(value).__name__}. Return a bool: bool({name}).")


def check_copied(kept: Any, copied: Any) -> Found | None:
    """Whether an observation that was kept changed when the environment took its next step."""
    if isinstance(kept, np.ndarray) and not np.array_equal(kept, copied, equal_nan=kept.dtype.kind == "f"):
        text = "An observation changed after it was returned. Return a copy of what step changes: self.state.copy()."
        return Found("copy", text)
    return None


class RandomActions:
    """Draws actions of one space, always the same ones from a seed, also where the environment makes its space anew.

    found: what was wrong with the last mask.
    """

    def __init__(self, space: Space, seed: int):
        self._space = copy.deepcopy(space)
        self._space.seed(seed)
        self._rng = np.random.default_rng(seed)
        self.found: Found | None = None

    def __call__(self, observation: Any, info: Any) -> Any:
        """An action for what a reset or a step returned."""
        self.found = None
        held = (part for part in (observation, info) if isinstance(part, dict))
        mask = next((part[ACTION_MASK] for part in held if ACTION_MASK in part), None)
        counts = maskable(self._space)
        if mask is None or not counts:
            return self._space.sample()
        flat = flat_mask(mask)
        legal = [np.flatnonzero(part) for part in np.split(flat, np.cumsum(counts)[:-1])]
        if flat.shape != (sum(counts),):
            self.found = Found("mask", f"The action mask has shape {flat.shape}; {self._space} needs ({sum(counts)},).")
            return self._space.sample()
        if not all(map(len, legal)):
            text = "The action mask allows no action at all. End the episode with terminated=True when none is left."
            self.found = Found("mask", text)
            return self._space.sample()
        chosen = iter([int(self._rng.choice(part)) for part in legal])
        return tree_of(self._space, (self._put_together(leaf, chosen) for _, leaf in leaves(self._space)))

    def _put_together(self, space: Any, chosen: Iterator[int]) -> Any:
        """A leaf of an action with the next of these choices, or any numbers."""
        if isinstance(space, Hybrid):
            return np.append(space.numbers.sample(), list(chosen)).astype(space.dtype)
        if isinstance(space, Box):
            return space.sample()
        if isinstance(space, Discrete):
            return space.start + space.dtype.type(next(chosen))
        own = np.reshape(list(islice(chosen, math.prod(space.shape))), space.shape).astype(space.dtype)
        return own if isinstance(space, MultiBinary) else own + space.start


class RandomActionsOfSeveral:
    """The same for several agents as one."""

    def __init__(self, agents: dict[str, Spaces], seed: int):
        self._spaces = [own.action for own in agents.values()]
        self._each = {name: RandomActions(own.action, seed + i) for i, (name, own) in enumerate(agents.items())}
        self.found: Found | None = None

    def __call__(self, observation: Any, info: Any) -> np.ndarray:
        """The joined actions of all agents."""
        chosen = [draw(observation[joint.AGENTS][name], {}) for name, draw in self._each.items()]
        return joint.join_actions([np.asarray(action)[None] for action in chosen], self._spaces)[0]


def random_actions(env: gym.Env[Any, Any], seed: int) -> RandomActions | RandomActionsOfSeveral:
    """What draws actions for an environment, from what it returned last."""
    if isinstance(env, MultiAgentEnvironment):
        assert env.spaces.agents is not None
        return RandomActionsOfSeveral(env.spaces.agents, seed)
    return RandomActions(env.action_space, seed)
