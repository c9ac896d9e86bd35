"""Environments as pure functions of their state, written over `etude.ops`: of NumPy's numbers they are environments of
Gymnasium, and within a compiled rollout on JAX all are stepped in one program."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np

from etude import ops
from etude.base import trees
from etude.base.errors import ConfigError
from etude.base.spaces import Box, Discrete, Space
from etude.base.trees import Tree

Outcome = tuple[Tree, Any, Any, Any, Any, dict[str, Any]]  # what `step` returns


class FunctionalEnvironment:
    """The base of environments that are pure functions. Nothing resets itself: whoever steps does, and sees the last
    observation of each episode.

    params: what `reset` and `step` take as parameters: `Parameters`, a named tuple of numbers, changed by keywords.
    gymnasium_id: the environment of Gymnasium that draws the first part of its states; None: nothing does.
    """

    observation_space: Space
    action_space: Space
    Parameters: ClassVar[Any] = tuple
    gymnasium_id: ClassVar[str | None] = None

    def __init__(self, **changed: Any):
        self.params: Any = self.Parameters(**changed)

    def reset(self, key: Any, params: Any) -> tuple[Tree, Any]:
        """The observation and the state, a tree of arrays, that an episode begins with. key: what random numbers are
        drawn from, see `ops.uniform`."""
        raise NotImplementedError

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Outcome:
        """(observation, state, reward, terminated, truncated, info) after an action of `action_space`."""
        raise NotImplementedError


class AsGymnasium(gym.Env[Any, Any]):
    """A functional environment as one of Gymnasium's. Keys are NumPy's generator, so that a seed gives the first states
    that Gymnasium's own environment has."""

    def __init__(self, functional: FunctionalEnvironment, render_mode: str | None = None):
        self.functional: FunctionalEnvironment = functional
        self.observation_space, self.action_space = functional.observation_space, functional.action_space
        self.render_mode: str | None = render_mode
        self.metadata = {"render_modes": ["rgb_array", "human"] if functional.gymnasium_id else [], "render_fps": 30}
        self._drawn: Any = None  # Gymnasium's environment

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """See `gymnasium.Env`."""
        super().reset(seed=seed)
        observation, self._state = self.functional.reset(self.np_random, self.functional.params)
        return trees.map(np.asarray, observation), {}

    def step(self, action: Any) -> tuple[Tree, float, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env`."""
        found = self.functional.step(self.np_random, self._state, action, self.functional.params)
        observation, self._state, reward, terminated, truncated, info = found
        return trees.map(np.asarray, observation), float(reward), bool(terminated), bool(truncated), info

    def render(self) -> Any:
        """What Gymnasium draws of this state."""
        if self.functional.gymnasium_id is None:
            raise ConfigError(f"{type(self.functional).__name__} does not render. Leave render_mode out.")
        if self._drawn is None:
            self._drawn = gym.make(self.functional.gymnasium_id, render_mode=self.render_mode).unwrapped
            self._drawn.reset()
        self._drawn.state = np.asarray(self._state[0])
        return self._drawn.render()

    def close(self) -> None:
        """See `gymnasium.Env`."""
        if self._drawn is not None:
            self._drawn.close()


def as_gymnasium(make: Callable[..., Any], render_mode: str | None = None, **parameters: Any) -> AsGymnasium:
    """The functional environment that `make` makes with these parameters, as one of Gymnasium's."""
    return AsGymnasium(make(**parameters), render_mode)


class CartPoleParameters(NamedTuple):
    """`max_steps` is the time limit; `math.inf` for none."""

    gravity: float = 9.8
    cart_mass: float = 1.0
    pole_mass: float = 0.1
    length: float = 0.5  # half of the pole's
    force: float = 10.0
    seconds: float = 0.02  # between two steps
    max_steps: float = 500


class CartPole(FunctionalEnvironment):
    """Gymnasium's CartPole-v1: its equations, numbers and first states. Barto, Sutton & Anderson 1983,
    doi:10.1109/TSMC.1983.6313077."""

    Parameters = CartPoleParameters
    gymnasium_id = "CartPole-v1"
    _HIGH = np.array([4.8, np.inf, 24 * math.pi / 180, np.inf], np.float32)
    observation_space = Box(-_HIGH, _HIGH)
    action_space = Discrete(2)

    def reset(self, key: Any, params: Any) -> tuple[Any, Any]:
        state = ops.uniform(key, -0.05, 0.05, (4,))
        return ops.cast(state, "float32"), (state, 0)

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Outcome:
        (x, velocity, angle, turning), time = state[0], state[1] + 1
        force = ops.where(action == 1, params.force, -params.force)
        cos, sin = ops.cos(angle), ops.sin(angle)
        mass, moment = params.pole_mass + params.cart_mass, params.pole_mass * params.length
        pushed = (force + moment * ops.square(turning) * sin) / mass
        leaning = (params.gravity * sin - cos * pushed) / (
            params.length * (4.0 / 3.0 - params.pole_mass * ops.square(cos) / mass)
        )
        moving = pushed - moment * leaning * cos / mass
        dt = params.seconds
        x, angle = x + dt * velocity, angle + dt * turning
        after = ops.stack([x, velocity + dt * moving, angle, turning + dt * leaning])
        terminated = (ops.abs(x) > 2.4) | (ops.abs(angle) > 12 * 2 * math.pi / 360)
        return ops.cast(after, "float32"), (after, time), 1.0, terminated, time >= params.max_steps, {}


FUNCTIONAL: dict[str, type[FunctionalEnvironment]] = {"functional:CartPole-v1": CartPole}
"""Etude's own, by the names that runs take."""
