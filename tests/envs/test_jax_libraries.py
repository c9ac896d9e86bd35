"""Environments of libraries in JAX, by modules that speak as the libraries do, and by the libraries where they are."""

from __future__ import annotations

import importlib.util
import pickle
import sys
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etude
from etude.algorithms import PPOConfig
from etude.base.errors import ConfigError
from etude.base.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from etude.envs import make_environment
from etude.envs.jax_libraries import LIBRARIES, Gymnax
from etude.envs.registry import imported_by

LIMIT = 5


class Params(NamedTuple):
    max_steps_in_episode: int = LIMIT
    max_timesteps: int = LIMIT

    def replace(self, **changed):
        return self._replace(**changed)


class State(NamedTuple):
    time: Any
    timestep: Any
    wet: Any  # whether the episode is to end by itself


class Space:
    def __init__(self, **held):
        vars(self).update(held)


def box():
    return Space(low=0.0, high=1.0, shape=(2,), dtype=np.float32)


def seen(time):
    return jnp.stack([time > 0, 0 * time]).astype("float32")


class Counting:
    """Pays 1 from the second step on; action 1 ends the world, and the clock does after five steps."""

    def observation_space(self, params):
        return box()

    def action_space(self, params):
        return type("Discrete", (Space,), {})(n=2, shape=(), dtype=np.int32)

    def reset_env(self, key, params):
        assert key.shape == (2,)
        return seen(jnp.int32(0)), State(jnp.int32(0), jnp.int32(0), jnp.bool_(False))

    def moved(self, state, action):
        time = state.time + 1
        return seen(time), State(time, time, action == 1), (time > 1).astype("float32")


class Old(Counting):
    """gymnax 0.0.9, where `done` holds time limits."""

    def step_env(self, key, state, action, params):
        observation, after, reward = self.moved(state, action)
        return observation, after, reward, after.wet | (after.time >= params.max_steps_in_episode), {"wet": after.wet}

    def step(self, key, state, action, params):
        observation, after, reward, done, info = self.step_env(key, state, action, params)
        first, begun = self.reset_env(key, params)
        chosen = jax.tree.map(lambda new, old: jnp.where(done, new, old), (first, begun), (observation, after))
        return *chosen, reward, done, info


class New(Counting):
    def step_env(self, key, state, action, params):
        observation, after, reward = self.moved(state, action)
        return observation, after, reward, after.wet, {}

    def is_truncated(self, state, params):
        return state.time >= params.max_steps_in_episode


class Physics:
    observation_size, action_size = 2, 1

    def reset(self, key):
        return SimpleState(seen(jnp.int32(0)), jnp.float32(0), jnp.float32(0), {"up": jnp.float32(0)})

    def step(self, state, action):
        return SimpleState(seen(jnp.int32(1)), jnp.float32(1), (action[0] > 0).astype("float32"), state.metrics)


class SimpleState(NamedTuple):
    obs: Any
    reward: Any
    done: Any
    metrics: Any


class TimeStep(NamedTuple):
    state: Any
    observation: Any
    reward: Any
    discount: Any
    step_type: Any

    def last(self):
        return self.step_type == 2


class Grid(Counting):
    """XLand-MiniGrid's: a last step after which nothing is discounted is a truncation."""

    def num_actions(self, params):
        return 2

    def observation_shape(self, params):
        return 1, 1, 2

    def reset(self, params, key):
        state = self.reset_env(key, params)[1]
        return TimeStep(state, jnp.zeros((1, 1, 2), "uint8"), 0.0, 1.0, 0)

    def step(self, params, found, action):
        _, state, reward = self.moved(found.state, action)
        kind = jnp.where(state.wet | (state.time >= LIMIT), 2, 1)
        return TimeStep(state, jnp.ones((1, 1, 2), "uint8"), reward, jnp.where(state.wet, 0.0, 1.0), kind)


class Words(NamedTuple):
    view: Any
    action_mask: Any


