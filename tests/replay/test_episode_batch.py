"""Whole episodes as one batch: returns, what the clock cut off, and rows that fill up."""

from __future__ import annotations

import numpy as np
import pytest

from etude.base.data import EpisodeEnd, Steps
from etude.base.errors import ConfigError
from etude.replay import EpisodeBatch, EpisodeReturns, Fitness

GAMMA = 0.5


def steps(rewards, column=0, ends=None, truncated=()):
    """One column: rewards, the time steps at which it ended, and those of them that the clock ended."""
    length = len(rewards)
    ends = [length - 1] if ends is None else ends
    over, cut = np.zeros((length, 1), bool), np.zeros((length, 1), bool)
    over[list(ends)], cut[list(truncated)] = True, True
    return Steps(
        observation=np.arange(length, dtype=np.float32)[:, None, None] + 100 * column,
        action=np.arange(length)[:, None],
        reward=np.array(rewards, np.float32)[:, None],
        terminated=over & ~cut,
        truncated=cut,
        next_observation=np.zeros((1, 1), np.float32),
        final_observation=np.array([[10.0 * t] for t in ends], np.float32),
        final_index=np.array([[t, 0] for t in ends], np.int64).reshape(-1, 2),
        columns=np.array([column]),
        restarted=np.zeros(1, bool),
        episodes=tuple(EpisodeEnd(column, 0, length, float(sum(rewards)), False) for _ in ends),
    )


def worth(observation):
    """The value of a final observation of time t is 10 t; remembers how many it was asked for."""
    worth.asked = len(observation)
    return observation[:, 0]


def batch_of(*parts, n=8, scale=1.0):
    rounds = EpisodeBatch(EpisodeReturns(0.9, worth))
    for part in parts:
        rounds.add(part)
    rounds.adjust({"gamma": GAMMA})
    rounds.view.reward_scale = scale
    return rounds.sample(1, n), rounds


def test_returns_are_discounted_sums_to_the_end_of_the_episode():
    batch, rounds = batch_of(steps([1.0, 2.0, 4.0]), steps([8.0], column=1))
    assert len(rounds) == 4
    assert batch.extras["return"][0, :4].tolist() == [3.0, 4.0, 4.0, 8.0]
    assert batch.observation[0, :4, 0].tolist() == [0, 1, 2, 100]
    assert batch.action[0, :4].tolist() == [0, 1, 2, 0]


def test_where_the_clock_ended_an_episode_the_value_of_the_true_last_observation_counts():
    batch, _ = batch_of(steps([1.0, 1.0], truncated=[1]), steps([1.0, 1.0, 1.0, 1.0], truncated=[3]), steps([2.0]))
    # 1 + 0.5 * 10 = 6 at the end of the first; 1 + 0.5 * 30 = 16 at that of the second; nothing after the third.
    assert batch.extras["return"][0, :7].tolist() == [4, 6, 3.75, 5.5, 9, 16, 2]
    assert worth.asked == 2


def test_values_are_asked_for_in_numbers_that_many_rounds_share():
    batch_of(*(steps([1.0], column=i, truncated=[0]) for i in range(5)))
    assert worth.asked == 8


def test_rows_that_fill_up_weigh_nothing_and_the_others_make_the_mean_right():
    batch, _ = batch_of(steps([1.0, 2.0, 4.0]), n=8)
    assert batch.weight.shape == (1, 8)
    assert (batch.weight[0, 3:] == 0).all()
    x = batch.extras["return"]
    assert np.mean(batch.weight * x) == pytest.approx(np.mean([3.0, 4.0, 4.0]))


def test_steps_of_an_episode_that_goes_on_are_left_out():
    batch, rounds = batch_of(steps([1.0, 2.0, 4.0, 8.0], ends=[1]))
    assert len(rounds) == 2
    assert batch.extras["return"][0, :2].tolist() == [2.0, 2.0]
    assert np.count_nonzero(batch.weight) == 2


def test_two_episodes_in_a_column_are_kept_apart():
    batch, _ = batch_of(steps([1.0, 2.0, 4.0, 8.0], ends=[1, 3]))
    assert batch.extras["return"][0, :4].tolist() == [2.0, 2.0, 8.0, 8.0]


def test_rewards_are_scaled_and_values_are_not():
    batch, _ = batch_of(steps([1.0, 1.0], truncated=[1]), scale=2.0)
    assert batch.extras["return"][0, :2].tolist() == [2 + 0.5 * 7, 7.0]
    assert batch.reward[0, 0] == 2.0


def test_a_round_is_forgotten_once_it_is_cleared():
    _, rounds = batch_of(steps([1.0]))
    rounds.clear()
    assert len(rounds) == 0
    assert rounds.state() == {}


def test_rewards_of_several_agents_are_refused():
    part = steps([1.0])
    with pytest.raises(ConfigError, match="one for each of several agents"):
        EpisodeBatch(EpisodeReturns(GAMMA, worth)).add(
            Steps(**{n: getattr(part, n) for n in Steps.__slots__} | {"reward": np.zeros((1, 1, 2), np.float32)})
        )


def test_scores_are_what_each_environment_earned():
    scores = Fitness(2)
    scores.add(steps([1.0, 2.0], column=1))
    assert len(scores) == 1
    scores.add(steps([5.0], column=0))
    assert scores.sample(1, 2).reward.tolist() == [[5.0, 3.0]]
    scores.clear()
    assert len(scores) == 0
