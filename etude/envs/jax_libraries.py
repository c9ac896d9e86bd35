"""Environments of libraries that are written in JAX, as pure functions. None resets itself: the last observation of
each episode is seen. A compiled rollout makes them part of its program; elsewhere each step is one call of JAX."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any, ClassVar

import numpy as np

from etude.base.errors import ConfigError
from etude.base.spaces import ACTION_MASK, Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space
from etude.envs.functional import FunctionalEnvironment, Outcome


class JaxEnvironment(FunctionalEnvironment):
    """The base of what adapts a library. Where two environments are equal, they share what JAX compiles.

    task: as the library names it. options: what it is made with. module: what is imported; package: what pip installs.
    ConfigError where it is not installed.
    """

    module: ClassVar[str]
    package: ClassVar[str]

    def __init__(self, task: str, **options: Any):
        super().__init__()
        self.made_with: tuple[str, dict[str, Any]] = (task, options)
        try:
            self._jax: Any = importlib.import_module("etude.ops.jax_ops")
            self._prepare(importlib.import_module(self.module), task, options)
        except ModuleNotFoundError as problem:
            missing = self.package if self.module.startswith(f"{problem.name}") else problem.name
            raise ConfigError(f"{task!r} of {self.package} needs {problem.name}: pip install {missing}") from problem

    def __reduce__(self) -> Any:
        task, options = self.made_with
        return partial(type(self), task, **options), ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JaxEnvironment) and hash(self) == hash(other)

    def __hash__(self) -> int:
        return hash((type(self), repr(self.made_with)))

    def _prepare(self, library: Any, task: str, options: dict[str, Any]) -> None:
        """Make the library's environment, and the spaces."""
        raise NotImplementedError

    def begin(self, key: Any, params: Any) -> tuple[Any, Any]:
        """`reset` in JAX, with a key [2] of whole numbers."""
        raise NotImplementedError

    def move(self, key: Any, state: Any, action: Any, params: Any) -> Outcome:
        """`step` in JAX."""
        raise NotImplementedError

    def reset(self, key: Any, params: Any) -> tuple[Any, Any]:
        return self._jax.call(self, "begin", key, params)

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Outcome:
        *found, info = self._jax.call(self, "move", key, state, action, params)
        return *found, {name: value for name, value in info.items() if np.shape(value) == ()}  # type: ignore[return-value]


def _space(found: Any) -> Space:
    """A space of gymnax, Craftax or NAVIX."""
    held = vars(found)
    if "spaces" in held:
        return Dict({name: _space(part) for name, part in held["spaces"].items()})
    shape, discrete = tuple(found.shape), type(found).__name__ == "Discrete"
    low, high = held.get("low", held.get("minimum")), held.get("high", held.get("maximum"))
    count = held.get("n", 1 + high if discrete and high is not None else 0)
    if discrete and int(count) != 256:
        return MultiDiscrete(np.full(shape, int(count)), dtype=np.int32) if shape else Discrete(int(count))
    kind: Any = np.uint8 if discrete else np.float32
    low, high = (np.broadcast_to(bound, shape).astype(kind) for bound in (low, high))
    return Box(low, high, shape, kind)


class Gymnax(JaxEnvironment):
    """gymnax 1.0 and 0.0.9; options are those of its parameters. Lange 2022, github.com/RobertTLange/gymnax."""

    module = package = "gymnax"
    _time, _limit = "time", "max_steps_in_episode"

    def _made(self, library: Any, task: str) -> tuple[Any, Any]:
        return library.make(task)

    def _prepare(self, library: Any, task: str, options: dict[str, Any]) -> None:
        self._env, params = self._made(library, task)
        self.params = params.replace(**options)
        self.observation_space = _space(self._env.observation_space(self.params))
        self.action_space = _space(self._env.action_space(self.params))
        self._cut: Any = getattr(self._env, "is_truncated", None)  # since 1.0, where `ended` leaves time limits out

    def begin(self, key: Any, params: Any) -> tuple[Any, Any]:
        return self._env.reset_env(key, params)

    def move(self, key: Any, state: Any, action: Any, params: Any) -> Outcome:
        observation, state, reward, ended, info = self._env.step_env(key, state, action, params)
        if self._cut is not None:
            return observation, state, reward, ended, self._cut(state, params), info
        late = getattr(state, self._time) >= getattr(params, self._limit)
        return observation, state, reward, ended & ~late, late, info


class Craftax(Gymnax):
    """Craftax and Craftax-Classic, of symbols or pixels. Matthews et al. 2024, arXiv:2402.16801."""

    module, package = "craftax.craftax_env", "craftax"
    _time, _limit = "timestep", "max_timesteps"

    def _made(self, library: Any, task: str) -> tuple[Any, Any]:
        env = library.make_craftax_env_from_name(task, auto_reset=False)
        return env, env.default_params


class Brax(JaxEnvironment):
    """Brax without its wrappers; episodes are cut off after `episode_length`. Freeman et al. 2021, arXiv:2106.13281."""

    module, package = "brax.envs", "brax"

    def _made(self, library: Any, task: str, options: dict[str, Any]) -> tuple[Any, int]:
        length = options.pop("episode_length", 1_000)
        return library.get_environment(task, **options), length

    def _prepare(self, library: Any, task: str, options: dict[str, Any]) -> None:
        self._env, self._length = self._made(library, task, dict(options))
        size = self._env.observation_size
        sizes = size if isinstance(size, dict) else {"": size}
        boxes: Any = {name: Box(-np.inf, np.inf, n if isinstance(n, tuple) else (n,)) for name, n in sizes.items()}
        self.observation_space = Dict(boxes) if isinstance(size, dict) else boxes[""]
        self.action_space = Box(-1.0, 1.0, (self._env.action_size,))

    def begin(self, key: Any, params: Any) -> tuple[Any, Any]:
        state = self._env.reset(key)
        return state.obs, (state, 0)

    def move(self, key: Any, state: Any, action: Any, params: Any) -> Outcome:
        state, time = self._env.step(state[0], action), state[1] + 1
        return state.obs, (state, time), state.reward, state.done > 0, time >= self._length, state.metrics


