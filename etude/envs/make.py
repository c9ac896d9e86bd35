"""Environments from what a user names."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from etude.envs.adapter import AdaptedEnvironment
from etude.envs.registry import EnvironmentSpec, Source, construct, resolve
from etude.envs.vector import LoopEnvironments
from etude.errors import ConfigError
from etude.protocols import Environments

Vectorization = Literal["auto", "loop", "native"]


def make_environment(env: EnvironmentSpec, **kwargs: Any) -> AdaptedEnvironment:
    """One environment in canonical spaces. Keywords, such as `render_mode="rgb_array"`, go to what makes it."""
    source = resolve(env)
    return AdaptedEnvironment(make_single(source, kwargs), source.name)


def make_environments(
    env: EnvironmentSpec, columns: np.ndarray, run_seed: int, vectorization: Vectorization = "auto", **kwargs: Any
) -> Environments:
    """len(columns) environments that are stepped together; `columns` are their numbers in the run."""
    source = resolve(env)
    return LoopEnvironments(partial(make_single, source, kwargs), columns, run_seed, source.name)


def make_single(source: Source, kwargs: dict[str, Any]) -> gym.Env:
    """One Gymnasium environment, as the user's code or Gymnasium made it."""
    if source.single is None:
        raise ConfigError(
            f"{source.name} makes a vectorised simulator only (it takes num_envs); use vectorization='native'."
        )
    env = construct(source.single, source.name, kwargs)
    if isinstance(env, gym.Env):
        return env
    raise ConfigError(f"{source.name} made a {_kind(env)}")


def _kind(env: Any) -> str:
    if isinstance(env, VectorEnv):
        return "gymnasium VectorEnv; give its callable a parameter num_envs, so that etude can say how many it wants."
    kind = f"{type(env).__module__}.{type(env).__qualname__}"
    if any(base.__module__.split(".")[0] == "gym" for base in type(env).__mro__):
        return f"{kind} of the old gym package; subclass gymnasium.Env instead (import gymnasium as gym)."
    return f"{kind}; expected a gymnasium.Env. Subclass gymnasium.Env and return an instance."
