"""Learned rewards: what is stored for them, what they are given, and the episodes of experts that they learn from."""

import dataclasses

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from etude import checkpoint
from etude.base.data import Batch, Episode
from etude.base.errors import CheckpointError, ConfigError
from etude.examples.experts import Expert, balance, play, read, write
from etude.explore import EpsGreedyQPolicy, GreedyQPolicy, OrnsteinUhlenbeckProcess
from etude.solo.learner import (
    REWARD_INPUTS,
    RewardInputsExplorer,
    learns_rewards,
    loss_arguments,
    split_output,
    unchanged,
)
from etude.solo.settings import Settings

INPUTS, VALUES = np.arange(6.0).reshape(3, 2), np.array([[1.0, 0.0], [0.0, 1.0], [3.0, 2.0]])


class Judge:
    """An agent with a reward model."""

    def reward_model(self, inputs, a, next_s, d):
        return inputs[:, 0]


class Count(gym.Env):
    """The observation is the number of the step; after five steps the episode terminates, or is truncated."""

    observation_space, action_space = Box(0.0, 9.0, (1,), np.float32), Discrete(2)

    def __init__(self, truncates=False):
        self.truncates = truncates

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.start = self.np_random.random()
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        over = self.t == 5
        return self.observe(), float(action), over and not self.truncates, over and self.truncates, {}

    def observe(self):
        return np.array([self.t + self.start], np.float32)


def odd(observation):
    return int(observation[0]) % 2


# -- exploring with rewards that are learned ---------------------------------------------------------------------------


def test_the_policy_gets_the_second_part_and_the_first_is_stored_with_the_step():
    choice = RewardInputsExplorer(GreedyQPolicy())([INPUTS, VALUES], np.empty((3, 0)), 0, np.empty((3, 0)))
    assert choice.action.tolist() == [0, 1, 0]
    assert list(choice.extras) == [REWARD_INPUTS]
    np.testing.assert_array_equal(choice.extras[REWARD_INPUTS], INPUTS)


def test_random_numbers_memory_and_the_share_of_each_environment_are_those_of_the_policy():
    policy, noise = EpsGreedyQPolicy(0.5), OrnsteinUhlenbeckProcess(size=2, theta=0.1)
    drawn = [one.draw(np.random.default_rng(3), 4, Discrete(2)) for one in (policy, RewardInputsExplorer(policy))]
    np.testing.assert_array_equal(*drawn)
    assert RewardInputsExplorer(noise).state_size == noise.state_size > 0
    assert RewardInputsExplorer(noise).of(np.array([1])).state_size == noise.state_size
    assert (
        RewardInputsExplorer(policy)
        == RewardInputsExplorer(EpsGreedyQPolicy(0.5))
        != RewardInputsExplorer(EpsGreedyQPolicy(0.4))
    )


@pytest.mark.parametrize("output", [VALUES, [VALUES], [INPUTS[:2], VALUES], [INPUTS, VALUES, VALUES], ["x", VALUES]])
def test_what_is_no_pair_with_a_row_for_each_observation_is_refused(output):
    with pytest.raises(ConfigError, match=r"returns \[inputs, a\].*each of 3 observations"):
        split_output(output, 3)


def test_an_agent_without_a_reward_model_is_told_to_write_one():
    with pytest.raises(ConfigError, match=r"object has none. Write reward_model\(self, inputs, a, next_s, d\)"):
        learns_rewards(object(), Settings(IRL=True))


def test_rewards_are_learned_with_irl_only():
    assert [learns_rewards(Judge(), Settings(IRL=asked)) for asked in (False, True)] == [False, True]


