"""CartPole whose actions change places, of the examples."""

import gymnasium as gym
import numpy as np
import pytest

from etude.envs import check_environment
from etude.examples.cart_pole import EMBEDDINGS, WithShuffledActions


def test_nothing_is_found_wrong_with_it():
    assert check_environment("etude.examples.cart_pole:WithShuffledActions") == []


def test_the_two_embeddings_are_where_the_mask_allows_and_change_places():
    env = WithShuffledActions(slots=6)
    observation, _ = env.reset(seed=0)
    places = set()
    for _ in range(8):
        allowed = np.flatnonzero(observation["action_mask"])
        assert len(allowed) == 2
        shown = observation["actions"]
        assert sorted(shown[allowed].tolist()) == sorted(EMBEDDINGS.tolist())
        assert not shown[observation["action_mask"] == 0].any()
        places.add(tuple(allowed))
        observation, *_ = env.step(allowed[0])
    assert len(places) > 3


def test_a_slot_does_what_its_embedding_says():
    env, plain = WithShuffledActions(), gym.make("CartPole-v1")
    observation, _ = env.reset(seed=4)
    expected, _ = plain.reset(seed=4)
    for action in (0, 1, 1, 0, 1):
        np.testing.assert_array_equal(observation["observation"], expected)
        slot = int((observation["actions"] == EMBEDDINGS[action]).all(1).argmax())
        observation, *rest = env.step(slot)
        expected, *rest_expected = plain.step(action)
        assert rest == rest_expected


def test_empty_slots_and_too_few_of_them_are_refused():
    env = WithShuffledActions()
    observation, _ = env.reset(seed=0)
    with pytest.raises(ValueError, match="holds no action; those that do are"):
        env.step(int(np.flatnonzero(observation["action_mask"] == 0)[0]))
    with pytest.raises(ValueError, match="slots = 1; expected at least 2"):
        WithShuffledActions(slots=1)
