"""Hindsight experience replay as a setting of runs."""

from __future__ import annotations

import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
from run_worlds import Counted

import etude
from etude import Mlp, Recurrent, Run
from etude.algorithms import ApexDQNConfig, DDPGConfig, DQNConfig, R2D2Config
from etude.base.errors import ConfigError, EnvironmentFault
from etude.base.events import Learned
from etude.presets import POINT, PRESETS
from etude.training.description import Environment

TINY = {"network": Mlp((4,)), "batch_size": 16, "learning_starts": 40, "train_every": 8, "buffer_size": 500}
BITS = 4


class BitFlip(gym.Env):
    """Each action flips one bit; the goal is a pattern. Andrychowicz et al. 2017, section 3.1."""

    observation_space = Dict({key: MultiBinary(BITS) for key in ("observation", "achieved_goal", "desired_goal")})
    action_space = Discrete(BITS)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.bits, self.goal = self.np_random.integers(0, 2, (2, BITS)).astype(np.int8)
        self.time = 0
        return self.observe(), {}

    def step(self, action):
        self.bits, self.time = self.bits.copy(), self.time + 1
        self.bits[action] ^= 1
        reached = bool((self.bits == self.goal).all())
        return self.observe(), float(reached) - 1, reached, self.time == BITS and not reached, {}

    def observe(self):
        return {"observation": self.bits, "achieved_goal": self.bits, "desired_goal": self.goal}

    def compute_reward(self, achieved_goal, desired_goal, info):
        return (achieved_goal == desired_goal).all(-1) - 1.0

    def compute_terminated(self, achieved_goal, desired_goal, info):
        return (achieved_goal == desired_goal).all(-1)


def point(**more) -> Run:
    config = DDPGConfig(**{**TINY, "random_steps": 1_000, "hindsight": "future", **more})
    return Run("ddpg", POINT, config=config, engine="torch", environments=2, seed=1)


def drawn(run: Run):
    """A large batch of transitions, and which of them have goals that the environment never sets."""
    batch = run.learner.replay.sample(1, 4_000)
    goal = batch.observation["desired_goal"][0]
    return batch, ((goal < 3.5) | (goal > 4.5)).any(-1)


@pytest.mark.parametrize(("goals", "share"), [(1, 0.5), (4, 0.8)])
def test_goals_are_relabelled_in_the_ratio_that_the_config_says(goals, share):
    with point(hindsight_goals=goals) as run:
        run.train(200)
        _, relabelled = drawn(run)
    assert abs(relabelled.mean() - share) < 0.1  # few of the achieved goals are where goals are set


def test_relabelled_transitions_have_the_rewards_and_ends_of_their_goals():
    with point() as run:
        run.train(200)
        batch, relabelled = drawn(run)
    achieved, goal = batch.next_observation["achieved_goal"][0], batch.next_observation["desired_goal"][0]
    reached = np.linalg.norm(achieved - goal, axis=-1) < 0.15
    np.testing.assert_array_equal(batch.reward[0], np.where(reached, 0, -1))
    np.testing.assert_array_equal(batch.discount[0], np.float32(0.99) * ~reached)
    assert (reached & relabelled).mean() > 0.05
    np.testing.assert_array_equal(goal, batch.observation["desired_goal"][0])


def test_without_hindsight_transitions_keep_their_goals():
    with point(hindsight="none") as run:
        run.train(200)
        assert not drawn(run)[1].any()


R2D2 = {"network": Recurrent(Mlp((4,)), 4), "sequence_length": 4, "burn_in": 1}


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize(
    ("algorithm", "config", "changes"),
    [("dqn", DQNConfig, {"n_step": 3, "priority_exponent": 0.6}), ("r2d2", R2D2Config, R2D2)],
)
@pytest.mark.long_but("future", "dqn-DQNConfig-changes0-final", "r2d2-R2D2Config-changes1-episode")
def test_discrete_goals_multi_step_returns_priorities_and_sequences_learn_with_hindsight(
    algorithm, config, changes, strategy
):
    config = config(**{**TINY, **changes, "normalize_reward": True, "hindsight": strategy})
    with Run(algorithm, BitFlip, config=config, engine="torch", environments=2, workers=1) as run:
        events = [event for event in run.steps(96) if isinstance(event, Learned) and event.losses]
    assert events
    assert np.isfinite([loss for event in events for loss in event.losses.values()]).all()


