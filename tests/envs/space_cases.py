"""Spaces as environments have them, and what etude makes of each: for tests, and for the page that lists them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

from etude.base import trees


class Demanding(gym.Env):
    """Five steps, each of which earns the sum of all numbers of an action. It takes actions of its own space alone."""

    observation_space = Box(-1, 1, (2,), np.float32)

    def __init__(self, space, mask=None):
        self.action_space, self.info = space, {} if mask is None else {"action_mask": mask}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), self.info

    def step(self, action):
        refuse_others(self.action_space, action)
        self.time += 1
        earned = sum(float(np.sum(leaf)) for leaf in trees.leaves(action))
        return np.full(2, self.time / 5, np.float32), earned, False, self.time == 5, self.info


def refuse_others(space: Space, action: Any) -> None:
    """AssertionError where an action is not of a space, or of another type or dtype than its samples."""
    if isinstance(space, Dict | Tuple):
        inner = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
        assert type(action) is (dict if isinstance(space, Dict) else tuple), action
        for key, part in inner:
            refuse_others(part, action[key])
    elif not isinstance(space, Discrete):
        assert isinstance(action, np.ndarray) and action.dtype == space.dtype, (action, space)
    assert space.contains(action), (action, space)


@dataclass(frozen=True)
class Actions:
    """A kind of action space. best: the greatest sum of the numbers of an action; None: there is none."""

    kind: str
    space: Space
    best: float | None


SWITCH = Discrete(3, start=4)
ACTIONS = [
    Actions("Box with two axes", Box(-2, 3, (2, 3), np.float64), 18),
    Actions("Box without axes", Box(0, 10, (), np.float32), 10),
    Actions("Box of whole numbers, without axes", Box(0, 10, (), np.int64), 10),
    Actions("MultiDiscrete with two axes", MultiDiscrete([[2, 3], [4, 2]], start=[[1, 0], [2, 0]]), 10),
    Actions("MultiBinary with two axes", MultiBinary((2, 2)), 4),
    Actions("Dict of numbers", Dict({"x": Box(-1, 1, (2,)), "y": Box(0, 9, (1, 2))}), 20),
    Actions("Tuple of choices", Tuple([Discrete(2), MultiDiscrete([2, 3])]), 4),
    Actions(
        "Dict of both, nested",
        Dict({"move": Box(0, 5, (2, 2)), "jump": SWITCH, "arms": Tuple([MultiBinary(2), Box(-1, 1, (), np.float64)])}),
        29,
    ),
]
