"""`run.act`: one observation in, one action out, both as the environment has them."""

from __future__ import annotations

import functools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from pettingzoo import ParallelEnv
from run_makers import DQN_TINY, PPO_TINY

import etude
from etude import Mlp, Recurrent, Run
from etude.base.errors import ConfigError, SpaceError
from etude.envs import make_environment
from etude.rollout import SingleEpisode
from etude.training.kinds.by_policy import best_explorer


class Still(gym.Env):
    """Returns samples of its spaces, and `info` with every observation."""

    def __init__(self, observation, action, info=None):
        self.observation_space, self.action_space, self.info = observation, action, info or {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.time = 0
        return self.observation_space.sample(), dict(self.info)

    def step(self, action):
        assert self.action_space.contains(action), action
        self.time += 1
        return self.observation_space.sample(), 1.0, False, self.time == 10, dict(self.info)


def still(observation, action, info=None):
    return functools.partial(Still, observation, action, info)


PLANE, CHOICE = Box(-1, 1, (2,), np.float32), Discrete(2)
BOUNDS = Box(np.array([0, 10], np.float32), np.array([4, 30], np.float32))
OBSERVATIONS = {
    "Box": PLANE,
    "Discrete that starts at 5": Discrete(3, start=5),
    "Dict": Dict({"place": PLANE, "door": Discrete(2, start=1)}),
    "Tuple": Tuple([PLANE, MultiBinary(3)]),
}
ACTIONS = {
    "Box with bounds of its own": BOUNDS,
    "Discrete that starts at 7": Discrete(3, start=7),
    "MultiDiscrete that starts elsewhere": MultiDiscrete([3, 2], start=[4, 1]),
    "MultiBinary": MultiBinary(3),
}


def run_of(env, algorithm="ppo", **more):
    config = {"ppo": PPO_TINY, "dqn": DQN_TINY}.get(algorithm)
    return Run(algorithm, env, **{"config": config, "engine": "torch", "environments": 2, **more})


@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("action", ACTIONS)
def test_actions_are_of_the_environments_own_space_for_its_own_observations(observation, action):
    env = Still(OBSERVATIONS[observation], ACTIONS[action])
    with run_of(still(OBSERVATIONS[observation], ACTIONS[action])) as run:
        seen, info = env.reset(seed=1)
        for explore in (False, True):
            chosen = run.act(seen, info, explore=explore)
            assert env.action_space.contains(chosen), chosen
            env.step(chosen)


def test_a_bounded_action_is_scaled_from_the_agents_units():
    seen = np.array([0.3, -0.7], np.float32)
    with run_of(still(PLANE, BOUNDS)) as run:
        best = run.actor().act(seen[None]).mode()[0]
        np.testing.assert_allclose(run.act(seen), np.array([2, 20]) + np.clip(best, -1, 1) * [2, 10], rtol=1e-6)


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_an_action_mask_is_obeyed_in_the_info_and_in_the_observation(algorithm):
    seen = np.zeros(2, np.float32)
    with run_of(still(PLANE, Discrete(3), {"action_mask": np.array([1, 1, 1], np.int8)}), algorithm) as run:
        for only in range(3):
            assert run.act(seen, {"action_mask": np.eye(3, dtype=np.int8)[only]}) == only
        with pytest.raises(SpaceError, match=r"run\.act\(observation, info\)"):
            run.act(seen)
    with run_of(still(Dict({"place": PLANE, "action_mask": MultiBinary(3)}), Discrete(3)), algorithm) as run:
        for only in range(3):
            assert run.act({"place": seen, "action_mask": np.eye(3, dtype=np.int8)[only]}, explore=True) == only


def test_what_the_environment_would_not_return_is_refused():
    with run_of(still(PLANE, CHOICE)) as run:
        for wrong in (np.zeros((1, 2), np.float32), np.zeros(3), "left", np.array([np.nan, 0])):
            with pytest.raises(SpaceError, match="act takes one observation"):
                run.act(wrong)


def test_a_recurrent_agent_remembers_until_the_next_episode_begins():
    config = etude.algorithms.RecurrentPPOConfig(
        network=Recurrent(before=Mlp((4,)), units=4), rollout_length=32, minibatch_size=32
    )
    with run_of(still(PLANE, BOUNDS), "recurrent_ppo", config=config) as run:
        seen = np.array([0.3, -0.7], np.float32)
        first, second = run.act(seen), run.act(seen)
        assert not np.array_equal(first, second)
        np.testing.assert_array_equal(run.act(seen, first=True), first)
        np.testing.assert_array_equal(run.act(seen), second)


def test_it_acts_with_the_present_weights_after_training_and_after_loading(tmp_path):
    seen = np.array([0.3, -0.7], np.float32)

    def best(run):
        return 2 + 2 * float(np.clip(run.actor().act(seen[None]).mode()[0, 0], -1, 1))

    with run_of(still(PLANE, BOUNDS)) as run:
        before = run.act(seen)
        run.save(tmp_path / "before.etude")
        run.train(64)
        after = run.act(seen)
        assert after[0] == pytest.approx(best(run)) and not np.array_equal(before, after)
        run.save(tmp_path / "after.etude")
        again = etude.load(tmp_path / "after.etude", env=still(PLANE, BOUNDS))
        np.testing.assert_array_equal(again.act(seen), after)
        again.restore(etude.load(tmp_path / "before.etude", env=still(PLANE, BOUNDS)).state())
        np.testing.assert_array_equal(again.act(seen), before)


def test_it_explores_as_the_run_would_where_that_is_asked_for():
    seen = np.zeros(2, np.float32)
    with run_of(still(PLANE, CHOICE), "dqn") as run:
        assert len({run.act(seen) for _ in range(20)}) == 1
        assert {run.act(seen, explore=True) for _ in range(40)} == {0, 1}  # epsilon is 1 at the start
    with run_of(still(PLANE, CHOICE), "es", config=None) as run:
        assert {run.act(seen, explore=True) for _ in range(9)} == {run.act(seen)}  # weights explore, not actions


def test_an_agent_of_recorded_data_explores_nothing(tmp_path):
    data = etude.record("CartPole-v1", 2)
    with Run("bc", "CartPole-v1", data=data, engine="torch") as run:
        assert run.act(np.zeros(4)) in (0, 1)
        with pytest.raises(ConfigError, match="explores nothing"):
            run.act(np.zeros(4), explore=True)


class Pair(ParallelEnv):
    """Two agents, whose names are numbers; the second's actions start at 3, and its mask comes in its info."""

    metadata = {"name": "pair"}
    possible_agents = [1, 2]

    def observation_space(self, agent):
        return PLANE

    def action_space(self, agent):
        return Discrete(3, start=3 * (agent - 1))

    def reset(self, seed=None, options=None):
        self.agents, self.time = [1, 2], 0
        return self._seen(), self._infos()

    def step(self, actions):
        self.time += 1
        over = self.time == 5
        flags = dict.fromkeys((1, 2), over), dict.fromkeys((1, 2), False)
        return self._seen(), dict.fromkeys((1, 2), 1.0), *flags, self._infos()

    def _seen(self):
        return {agent: np.full(2, agent / 3, np.float32) for agent in (1, 2)}

    def _infos(self):
        return {1: {}, 2: {"action_mask": np.array([0, 1, 0], np.int8)}}


def test_several_agents_get_a_dict_and_act_in_one():
    env = Pair()
    with run_of(Pair) as run:
        seen, infos = env.reset()
        chosen = run.act(seen, infos, first=True)
        assert set(chosen) == {1, 2} and chosen[1] in (0, 1, 2) and chosen[2] == 4
        assert set(run.act({2: seen[2]}, {2: infos[2]}, explore=True)) == {2}
        with pytest.raises(SpaceError, match="dict of observations by agent, of 1, 2"):
            run.act(seen[1])


@pytest.mark.parametrize(("most", "length", "ended"), [(20, 10, True), (10, 10, True), (4, 4, False)])
def test_an_episode_on_its_own_tells_how_long_it_was_what_it_earned_and_whether_it_ended(most, length, ended):
    with run_of(still(PLANE, CHOICE)) as run:
        environment = make_environment(run.environment)
        episode = SingleEpisode(environment, run.actor(), best_explorer(run.agent, environment.spaces), 3)
        lengths = [episode.length for _ in episode.steps(most)]
    assert lengths == [*range(length + 1)]
    assert (episode.length, episode.reward, episode.ended) == (length, float(length), ended)
