"""Spaces and values as environments have them, and what etude makes of each: for tests, and for the page that lists
them, docs/spaces.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, Sequence, Space, Text, Tuple

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

COMMON = [
    Actions("Box with two bounds", Box(-2, 3, (2,)), 6),
    Actions("Box with one bound", Box(0, np.inf, (2,)), None),
    Actions("Box without bounds", Box(-np.inf, np.inf, (2,)), None),
    Actions("Discrete, from any start", SWITCH, 6),
    Actions("MultiDiscrete, from any start", MultiDiscrete([2, 3], start=[1, -1]), 3),
    Actions("MultiBinary", MultiBinary(3), 3),
]


class Showing(gym.Env):
    """Eighty steps, which show these values in turn, and earn `reward`. changes: of what `step` returns, by place."""

    action_space = Discrete(2)

    def __init__(self, space, *values, reward=1.0, changes=None):
        self.observation_space, self.values, self.reward, self.changes = space, values, reward, changes or {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._see(), {}

    def step(self, action):
        self.time += 1
        found = [self._see(), self.reward, False, self.time == 80, {}]
        for place, value in self.changes.items():
            found[place] = value
        return tuple(found)

    def _see(self):
        value = self.values[self.time % len(self.values)]
        return value() if callable(value) else value


@dataclass(frozen=True)
class Case:
    """A kind of value, a world that shows it, and what happens in a run. fault: the text of the error. warned: that of
    a warning."""

    kind: str
    world: Callable[[], Any]
    happens: str
    fault: str | None = None
    warned: str | None = None


def shown(kind: str, space: Space, *values: Any, happens: str, **told: str) -> Case:
    return Case(kind, partial(Showing, space, *values), happens, **told)


LINE, PLACE = Box(-1, 1, (1,), np.float32), np.zeros(1, np.float32)
NUMBERS = Box(-np.inf, np.inf, (1,), np.float64)
EYE = Box(0, 255, (8, 8, 3), np.uint8)
STAMP = 1_764_000_000_000  # milliseconds
OBSERVATIONS = [
    shown("Box of floats, of any axes", Box(-1, 1, (2, 3)), np.zeros((2, 3), np.float32), happens="flattened"),
    shown("Box of float64", NUMBERS, np.array([0.1]), happens="float32"),
    shown(
        "numbers that float32 cannot tell apart, such as 1e8 and 1e8 + 1",
        NUMBERS,
        np.array([1e8]),
        np.array([1e8 + 1]),
        happens="float32, with a warning; told apart with `normalize_observation`",
        warned="these are one value",
    ),
    shown(
        "times in milliseconds since 1970",
        Box(0, 2**62, (1,), np.int64),
        np.array([STAMP]),
        np.array([STAMP + 1]),
        happens="float32, with a warning; told apart with `normalize_observation`",
        warned="these are one value",
    ),
    shown(
        "1e39 in float64",
        NUMBERS,
        np.array([1e39]),
        happens="an error: float32 ends at 3.4e38",
        fault=r"1e\+39.*3.4e38",
    ),
    shown("NaN, infinity", NUMBERS, np.array([np.nan]), happens="an error", fault="nan.*must be finite"),
    shown("a number outside of its Box", LINE, np.float32([3]), happens="taken as it is; `check-env` finds it"),
    shown(
        "a bare number for a Box of shape (1,)", LINE, 0.5, happens="an error", fault=r"has shape \(\); expected Box"
    ),
    shown("a list of numbers", LINE, [0.5], happens="float32"),
    shown("whole numbers for a Box of floats", LINE, np.array([1]), happens="float32"),
    shown("floats for a Discrete space", Discrete(3), np.float64(1), happens="an error", fault="has dtype float64"),
    shown("Discrete, from any start", SWITCH, 5, happens="one-hot"),
    shown("a number outside of Discrete", SWITCH, 7, happens="an error", fault="is 7, which is outside of Discrete"),
    shown("MultiDiscrete, of any axes", MultiDiscrete([[2, 3]]), np.array([[1, 2]]), happens="one-hots"),
    shown("MultiBinary, of any axes", MultiBinary((2, 2)), np.ones((2, 2), np.int8), happens="zeros and ones"),
    shown("uint8 image", EYE, np.zeros(EYE.shape, np.uint8), happens="convolutions"),
    shown(
        "image of floats",
        Box(0, 1, (8, 8, 3), np.float32),
        np.zeros((8, 8, 3), np.float32),
        happens="flattened, with a warning; convolutions with `network=Conv()`",
        warned="is an image of float32",
    ),
    shown("Text", Text(4, charset="abc"), "ab", happens="one-hot codes of its characters"),
    shown("a text that is too long", Text(4, charset="abc"), "abcab", happens="an error", fault="has 5 characters"),
    shown("other characters", Text(4, charset="abc"), "x", happens="an error", fault="with 'x'"),
    shown("Dict, Tuple, nested", Dict({"b": SWITCH, "a": Tuple([LINE])}), {"b": 4, "a": (PLACE,)}, happens="joined"),
    shown(
        "a Dict that lacks a key",
        Dict({"b": SWITCH, "a": LINE}),
        {"b": 4},
        happens="an error",
        fault="lacks the key 'a'",
    ),
    shown("None", LINE, None, happens="an error", fault="is a NoneType"),
    shown("Sequence", Sequence(LINE), (), happens="refused", fault="cannot use the observation space Sequence"),
    shown("Graph", Graph(LINE, None), None, happens="refused", fault="cannot use the observation space Graph"),
]


def returned(kind: str, happens: str, reward: Any = 1.0, fault: str | None = None, **changes: Any) -> Case:
    """changes: by the names of `step`."""
    places = {name: i for i, name in enumerate(("observation", "reward", "terminated", "truncated", "info"))}
    made = partial(
        Showing, LINE, PLACE, reward=reward, changes={places[name]: value for name, value in changes.items()}
    )
    return Case(kind, made, happens, fault)


OTHERS = [
    returned("a reward of any kind of number", "float32", np.int64(1)),
    returned("an array of one number without axes", "float32", np.array(1.0)),
    returned("an array of shape (1,)", "an error", np.ones(1), r"shape \(1,\).*expected one number"),
    returned("several rewards", "an error: weigh them", np.ones(2), "weigh them"),
    returned("a text", "an error", "1.0", r"\(str\); expected one number"),
    returned("None", "an error", None, "NoneType"),
    returned("NaN, infinity, 1e39", "an error", 1e39, "finite float32"),
    returned("0 and 1 as `terminated`", "read as bools", terminated=0),
    returned("None as `terminated`", "an error", terminated=None, fault="terminated is None"),
    returned("an info that is None, from `step`", "taken for an empty one", info=None),
]
