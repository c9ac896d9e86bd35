"""Numbers of 64 bits that float32 cannot tell apart: seen by what they differ from a first observation by, where
observations are normalised."""

from functools import partial

import gymnasium as gym
import h5py
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import SyncVectorEnv
from run_makers import PPO_TINY
from several_worlds import Pausing

import etude
from etude import Mlp, Run, offline
from etude.algorithms import DQNConfig, PPOConfig
from etude.base.spaces import with_origins
from etude.envs import counted_from
from etude.envs.observations import Observations, origins_in
from etude.run.loading import from_state

STAMP = 1_764_000_000_000  # milliseconds since 1970
PPO = PPOConfig(network=Mlp((16,)), learning_rate=1e-2, rollout_length=64, minibatch_size=64)


class Told(gym.Env):
    """Twenty steps, each of which earns 1 for the action that the last bit of a large number names."""

    action_space = Discrete(2)

    def __init__(self, base=10**8, dtype=np.float64):
        self.base = base
        self.observation_space = Box(0, np.inf if dtype == np.float64 else 2**62, (2,), dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._see(), {}

    def step(self, action):
        reward, self.time = float(action == self.bit), self.time + 1
        return self._see(), reward, False, self.time == 20, {}

    def _see(self):
        self.bit = int(self.np_random.integers(2))
        return np.array([self.base + self.bit, 0.0]).astype(self.observation_space.dtype)


@pytest.mark.parametrize(("base", "dtype"), [(10**8, np.float64), (STAMP, np.int64)])
def test_ppo_acts_by_the_last_bit_of_a_large_number(base, dtype, tmp_path):
    world = partial(Told, base, dtype)
    with Run("ppo", world, config=PPO, engine="torch", environments=4, seed=1) as run:
        run.train(4096)
        assert run.evaluate(episodes=5).mean == 20
        run.save(tmp_path / "run.etude")
    with etude.load(tmp_path / "run.etude", world) as again:
        assert again.evaluate(episodes=5).mean == 20
        assert again.evaluate(episodes=5, env=partial(Told, base, dtype)).mean == 20
        assert [again.act(np.array([base + bit, 0], dtype)) for bit in (0, 1)] == [0, 1]
        again.train(256)


def test_a_thousand_stamps_are_a_thousand_values():
    space, first = Dict({"time": Box(0, 2**62, (1,), np.int64)}), {"time": np.array([STAMP])}
    origins = origins_in(space, first)
    seen = Observations(with_origins(space, origins))
    values = seen.gather([{"time": np.array([STAMP + i])} for i in range(1000)], [{}] * 1000)["time"]
    assert seen.space["time"].dtype == values.dtype == np.float32
    np.testing.assert_array_equal(values[:, 0], np.arange(1000))
    assert origins_in(Box(-1, 1, (2,), np.float64), np.zeros(2)) == []


def test_workers_and_stacked_frames_see_the_same():
    for more in ({"workers": 2}, {"frame_stack": 2}):
        weights = []
        for settings in ({}, more) if "workers" in more else (more,):
            with Run("ppo", Told, config=PPO_TINY, engine="torch", environments=2, seed=1, **settings) as run:
                run.train(64)
                weights.append(run.engine.weights())
                assert run.act(np.array([1e8, 0.0])) in (0, 1)
        for name, value in weights[0].items():
            np.testing.assert_array_equal(value, weights[-1][name])
        assert np.abs(weights[0]["normaliser.all.mean"]).max() <= 1


def test_a_simulator_counts_from_its_first_environment():
    def simulator(num_envs):
        return SyncVectorEnv([Told] * num_envs, autoreset_mode="Disabled")

    with Run("ppo", simulator, config=PPO_TINY, engine="torch", environments=2, seed=1) as run:
        run.train(64)
        assert np.abs(run.engine.weights()["normaliser.all.mean"]).max() <= 1


class Far(Pausing):
    def observation_space(self, agent):
        return Box(0, np.inf, (1,), np.float64)

    def _of(self, value):
        return super()._of(np.array([1e8 + 1]) if isinstance(value, np.ndarray) else value)


def test_several_agents_count_from_where_each_begins():
    with Run("ppo", partial(Far, (0, 3)), config=PPO_TINY, engine="torch", environments=2, seed=1) as run:
        run.train(64)
        means = [value for name, value in run.engine.weights().items() if name.endswith(".mean")]
        assert means and max(np.abs(mean).max() for mean in means) == 0


def test_recordings_hold_the_environments_own_numbers(tmp_path):
    path = tmp_path / "told.h5"
    with Run("ppo", Told, config=PPO_TINY, engine="torch", environments=2, seed=1) as run:
        offline.write(path, etude.record(Told, 2, run=run))
    with h5py.File(path) as file:
        held = file["observations"][:]
    assert held.dtype == np.float64 and set(held[:, 0]) == {1e8, 1e8 + 1}
    with Run("bc", Told, data=str(path), normalize_observation=True, engine="torch", seed=1) as run:
        seen = run.data.episodes[0].observation[:, 0]
        assert np.abs(seen).max() == 1 and set(seen - seen.min()) == {0, 1}
        run.train(1)


def test_without_normalisation_and_in_checkpoints_of_before_float32_is_what_it_was(tmp_path):
    config = DQNConfig(network=Mlp((4,)), learning_starts=16, batch_size=8, buffer_size=500)
    told = pytest.warns(UserWarning, match=r"\[0\] went from 100000000.0 .*one value.*normalize_observation=True")
    with Run("dqn", Told, config=config, engine="torch", environments=2, seed=1) as run, told:
        run.train(128)
    with Run("ppo", counted_from(Told, ()), config=PPO_TINY, engine="torch", environments=2, seed=1) as run:
        state = run.state()
        assert "origins" not in state["description"]
    with from_state(state, Told) as before:
        assert before.engine.spaces.observation.low[0] == 0


class Fortune(Told):
    """The same, which earns a trillion times as much."""

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward * 1e12, *rest


def test_a_run_whose_normalisers_hold_large_variances_is_loaded(tmp_path):
    config = PPOConfig(**{**vars(PPO), "normalize_reward": True, "normalize_observation": True, "rollout_length": 32})
    world = partial(Fortune, 10**12)
    with Run("ppo", world, config=config, engine="torch", environments=2, seed=1) as run:
        run.train(128)
        assert run.learner.scale is not None and run.learner.scale.moments.variance > 1e18
        run.save(tmp_path / "run.etude")
    with etude.load(tmp_path / "run.etude", world) as again:
        assert again.learner.scale.moments == run.learner.scale.moments
        again.train(64)
