"""Rollouts beside an expert's steps, with rewards that are told."""

import numpy as np
import pytest
from test_views import SCALAR, one_column

from etude.base.errors import ConfigError
from etude.replay import Advantages, Buffer, Demonstrations, Epochs, OneStep, Ring, Uniform

HYPER = {"gamma": 0.9, "gae_lambda": 0.8}
EXPERT = one_column([10, 11, 12, 13, 14, 15], [0.0] * 5, terminated=(1,), truncated=(3,), final=77.0)
STEPS = one_column(range(9), [5.0] * 8, terminated=(2,), truncated=(5,))
ROWS = np.arange(8).reshape(2, 4)
WEIGHT = np.ones((2, 4), np.float32)


class Told:
    """Rewards that show what they were computed from."""

    def __init__(self):
        self.calls = []

    def __call__(self, observation, action, following, discount):
        self.calls.append((observation[:, 0], action, following[:, 0], discount))
        return 100 * observation[:, 0] + following[:, 0]


def halved(observation):
    return 0.5 * observation[:, 0]


def shown(seed=0, steps=STEPS):
    """(view, ring of the rollout, what was told)."""
    expert = Buffer(Ring(SCALAR, len(EXPERT) + 1), Uniform(), OneStep(0.9), np.random.default_rng(seed))
    expert.add(EXPERT)
    told = Told()
    ring = Ring(SCALAR, len(steps))
    ring.add(steps)
    return Demonstrations(Advantages(0.9, 0.8, halved), expert, told), ring, told


def test_rewards_are_told_of_true_next_observations_and_discounts_that_are_0_only_where_terminated():
    view, ring, told = shown()
    view(ring, ROWS, WEIGHT)
    observation, action, following, discount = told.calls[0]
    np.testing.assert_array_equal(observation, np.arange(8))
    np.testing.assert_array_equal(following, [1, 2, 99, 4, 5, 99, 7, 8])
    np.testing.assert_allclose(discount, [0.9, 0.9, 0, 0.9, 0.9, 0.9, 0.9, 0.9])
    assert action.shape == (8,)


def test_advantages_are_those_of_the_learned_rewards_and_the_environments_stay_where_they_are():
    view, ring, _ = shown()
    batch = view(ring, ROWS, WEIGHT)
    rewards = np.float32([100 * t + [1, 2, 99, 4, 5, 99, 7, 8][t] for t in range(8)])
    np.testing.assert_allclose(batch.reward, rewards.reshape(2, 4))
    other = Ring(SCALAR, 8)
    other.add(one_column(range(9), rewards, terminated=(2,), truncated=(5,)))
    expected = Advantages(0.9, 0.8, halved)(other, ROWS, WEIGHT)
    for name in ("advantage", "return", "value"):
        np.testing.assert_allclose(batch.extras[name], expected.extras[name], rtol=1e-6)
    np.testing.assert_array_equal(batch.next_observation[..., 0], np.float32([[1, 2, 99, 4], [5, 99, 7, 8]]))
    assert (ring.reward[:8] == 5).all()


def test_a_learning_phase_has_the_rewards_of_one_model_and_the_next_one_has_others():
    view, ring, told = shown()
    view(ring, ROWS, WEIGHT)
    view.adjust(HYPER)
    view(ring, ROWS, WEIGHT)
    assert len(told.calls) == 1
    view.adjust(HYPER | {"gamma": 0.5})
    view(ring, ROWS, WEIGHT)
    assert len(told.calls) == 2 and told.calls[1][3].max() == 0.5
    ring.clear()
    ring.add(one_column(range(20, 29), [5.0] * 8))
    batch = view(ring, ROWS, WEIGHT)
    assert len(told.calls) == 3
    np.testing.assert_allclose(batch.reward[0, 0], 100 * 20 + 21)


def test_every_step_comes_with_a_whole_step_of_the_expert_at_the_present_discount():
    view, ring, _ = shown()
    view.adjust(HYPER | {"gamma": 0.5})
    rows = np.tile(ROWS, (1, 50))
    found = view(ring, rows, np.ones(rows.shape, np.float32)).extras["expert"]
    assert {name: array.shape[:2] for name, array in found.items()} == dict.fromkeys(found, rows.shape)
    drawn = {
        (float(s), float(after), float(discount))
        for s, after, discount in zip(
            found["observation"].ravel(), found["next_observation"].ravel(), found["discount"].ravel(), strict=True
        )
    }
    assert drawn == {(10, 11, 0.5), (11, 77, 0), (12, 13, 0.5), (13, 77, 0.5), (14, 15, 0.5)}


def test_a_restored_view_draws_on_with_the_same_steps_and_needs_no_data():
    view, ring, _ = shown()
    view(ring, ROWS, WEIGHT)
    empty = Buffer(Ring(SCALAR, len(EXPERT) + 1), Uniform(), OneStep(0.9), np.random.default_rng(9))
    again = Demonstrations(Advantages(0.9, 0.8, halved), empty, Told())
    with pytest.raises(ConfigError, match="empty"):
        again(ring, ROWS, WEIGHT)
    again.restore(view.state())
    one, other = (which(ring, ROWS, WEIGHT).extras["expert"]["observation"] for which in (view, again))
    np.testing.assert_array_equal(one, other)


def test_it_is_a_view_like_any_other():
    view, ring, _ = shown()
    view.view.reward_scale = 0.5
    batch = Buffer(ring, Epochs(), view, np.random.default_rng(0)).sample(2, 4)
    np.testing.assert_allclose(batch.reward, 0.5 * (100 * batch.observation + batch.next_observation)[..., 0])