def test_the_model_is_given_what_was_stored_and_its_rewards_take_the_place_of_the_environments():
    rng = np.random.default_rng(0)
    numbers = lambda *shape: rng.standard_normal((2, 3, *shape)).astype(np.float32)  # noqa: E731
    batch = Batch(
        observation=numbers(2),
        action=rng.integers(0, 2, (2, 3)),
        reward=np.full((2, 3), 99, np.float32),
        discount=np.array([[0.9, 0.0, 0.9]] * 2, np.float32),
        next_observation=numbers(2),
        weight=np.ones((2, 3), np.float32),
        index=np.zeros((2, 3), np.int64),
        extras={REWARD_INPUTS: numbers(4)},
    )
    given = []

    def model(*arguments):
        given.append(arguments)
        return np.full((2, 3), 7, np.float32)

    found = loss_arguments(batch, unchanged, 0.9, model)
    inputs, a, next_s, d = given[0]
    assert inputs is batch.extras[REWARD_INPUTS]
    assert (a is batch.action, next_s is batch.next_observation) == (True, True)
    np.testing.assert_allclose(d, [[0, 1, 0]] * 2, atol=1e-6)
    assert (found[3] == 7).all()
    assert (loss_arguments(batch, unchanged, 0.9)[3] == 99).all()


# -- experts -----------------------------------------------------------------------------------------------------------


def test_an_expert_plays_whole_episodes_that_its_seed_decides():
    episodes = play(odd, Count, 3, seed=4)
    assert len(episodes) == 3
    for one in episodes:
        assert one.observation.shape == (6, 1)
        assert one.action.tolist() == [odd(s) for s in one.observation[:-1]] == one.reward.tolist()
        assert (one.terminated, one.truncated) == (True, False)
    starts = lambda seed: [one.observation[0, 0] for one in play(odd, Count, 3, seed=seed)]  # noqa: E731
    assert starts(4) == [one.observation[0, 0] for one in episodes]
    assert len(set(starts(4)) | set(starts(5))) == 6


def test_no_episodes_cannot_be_asked_for():
    with pytest.raises(ConfigError, match="episodes = 0; expected at least 1"):
        play(odd, Count, 0)


def test_the_expert_of_cartpole_keeps_the_pole_up_for_all_of_an_episode():
    (episode,) = play(balance, "CartPole-v1", 1)
    assert (len(episode.reward), episode.truncated) == (500, True)


def test_episodes_come_back_from_a_file_as_they_were(tmp_path):
    episodes = [*play(odd, Count, 2), *play(odd, lambda: Count(truncates=True), 1)]
    write(tmp_path / "experts.etude", episodes)
    for before, after in zip(episodes, read(tmp_path / "experts.etude"), strict=True):
        for field in dataclasses.fields(Episode):
            old, new = getattr(before, field.name), getattr(after, field.name)
            assert type(new) is type(old)
            np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize(
    "episodes",
    [
        [{"observation": np.zeros((6, 1)), "action": np.zeros(4), "reward": np.zeros(5), "terminated": True,
          "truncated": False}],
        [{"observation": np.zeros((6, 1))}],
        [3],
        5,
    ],
    ids=["unequal", "incomplete", "a number in a list", "a number"],
)  # fmt: skip
def test_a_file_with_other_things_is_refused(episodes, tmp_path):
    checkpoint.write(tmp_path / "other.etude", {"episodes": episodes})
    with pytest.raises(CheckpointError, match="holds no episodes of experts"):
        read(tmp_path / "other.etude")


def test_a_file_of_another_kind_or_a_damaged_one_is_refused(tmp_path):
    path = tmp_path / "agent.etude"
    checkpoint.write(path, {"agent": {}})
    with pytest.raises(CheckpointError, match="lacks episodes"):
        read(path)
    write(path, play(odd, Count, 1))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CheckpointError):
        read(path)


def test_the_steps_of_an_expert_end_where_an_episode_terminated_and_not_where_it_was_truncated():
    ended, cut = play(odd, Count, 1)[0], play(odd, lambda: Count(truncates=True), 1)[0]
    expert = Expert.of([cut, ended])
    assert len(expert) == 10
    assert expert.d.tolist() == [0.0] * 9 + [1.0]
    np.testing.assert_array_equal(expert.s, np.concatenate([cut.observation[:-1], ended.observation[:-1]]))
    np.testing.assert_allclose(expert.next_s - expert.s, 1, rtol=1e-6)
    np.testing.assert_array_equal(expert.a, np.concatenate([cut.action, ended.action]))


def test_an_expert_needs_episodes_with_array_observations():
    one = play(odd, Count, 1)[0]
    for episodes in ([], [dataclasses.replace(one, observation={"x": one.observation})]):
        with pytest.raises(ConfigError, match="at least one episode, with observations that are arrays"):
            Expert.of(episodes)
