"""What is learned from is what the environment executed; samples beyond its bounds are kept beside that."""

from __future__ import annotations

import dataclasses

import gymnasium as gym
import numpy as np
import pytest

import etude
from etude import Mlp, offline
from etude.algorithms import (
    A2CConfig,
    AWACConfig,
    CQLConfig,
    EDACConfig,
    IMPALAConfig,
    IQLConfig,
    PPOConfig,
    ReBRACConfig,
    ReinforceConfig,
    SACConfig,
    TD3BCConfig,
)

WIDE = 2.0  # log standard deviation: most samples are beyond the bounds
TINY = {"network": Mlp((4,)), "batch_size": 8, "learning_starts": 16, "buffer_size": 500}
TINY |= {"train_every": 8, "gradient_steps": 2}
ON_POLICY = {
    "ppo": PPOConfig(network=Mlp((4,)), rollout_length=16, minibatch_size=16, epochs=1, initial_log_std=WIDE),
    "a2c": A2CConfig(network=Mlp((4,)), rollout_length=16, initial_log_std=WIDE),
    "impala": IMPALAConfig(network=Mlp((4,)), rollout_length=16, initial_log_std=WIDE),
}
OFFLINE = {
    "iql": IQLConfig, "awac": AWACConfig, "td3_bc": TD3BCConfig, "cql": CQLConfig, "rebrac": ReBRACConfig,
    "edac": EDACConfig,
}  # fmt: skip


class Telling(gym.Env):
    """Observes the action that it executed last; episodes of 7 steps."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Box(np.float32([-3, 0]), np.float32([5, 2]), dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.time += 1
        return np.array(action, np.float32), -float(np.abs(action).sum()), False, self.time == 7, {}


def told(following):
    """Of observations [..., 2], the actions that led to them, as the agent chooses them from [-1, 1]."""
    return (following - np.float32([1, 1])) / np.float32([4, 1])


def run_of(name, config, **more):
    return etude.Run(name, Telling, config=config, engine="torch", seed=1, **more)


def own_episodes():
    """A few episodes of random actions."""
    return etude.record(Telling, 3)


def collected(run, steps):
    """The steps that a run stored, by the rows of its ring."""
    run.train(steps)
    ring = run.learner.replay.ring
    rows = ring.oldest(ring.filled)
    return ring, rows


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["iql", "awac"])
def test_a_replay_of_sampled_actions_holds_those_that_were_executed(name, workers):
    with run_of(name, OFFLINE[name](**TINY), data=own_episodes()) as recorded:
        recorded.train(5)
        with recorded.go_online(0.0, environments=2, workers=workers) as run:
            ring, rows = collected(run, 64)
        np.testing.assert_allclose(ring.actions(rows), told(ring.following(rows)), atol=1e-6)
        assert (np.abs(ring.actions(rows)[:, 0]) == 1).any()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ON_POLICY)
def test_an_on_policy_rollout_keeps_the_samples_of_log_prob_beside_what_was_executed(name, workers):
    with run_of(name, ON_POLICY[name], environments=2, workers=workers) as run:
        seen = []
        add = run.learner.replay.add
        run.learner.replay.add = lambda steps: (seen.append(steps.copied()), add(steps))
        run.train(32)
    (steps,) = seen
    sample, executed = steps.extras["sampled_action"], steps.action
    assert (np.abs(sample) > 1).any((0, 1)).all()
    np.testing.assert_array_equal(executed, np.clip(sample, -1, 1))
    np.testing.assert_allclose(executed, told(steps.next_observations()), atol=1e-6)


def test_a_recording_in_memory_holds_executed_actions_and_samples():
    with run_of("ppo", ON_POLICY["ppo"], environments=2) as run:
        data = etude.record(Telling, 6, run=run, explore=True)
        for episode in data.episodes:
            output = run.actor().act(episode.observation[:-1])
            sample = episode.extras["sampled_action"]
            scaled = (sample - output.mean) / np.exp(output.log_std)
            density = (-0.5 * scaled**2 - output.log_std - 0.5 * np.log(2 * np.pi)).sum(-1)
            np.testing.assert_allclose(episode.extras["log_prob"], density, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(episode.action, told(episode.observation[1:]), atol=1e-6)
            assert (sample != episode.action).any()


@pytest.mark.parametrize("name", [*OFFLINE, "sac"])
def test_offline_algorithms_learn_from_what_a_recording_executed(name):
    with run_of("ppo", ON_POLICY["ppo"], environments=2) as run:
        data = etude.record(Telling, 6, run=run, explore=True)
    config = SACConfig(**TINY) if name == "sac" else OFFLINE[name](network=Mlp((4,)), batch_size=8)
    run = run_of(name, config, data=data)
    ring = run.learner.replay.ring
    rows = ring.oldest(ring.filled)
    np.testing.assert_allclose(ring.actions(rows), told(ring.following(rows)), atol=1e-6)


@pytest.mark.parametrize("form", ["parquet", "hdf5", "jsonl", "minari"])
def test_a_recording_in_a_file_is_the_one_in_memory(tmp_path, form):
    with run_of("ppo", ON_POLICY["ppo"], environments=2) as run:
        data = etude.record(Telling, 6, run=run, explore=True)
        etude.record(Telling, 6, run=run, explore=True, output=offline.Writer(tmp_path / "shards", form))
        offline.write(tmp_path / "one.parquet", data)
    for found in (offline.Reader(tmp_path / "shards").read(), offline.read(tmp_path / "one.parquet")):
        for one, other in zip(found.episodes, data.episodes, strict=True):
            np.testing.assert_array_equal(one.action, other.action)
            assert one.extras.keys() == other.extras.keys() == {"log_prob", "sampled_action"}
            for key, values in other.extras.items():
                np.testing.assert_array_equal(one.extras[key], values)


def test_episodes_and_files_with_samples_in_the_place_of_actions_are_read_as_executed(tmp_path):
    with run_of("ppo", ON_POLICY["ppo"], environments=2) as run:
        data = etude.record(Telling, 6, run=run, explore=True)
    raw = [
        dataclasses.replace(
            episode, action=episode.extras["sampled_action"], extras={"log_prob": episode.extras["log_prob"]}
        )
        for episode in data.episodes
    ]
    ring = run_of("td3_bc", TD3BCConfig(network=Mlp((4,))), data=raw).learner.replay.ring
    rows = ring.oldest(ring.filled)
    np.testing.assert_array_equal(ring.actions(rows), np.concatenate([episode.action for episode in data.episodes]))
    with offline.Writer(tmp_path, spaces=data.source) as writer:  # as earlier versions wrote them
        writer.write(raw)
    for one, other in zip(offline.Reader(tmp_path).read().episodes, data.episodes, strict=True):
        np.testing.assert_array_equal(one.action, other.action)
        np.testing.assert_array_equal(one.extras["sampled_action"], other.extras["sampled_action"])


def test_reinforce_differentiates_the_density_of_samples():
    config = ReinforceConfig(network=Mlp((4,)))
    with run_of("reinforce", config, environments=2) as run:
        seen = []
        learn = run.learner.engine.learn
        run.learner.engine.learn = lambda batches, hyper: (seen.append(batches), learn(batches, hyper))[1]
        run.train(14)
    batch = seen[0]
    rows = batch.weight[0] > 0
    assert (batch.sampled_action[0][rows] != batch.action[0][rows]).any()
    np.testing.assert_array_equal(batch.action[0], np.clip(batch.sampled_action[0], -1, 1))
