"""Random actions that an environment's masks allow, for checking it."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

import gymnasium as gym
import numpy as np

from etude.base.spaces import ACTION_MASK, Box, Discrete, Hybrid, MultiBinary, Space, Spaces, leaves, tree_of
from etude.envs.multi_agent import MultiAgentEnvironment
from etude.envs.observations import flat_mask, maskable
from etude.envs.values import Found
from etude.multi_agent import joint


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
        mask = next((part[ACTION_MASK] for part in (observation, info) if _has_mask(part)), None)
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


def _has_mask(part: Any) -> bool:
    return isinstance(part, dict) and ACTION_MASK in part