class Playground(Brax):
    """MuJoCo Playground; options are those of the task's config. Zakka et al. 2025, arXiv:2502.08844."""

    module, package = "mujoco_playground.registry", "playground"

    def _made(self, library: Any, task: str, options: dict[str, Any]) -> tuple[Any, int]:
        config = {**library.get_default_config(task), **options}
        return library.load(task, config_overrides=options), config["episode_length"]


class Jumanji(JaxEnvironment):
    """Jumanji: a last step whose discount is above 0 is a truncation. Bonnet et al. 2024, arXiv:2306.09884."""

    module = package = "jumanji"

    def _prepare(self, library: Any, task: str, options: dict[str, Any]) -> None:
        self._env = library.make(task, **options)
        convert = importlib.import_module("jumanji.specs").jumanji_specs_to_gym_spaces
        self.observation_space, self.action_space = convert(self._env.observation_spec), convert(self._env.action_spec)

    def begin(self, key: Any, params: Any) -> tuple[Any, Any]:
        state, found = self._env.reset(key)
        return _as_dict(found.observation), state

    def move(self, key: Any, state: Any, action: Any, params: Any) -> Outcome:
        state, found = self._env.step(state, action)
        going = found.discount > 0
        return _as_dict(found.observation), state, found.reward, found.last() & ~going, found.last() & going, {}


def _as_dict(observation: Any) -> Any:
    """Named tuples, the only tuples of Jumanji's observations, as dicts, at every level."""
    if not isinstance(observation, tuple):
        return observation
    named: Any = observation
    return {name: _as_dict(part) for name, part in named._asdict().items()}


class MiniGrid(JaxEnvironment):
    """XLand-MiniGrid, whose grids are numbers of tiles and colours; options are those of its parameters. Nikulin
    et al. 2024, arXiv:2312.12044."""

    module = package = "xminigrid"

    def _prepare(self, library: Any, task: str, options: dict[str, Any]) -> None:
        self._env, self.params = library.make(task, **options)
        known = importlib.import_module("xminigrid.core.constants")
        kinds = np.array([known.NUM_TILES, known.NUM_COLORS])
        counts = np.broadcast_to(kinds, self._env.observation_shape(self.params))
        self.observation_space = MultiDiscrete(counts, dtype=np.int32)
        self.action_space = Discrete(self._env.num_actions(self.params))

    def begin(self, key: Any, params: Any) -> tuple[Any, Any]:
        found = self._env.reset(params, key)
        return found.observation, found

    def move(self, key: Any, state: Any, action: Any, params: Any) -> Outcome:
        found = self._env.step(params, state, action)
        going = found.discount > 0
        return found.observation, found, found.reward, found.last() & ~going, found.last() & going, {}


class Navix(JaxEnvironment):
    """NAVIX: tasks of MiniGrid, with its kinds of objects, colours and states. Pignatelli et al. 2024,
    arXiv:2407.19396."""

    module = package = "navix"

    def _prepare(self, library: Any, task: str, options: dict[str, Any]) -> None:
        self._env = library.make(task, **options)
        counts = np.broadcast_to([11, 6, 4], self._env.observation_space.shape)  # NAVIX declares 9 of each
        self.observation_space = MultiDiscrete(counts, dtype=np.int32)
        self.action_space = _space(self._env.action_space)

    def begin(self, key: Any, params: Any) -> tuple[Any, Any]:
        found = self._env.reset(key)
        return found.observation, found

    def move(self, key: Any, state: Any, action: Any, params: Any) -> Outcome:
        found = self._env._step(state, action)  # `step` resets what has ended
        return found.observation, found, found.reward, found.step_type == 2, found.step_type == 1, {}


class Pgx(JaxEnvironment):
    """Games of pgx for one player. Koyamada et al. 2023, arXiv:2303.17503."""

    module = package = "pgx"

    def _prepare(self, library: Any, task: str, options: dict[str, Any]) -> None:
        self._env = library.make(task, **options)
        if self._env.num_players > 1:
            raise ConfigError(f"{task!r} of pgx is played by {self._env.num_players}; expected a game for one.")
        actions = self._env.num_actions
        seen: Any = {"observation": MultiBinary(self._env.observation_shape), ACTION_MASK: MultiBinary(actions)}
        self.observation_space, self.action_space = Dict(seen), Discrete(actions)

    def begin(self, key: Any, params: Any) -> tuple[Any, Any]:
        state = self._env.init(key)
        return self._seen(state), state

    def move(self, key: Any, state: Any, action: Any, params: Any) -> Outcome:
        state = self._env.step(state, action, key)
        return self._seen(state), state, state.rewards[0], state.terminated, state.truncated, {}

    def _seen(self, state: Any) -> Any:
        flags = {"observation": state.observation, ACTION_MASK: state.legal_action_mask}
        return {name: flag.astype("int8") for name, flag in flags.items()}


_ADAPTED: tuple[type[JaxEnvironment], ...] = (Gymnax, Craftax, Brax, Playground, Jumanji, MiniGrid, Navix, Pgx)
LIBRARIES = {kind.module.partition(".")[0]: kind for kind in _ADAPTED}
"""By what the names of their environments begin with, such as gymnax:CartPole-v1."""
