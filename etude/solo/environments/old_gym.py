"""Environments in the style of old Gym, as Gymnasium ones.

Old style is any of: `reset` returns a bare observation or takes no seed; `step` returns four values, with one `done`;
the spaces are of the gym package. Only asked for where a user's own agent brings its environment; elsewhere such an
environment is refused with what to mend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np

from etude.base.errors import SpaceError
from etude.base.spaces import Box, Discrete, Space
from etude.envs.registry import takes
from etude.envs.results import as_flag, explain_reset


@runtime_checkable
class Steppable(Protocol):
    """What every single-agent environment has, of whatever package."""

    observation_space: Any
    action_space: Any

    def reset(self) -> Any: ...

    def step(self, action: Any) -> Any: ...


@runtime_checkable
class _BoxLike(Protocol):
    low: np.ndarray
    high: np.ndarray
    shape: tuple[int, ...]
    dtype: Any


@runtime_checkable
class _DiscreteLike(Protocol):
    n: int


def reasons(env: Steppable) -> list[str]:
    """What of an environment is in the old style; [] where it can be used as it is. Resets it once."""
    found = []
    if not isinstance(env, gym.Env):
        found.append("it is no gymnasium.Env")
    if not (isinstance(env.observation_space, gym.Space) and isinstance(env.action_space, gym.Space)):
        found.append("its spaces are not Gymnasium's")
    if not takes(env.reset, "seed"):
        found.append("reset takes no seed")
    try:
        bare = explain_reset(env.reset()) is not None
    except Exception:  # shows again, with its place, when the first episode begins
        bare = False
    return [*found, "reset returns a bare observation"] if bare else found


class OldGymEnvironment(gym.Env[Any, Any]):
    """An environment in the old style, behind the interface of Gymnasium.

    `done` means terminated, unless `info["TimeLimit.truncated"]` is true: then it means truncated.
    A seed goes to `reset` where it takes one, else to the method `seed`; without either, episodes do not repeat.
    """

    def __init__(self, env: Any, name: str):
        """Raises SpaceError for spaces other than Gymnasium's and plain Box and Discrete ones of the gym package."""
        self.env = env
        self.observation_space: Space = as_space(env.observation_space, f"The observation space of {name}")
        self.action_space: Space = as_space(env.action_space, f"The action space of {name}")
        self.metadata: dict[str, Any] = getattr(env, "metadata", None) or {}
        self.seeded: bool
        self._reset, self.seeded = _resetting(env)
        self._render: Callable[[], Any] = getattr(env, "render", lambda: None)
        self.render_mode = getattr(env, "render_mode", None)
        if takes(self._render, "mode"):
            self._render, self.render_mode = lambda: env.render(mode="rgb_array"), "rgb_array"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """(observation, info)."""
        result = self._reset(seed)
        return result if explain_reset(result) is None else (result, {})

    def step(self, action: Any) -> Any:
        """Five values; what is neither four nor five is returned as it is, to be explained by the caller."""
        result = self.env.step(action)
        if not isinstance(result, tuple) or len(result) != 4 or not isinstance(result[3], dict):
            return result
        observation, reward, done, info = result
        ended = as_flag("done", done)
        truncated = ended and bool(info.get("TimeLimit.truncated", False))
        return observation, reward, ended and not truncated, truncated, info

    def render(self) -> Any:
        """What the environment renders."""
        return self._render()

    def close(self) -> None:
        getattr(self.env, "close", lambda: None)()


def note(name: str, found: list[str], seeded: bool) -> str:
    """The warning of an environment that was adapted."""
    text = (
        f"{name} is in the style of old Gym ({', '.join(found)}) and is adapted: done counts as terminated, or as "
        "truncated where info['TimeLimit.truncated'] is true."
    )
    if seeded:
        return text
    return (
        f"{text} It takes no seed, in reset or by a method seed(seed): its episodes do not repeat, and copies of one "
        "instance may all draw the same numbers."
    )


def as_space(space: Any, what: str = "The space") -> Space:
    """A space of Gymnasium; plain Box and Discrete ones of other packages are rebuilt."""
    if isinstance(space, gym.Space):
        return space
    if isinstance(space, _BoxLike):
        dtype = np.dtype(space.dtype)
        return Box(np.asarray(space.low, dtype), np.asarray(space.high, dtype), tuple(space.shape), dtype.type)
    if isinstance(space, _DiscreteLike) and isinstance(space.n, int | np.integer):
        return Discrete(int(space.n), start=int(getattr(space, "start", 0)))
    raise SpaceError(
        f"{what} is a {type(space).__module__}.{type(space).__qualname__}; expected a gymnasium.spaces.Space, or a Box "
        "or Discrete of the old gym package. Declare it with gymnasium.spaces."
    )


def _resetting(env: Any) -> tuple[Callable[[int | None], Any], bool]:
    """How to reset with a seed, and whether that is possible."""
    if takes(env.reset, "seed"):
        return lambda seed: env.reset(seed=seed), True
    if callable(getattr(env, "seed", None)):
        return lambda seed: (None if seed is None else env.seed(seed), env.reset())[1], True
    return lambda seed: env.reset(), False