class Puzzle(Grid):
    """Jumanji's, whose observations are named tuples."""

    observation_spec, action_spec = "observation", "action"

    def reset(self, key):
        found = super().reset(None, key)
        return found.state, found._replace(observation=Words(seen(found.state.time), jnp.ones(2, bool)))

    def step(self, state, action):
        found = super().step(None, TimeStep(state, 0, 0, 0, 0), action)
        return found.state, found._replace(observation=Words(seen(found.state.time), jnp.ones(2, bool)))


class Rooms(Grid):
    """NAVIX's."""

    observation_space, action_space = Space(shape=(1, 1, 3)), type("Discrete", (Space,), {})(maximum=1, shape=())

    def reset(self, key):
        return super().reset(None, key)._replace(observation=jnp.zeros((1, 1, 3), "uint8"))

    def _step(self, found, action):
        after = Grid.step(self, None, found, action)
        kind = jnp.where(after.last(), jnp.where(after.discount > 0, 1, 2), 0)
        return after._replace(step_type=kind, observation=jnp.ones((1, 1, 3), "uint8"))


class Play(NamedTuple):
    observation: Any
    rewards: Any
    terminated: Any
    truncated: Any
    legal_action_mask: Any


class Solitaire:
    num_actions, observation_shape, num_players = 2, (3,), 1

    def init(self, key):
        return Play(jnp.zeros(3, bool), jnp.zeros(1), jnp.bool_(False), jnp.bool_(False), jnp.ones(2, bool))

    def step(self, state, action, key):
        return state._replace(rewards=jnp.ones(1), terminated=action == 1)


def spaces(spec):
    seen = Dict(view=Box(0.0, 1.0, (2,)), action_mask=MultiBinary(2))
    return seen if spec == "observation" else Discrete(2)


CONSTANTS = SimpleNamespace(NUM_TILES=3, NUM_COLORS=2)
MODULES = {
    "gymnax": {"gymnax": SimpleNamespace(make=lambda task: (Old(), Params()))},
    "craftax": {
        "craftax.craftax_env": SimpleNamespace(make_craftax_env_from_name=lambda name, auto_reset: made(Old()))
    },
    "brax": {"brax.envs": SimpleNamespace(get_environment=lambda task: Physics())},
    "mujoco_playground": {
        "mujoco_playground.registry": SimpleNamespace(
            get_default_config=lambda task: {"episode_length": 1_000}, load=lambda task, config_overrides: Physics()
        )
    },
    "jumanji": {
        "jumanji": SimpleNamespace(make=lambda task: Puzzle()),
        "jumanji.specs": SimpleNamespace(jumanji_specs_to_gym_spaces=spaces),
    },
    "xminigrid": {
        "xminigrid": SimpleNamespace(make=lambda task: (Grid(), Params())),
        "xminigrid.core.constants": CONSTANTS,
    },
    "navix": {"navix": SimpleNamespace(make=lambda task: Rooms())},
    "pgx": {"pgx": SimpleNamespace(make=lambda task: Solitaire())},
}


def made(env):
    env.default_params = Params()
    return env


@pytest.fixture
def libraries(monkeypatch):
    for modules in MODULES.values():
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_end_of_the_world_and_that_of_the_clock_are_told_apart(library, libraries):
    limit = {"episode_length": LIMIT} if library in ("brax", "mujoco_playground") else {}
    kind = LIBRARIES[library]
    own = pickle.loads(pickle.dumps(kind("Task", **limit)))
    assert own == kind("Task", **limit) != kind("Other", **limit) and own.action_space.shape in ((), (1,))
    action = (lambda end: np.float32([end])) if own.action_space.shape else np.int32
    rng = np.random.default_rng(0)
    for key in (rng, jax.random.key(0)):
        for last in ((True, False), (False, True)):
            observation, state = own.reset(key, own.params)
            tree = jax.tree.map(lambda leaf: (np.shape(leaf), jnp.asarray(leaf).dtype), (observation, state))
            for time in range(1, LIMIT + 1):
                end = last[0] and time == 3
                observation, state, reward, *ends, info = own.step(key, state, action(end), own.params)
                assert tree == jax.tree.map(
                    lambda leaf: (np.shape(leaf), jnp.asarray(leaf).dtype), (observation, state)
                )
                if end or (time == LIMIT and library != "pgx"):
                    assert tuple(map(bool, ends)) == last
                    assert float(reward) == 1 and np.max(jax.tree.leaves(observation)[-1]) == (library != "pgx")
                    break
                assert not any(map(bool, ends))