def test_the_presets_of_the_point_world_relabel_goals():
    tuned = [name for name, presets in PRESETS.items() if POINT in presets]
    assert tuned == ["ddpg", "sac", "td3"]
    for name in tuned:
        with Run(name, POINT, engine="torch") as run:
            assert (run.agent.config.hindsight, run.agent.config.hindsight_goals) == ("future", 4)


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_environments_without_goals_are_refused():
    with pytest.raises(ConfigError, match="Hindsight needs observations with goals, Dict"):
        Run("dqn", Counted, hindsight="future", engine="torch")


def test_goal_environments_without_rewards_of_goals_are_refused():
    class Mute(BitFlip):
        compute_reward = property()

    with pytest.raises(ConfigError, match="Mute has no compute_reward"):
        Run("dqn", Mute, hindsight="future", engine="torch")


def test_several_agents_are_refused():
    with pytest.raises(ConfigError, match="MADDPG: hindsight = 'final', but this environment has several agents"):
        Run("maddpg", "mpe2:simple_speaker_listener_v4", hindsight="final", engine="torch")


def test_settings_that_do_not_go_together_are_refused():
    with pytest.raises(ConfigError, match="hindsight = 'past'; expected 'none' or 'future' or 'final' or 'episode'"):
        DQNConfig(hindsight="past")
    with pytest.raises(ConfigError, match="hindsight_goals = 0; expected a whole number of at least 1"):
        DQNConfig(hindsight_goals=0)
    with pytest.raises(ConfigError, match="actor_priorities = True, hindsight = 'future'; actors compute priorities"):
        ApexDQNConfig(hindsight="future")


class Scaled(gym.RewardWrapper):
    """Rewards are ten times as large, outside of the environment that computes those of goals."""

    def reward(self, reward):
        return 10.0 * reward


class ScaledGoals(Scaled):
    def compute_reward(self, achieved_goal, desired_goal, info):
        return 10.0 * self.env.unwrapped.compute_reward(achieved_goal, desired_goal, info)


@pytest.mark.parametrize(
    ("wrapper", "warned"), [(Scaled, 1), (ScaledGoals, 0), (gym.wrappers.RecordEpisodeStatistics, 0)]
)
def test_a_wrapper_that_changes_rewards_but_not_those_of_goals_is_told_once(wrapper, warned):
    config = DQNConfig(**TINY, hindsight="future")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with Run("dqn", Environment(BitFlip, wrappers=[wrapper]), config=config, engine="torch", seed=1) as run:
            run.train(120)
    found = [str(each.message) for each in told if "compute_reward gives" in str(each.message)]
    assert len(found) == warned
    assert all("a step was rewarded with -10, and compute_reward gives -1 for its goals" in each for each in found)


class Breaking(BitFlip):
    """Its rewards of goals raise, or are no numbers, from a call on."""

    observation_space = Dict({key: Box(0, 1, (BITS,)) for key in ("observation", "achieved_goal", "desired_goal")})
    calls, broken = 0, KeyError("extra")

    def observe(self):
        return {key: bits.astype(np.float32) for key, bits in super().observe().items()}

    def compute_reward(self, achieved_goal, desired_goal, info):
        Breaking.calls += 1
        if Breaking.calls < 40:
            return super().compute_reward(achieved_goal, desired_goal, info)
        if isinstance(self.broken, Exception):
            raise self.broken
        return self.broken


class Mended(Breaking):
    compute_reward = BitFlip.compute_reward


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (KeyError("extra"), "the reward of a goal raised KeyError.*extra"),
        (None, "the reward of a goal raised"),
        ("high", "the reward of a goal raised"),
        (np.nan, "compute_reward returned nan; expected finite numbers"),
        ([1.0, 2.0, 3.0], r"The rewards of \d+ pairs of goals are of shape \(3,\)"),
    ],
)
def test_what_rewards_of_goals_raise_later_is_a_fault_of_the_environment_and_the_run_is_saved(
    broken, message, tmp_path, monkeypatch
):
    monkeypatch.setattr(Breaking, "calls", 0)
    monkeypatch.setattr(Breaking, "broken", broken)
    config = DQNConfig(**TINY, hindsight="future", normalize_observation=True)
    with Run("dqn", Breaking, config=config, engine="torch", run_dir=tmp_path / "run", seed=1) as run:
        with pytest.raises(EnvironmentFault, match=message):
            run.train(2_000)
        step, seen = run.step, run.learner.moments.state()
    assert step >= 40
    with etude.load(tmp_path / "run", env=Mended) as again:
        assert again.step == step == len(again.learner.replay)
        assert str(again.learner.moments.state()) == str(seen), "the steps that are stored are in the normaliser"
        again.train(40)
