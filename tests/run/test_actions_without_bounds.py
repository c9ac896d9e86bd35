"""Box actions with a single bound, or none: policies without bounds reach everything, others are refused by name."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import etude
from etude import Mlp, offline
from etude.algorithms import ALGORITHMS
from etude.base.errors import SpaceError
from etude.base.spaces import Spaces
from etude.multi_agent.policies import MultiAgent
from etude.offline import dataset
from etude.training.assembly.agents import check_spaces, uses_data

INF = np.inf


class Three(gym.Env):
    """Eight steps; the reward is the smaller, the further the action is from 3."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, low, high):
        self.action_space = gym.spaces.Box(low, high, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.time += 1
        return np.zeros(1, np.float32), -float((action[0] - 3) ** 2), False, self.time == 8, {}


@pytest.mark.parametrize(("low", "high"), [(-INF, INF), (2, INF), (0, INF)])
def test_ppo_finds_the_best_action_beyond_any_bound(low, high):
    settings = {"rollout_length": 32, "minibatch_size": 128, "epochs": 5, "network": Mlp((16,)), "environments": 8}
    rate = etude.Linear(1e-2, 1e-3)
    with etude.Run("ppo", lambda: Three(low, high), engine="torch", seed=1, learning_rate=rate, **settings) as run:
        run.train(5_000)
        assert run.act(np.zeros(1, np.float32)) == pytest.approx(3.0, abs=0.1)


def test_algorithms_whose_actions_lie_within_bounds_refuse_a_space_without_them():
    continuous = {
        name: kind
        for name, (kind, _) in ALGORITHMS.items()
        if gym.spaces.Box in kind.actions and not issubclass(kind, MultiAgent)
    }
    free = {name for name, kind in continuous.items() if not kind.bounded_actions}
    assert {"ppo", "gail"} <= free and not {"sac", "td3", "bc", "ars"} & free
    space = gym.spaces.Box(-INF, INF, (1,), np.float32)
    for name in free:
        check_spaces(continuous[name](ALGORITHMS[name][1]()), Spaces(space, space))
    for name in continuous.keys() - free:
        asked = ALGORITHMS[name][1].__name__.removesuffix("Config")
        for low, high in ((-INF, INF), (2, INF), (-INF, 2), (-np.finfo(np.float32).max, 2)):
            data = etude.record(lambda low=low, high=high: Three(low, high), 2) if uses_data(name) else None
            with pytest.raises(SpaceError, match=f"{asked} computes.*two finite.*TransformAction"):
                etude.Run(name, lambda low=low, high=high: Three(low, high), engine="torch", data=data)


def test_the_way_out_that_the_refusal_names_works():
    def bounded(env):
        return gym.wrappers.TransformAction(env, lambda action: action, gym.spaces.Box(-5, 5, (1,)))

    with etude.Run(
        "sac", etude.Environment(lambda: Three(0, INF), wrappers=bounded), engine="torch", network=Mlp((8,))
    ) as run:
        assert run.act(np.zeros(1, np.float32)).shape == (1,)


def test_elements_with_one_bound_are_counted_from_it_in_runs_and_in_files(tmp_path):
    low, high = np.float32([-2, 2, -INF, -INF]), np.float32([4, INF, 5, INF])
    space = gym.spaces.Box(low, high)
    own = dataset.canonical_spaces(Spaces(space, space)).action
    np.testing.assert_array_equal([own.low, own.high], [[-1, 0, -INF, -INF], [1, INF, 0, INF]])
    taken = np.float32([[-2, 2, 5, -7], [4, 3.5, 4, 100], [1, 2.25, -30, 0]])
    chosen = np.float32([[-1, 0, 0, -7], [1, 1.5, -1, 100], [0, 0.25, -35, 0]])
    np.testing.assert_allclose(dataset.actions_in(space, [taken]), chosen)
    np.testing.assert_allclose(dataset.actions_out(space, chosen)[0], taken)
    np.testing.assert_array_equal(dataset.outside(space, taken + np.float32([0, 0, 0.5, 0])), [True, False, False])

    class Four(Three):
        def __init__(self):
            self.action_space = space

    with etude.Run("ppo", Four, engine="torch", environments=2, network=Mlp((4,))) as run:
        data = etude.record(Four, 4, run=run, explore=True)
    offline.write(tmp_path / "four.h5", data)
    for one, other in zip(offline.read(tmp_path / "four.h5").episodes, data.episodes, strict=True):
        np.testing.assert_allclose(one.action, other.action, atol=1e-6)
        assert (other.action[:, 1] >= 0).all() and (other.action[:, 2] <= 0).all()