def test_both_versions_of_gymnax(libraries, monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnax", SimpleNamespace(make=lambda task: (New(), Params())))
    own = Gymnax("New", max_steps_in_episode=1)
    _, state = own.reset(jax.random.key(0), own.params)
    for action, terminated in ((0, False), (1, True)):  # which is known at the last step, too
        *_, ended, cut, _ = own.step(jax.random.key(0), state, np.int32(action), own.params)
        assert (bool(ended), bool(cut)) == (terminated, True)


class Lossy(Gymnax):
    """Steps as gymnax's own `step` does, which resets: the last observation of an episode is that of the next one."""

    def move(self, key, state, action, params):
        observation, state, reward, done, info = self._env.step(key, state, action, params)
        return observation, state, reward, False & done, done, info


@pytest.mark.parametrize("kind", [Gymnax, Lossy])
def test_a_lost_last_observation_is_seen_in_the_value_of_an_endless_task(kind, libraries, monkeypatch):
    monkeypatch.setitem(LIBRARIES, "gymnax", kind)
    monkeypatch.setattr(Counting, "moved", lambda self, state, action: _endless(state))
    config = PPOConfig(
        rollout_length=16, minibatch_size=128, epochs=10, gamma=0.8, learning_rate=0.01,
        normalize_observation=False, normalize_reward=False, network=etude.Mlp((16,)),
    )  # fmt: skip
    run = etude.Run(
        "ppo", "gymnax:Endless", config=config, engine="jax", environments=8,
        execution=etude.Execution(vectorization="compiled"),
    )  # fmt: skip
    run.train(12_800)
    value = float(run.engine.value(np.float32([[1, 0]]))[0])
    assert (abs(value - 1 / (1 - 0.8)) < 0.02 * 5) == (kind is Gymnax), value


def _endless(state):
    time = state.time + 1
    return seen(time), State(time, time, state.wet), (time > 1).astype("float32")


def test_elsewhere_it_is_an_environment_of_gymnasium(libraries):
    assert imported_by("gymnax:CartPole-v1")  # a module of this test, in no folder of packages
    env = make_environment("gymnax:CartPole-v1")
    assert isinstance(env.spaces.action, Discrete)
    run = etude.Run("dqn", "xminigrid:Rooms", engine="jax", learning_starts=16)
    run.train(32)
    assert np.isfinite(run.evaluate(2).mean)
    assert isinstance(LIBRARIES["navix"]("Rooms").observation_space, MultiDiscrete)


@pytest.mark.parametrize("library", [each for each in LIBRARIES if importlib.util.find_spec(each) is None])
def test_what_is_missing_is_named(library):
    with pytest.raises(ConfigError, match=f"pip install {LIBRARIES[library].package}"):
        etude.Run("ppo", f"{library}:Task")


def test_a_game_for_several_is_refused(libraries, monkeypatch):
    monkeypatch.setattr(Solitaire, "num_players", 2)
    with pytest.raises(ConfigError, match="played by 2"):
        etude.Run("ppo", "pgx:chess")


REAL = {"gymnax": "CartPole-v1", "jumanji": "Snake-v1", "xminigrid": "MiniGrid-Empty-5x5", "pgx": "2048"}


@pytest.mark.parametrize("library", REAL)
def test_the_library_itself(library):
    pytest.importorskip(library)
    env = make_environment(f"{library}:{REAL[library]}")
    env.reset(seed=0)
    for _ in range(20):
        env.step(env.spaces.action.sample())
