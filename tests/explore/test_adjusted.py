"""Explorers whose parameters rules change: by the version of the weights, in this process and in workers."""

import functools
import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from etude import Linear
from etude.base.data import PolicyVersion
from etude.base.schedules import at, scaled
from etude.base.spaces import Discrete
from etude.explore import AdjustedExplorer, EpsilonGreedy, PerActorEpsilonGreedy
from etude.rollout import FollowingActor

VALUES = np.array([[0.0, 1.0]] * 4, np.float32)
NOISE = np.array([[0.05, 0.9], [0.15, 0.9], [0.25, 0.9], [0.35, 0.0]], np.float32)  # (compared with epsilon, action)


def greedy_of(epsilon, total, factors):
    return EpsilonGreedy(scaled(epsilon, factors.get("epsilon", 1.0)), total)


def per_actor_of(factors):
    return PerActorEpsilonGreedy(scaled(0.1, factors.get("epsilon", 1.0)), 1.0, 4)


def explored(explorer, step=0):
    return explorer(VALUES, NOISE, step, np.empty((4, 0))).action.tolist()


def version(factor):
    return PolicyVersion(7, {}, {"epsilon": factor})


def actor():
    return SimpleNamespace(act=None, state_size=0, load=lambda weights, version: None)


def test_the_version_of_the_weights_scales_epsilon_for_all_environments_and_schedules_go_on_underneath():
    explorer = AdjustedExplorer(functools.partial(greedy_of, Linear(0.4, 0.0), 100))
    part = explorer.of(np.arange(4))
    assert explored(part) == [1, 1, 1, 0]
    explorer.follow(version(0.5))
    assert explored(part, 40) == explored(EpsilonGreedy(0.5 * 0.4 * 0.6), 40)
    explorer.follow(PolicyVersion(8, {}))
    assert explored(part) == [1, 1, 1, 0]
    assert explorer.distribution(VALUES, 50).mode().tolist() == [1, 1, 1, 1]


def test_explorers_are_equal_where_the_config_says_the_same_whatever_rules_have_changed():
    one, other = (AdjustedExplorer(functools.partial(greedy_of, 0.1, 100)) for _ in range(2))
    one.follow(version(2.0))
    assert one == other
    assert one != AdjustedExplorer(functools.partial(greedy_of, 0.1, 200))
    drawn = [each.draw(np.random.default_rng(1), 3, Discrete(2)).tolist() for each in (one, other)]
    assert drawn[0] == drawn[1]


def test_an_actor_in_a_worker_makes_the_explorer_that_came_with_it_follow():
    own = AdjustedExplorer(per_actor_of)
    make, explorer = pickle.loads(pickle.dumps((functools.partial(FollowingActor.made, actor, own.follow), own)))
    mine = explorer.of(np.array([0, 3]))
    make().load({}, version(3.0))
    np.testing.assert_allclose(mine._present().per_actor(0.3, 2), [0.3, 0.09])
    assert mine._present().epsilon == pytest.approx(0.3)
    assert own._present().epsilon == pytest.approx(0.1), "that of another process"


def test_what_is_at_most_1_stays_at_most_1():
    schedule = scaled(Linear(1.0, 0.1, steps=10), 4.0)
    assert [at(schedule, step, 10) for step in (0, 5, 10)] == [1.0, 1.0, pytest.approx(0.4)]
    assert scaled(0.5, 4.0) == 1.0
    assert scaled(2.0, 0.25) == 0.5
    assert scaled(2.0, 4.0) == 2.0
