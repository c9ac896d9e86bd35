"""Acting for several runs at once, which of them are stepped together, and the seeds of their environments."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from etude import Conv, Mlp, Recurrent, Transformer
from etude.agent import Agent
from etude.algorithms import ALGORITHMS, PPOConfig, for_several
from etude.base import seeding, trees
from etude.base.errors import ConfigError
from etude.base.seeding import MemberSeeds
from etude.engines.numpy import NumpyEngine
from etude.engines.stacked import StackedActor
from etude.explore import EpsilonGreedy, PerActorEpsilonGreedy, PerMember
from etude.report.series import interquartile_mean
from etude.run import Run
from etude.run.group import RunGroup, reason_apart

OBSERVATION = gym.spaces.Dict({"x": gym.spaces.Box(-1, 1, (3,), np.float32), "mode": gym.spaces.Discrete(3)})
ACTIONS = (gym.spaces.Discrete(3), gym.spaces.Box(-1, 1, (2,), np.float32))
ALONE = {  # no network from `Mlp`, or plans that all observations share
    "categorical_sac", "dreamer_v3", "lin_ucb", "neural_ts", "pets", "r2d2", "rainbow", "recurrent_ppo", "td_mpc2",
}  # fmt: skip


class World(gym.Env):
    """Observations are drawn; episodes have five steps."""

    def __init__(self, action: gym.Space, observation: gym.Space = OBSERVATION):
        self.action_space, self.observation_space = action, observation

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.time = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.time += 1
        return self.observation_space.sample(), float(np.sum(action)), False, self.time == 5, {}


def run_of(algorithm: str, action: gym.Space, **more: Any) -> Run:
    return Run(algorithm, lambda: World(action), engine="torch", **more)


def agents() -> list[Any]:
    found = []
    for name, (agent, config) in ALGORITHMS.items():
        kinds = [action for action in ACTIONS if isinstance(action, agent.actions)]
        if kinds and not for_several(agent) and not isinstance(config().network, Transformer):
            found.append(pytest.param(agent, kinds[0], name, id=name))
    return found


@pytest.mark.parametrize(("kind", "action", "name"), agents())
def test_each_member_acts_with_the_bits_of_its_own_engine(kind: type[Agent], action: gym.Space, name: str):
    from etude.envs import examine

    spaces = examine(lambda: World(action))[0]
    agent = kind(ALGORITHMS[name][1]())
    try:
        actor = StackedActor(agent, spaces, 3)
    except ConfigError as error:
        assert name in ALONE, error
        return
    assert name not in ALONE
    rng = np.random.default_rng(0)
    engines = [NumpyEngine(agent, spaces) for _ in range(3)]
    for i, engine in enumerate(engines):
        own = {n: rng.standard_normal(v.shape).astype(v.dtype) for n, v in engine.weights().items()}
        own |= {n: np.abs(v) for n, v in own.items() if n.endswith("variance")}
        engine.load(own)
        actor.load_member(i, own)
    observation = {"x": rng.standard_normal((15, 3)).astype(np.float32), "mode": rng.integers(0, 3, 15)}
    together = trees.leaves(actor.act(observation))
    for i, engine in enumerate(engines):
        part = slice(5 * i, 5 * (i + 1))
        alone = trees.leaves(engine.act(trees.rows(observation, part)))
        assert all(np.array_equal(one, all_[part]) for one, all_ in zip(alone, together, strict=True))


@pytest.mark.parametrize(
    ("algorithm", "more", "reason"),
    [
        ("ppo", {}, None),
        ("dqn", {}, None),
        ("ppo", {"workers": 2}, "workers collect"),
        ("reinforce", {}, "whole episodes"),
        ("recurrent_ppo", {"network": Recurrent(Mlp((4,)), 4)}, "recurrent state"),
        ("dqn", {"network": Mlp((4,), noisy=0.5)}, "without noise in their layers"),
        ("apex_dqn", {}, "more than collected steps"),
        ("a3c", {}, "more than collected steps"),
    ],
)  # fmt: skip
def test_runs_are_stepped_together_or_the_reason_is_named(algorithm, more, reason):
    with run_of(algorithm, ACTIONS[0], environments=2, **more) as run:
        found = reason_apart(run)
    assert found is None if reason is None else found is not None and reason in found


def test_an_environment_has_the_seeds_that_it_has_in_its_run_alone():
    seeds = MemberSeeds((7, 9), 4)
    assert seeding.episode_seed(seeds, 6, 3) == seeding.episode_seed(9, 2, 3)
    one, other = seeding.generator(seeds, "explore", 1), seeding.generator(7, "explore", 1)
    assert one.integers(2**31) == other.integers(2**31)
    assert seeding.environment_name(seeds, 6) == "2 of seed 9" and seeding.environment_name(7, 6) == 6


def test_environments_of_every_run_are_explored_as_those_of_one():
    per_actor = PerActorEpsilonGreedy(0.4, 7.0, 4)
    joint = PerMember(per_actor, 2, 4).of(np.arange(8))
    alone = per_actor.of(np.arange(4))
    rng = np.random.default_rng(0)
    values, noise = rng.random((8, 3), np.float32), rng.random((8, 2), np.float32)
    found = joint(values, noise, 0, np.empty((8, 0))).action
    for half in (slice(0, 4), slice(4, 8)):
        assert np.array_equal(found[half], alone(values[half], noise[half], 0, np.empty((4, 0))).action)


def test_schedules_of_exploration_count_the_steps_of_one_run():
    class Seen(EpsilonGreedy):
        def __call__(self, output, noise, step, state):
            return step

    assert PerMember(Seen(0.1, total=10), 3, 2)(None, None, 3 * 8, None) == 8


def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end():
    assert interquartile_mean(np.array([100.0, 1, 2, 3, 4, 5, 6, -100])) == 3.5
    assert interquartile_mean(np.array([1.0, 2, 6])) == 3.0
    assert interquartile_mean(np.array([[9.0, 0], [1, 0], [2, 0], [-9, 0]])).tolist() == [1.5, 0.0]


def test_other_networks_act_for_one_run_at_a_time():
    image = gym.spaces.Box(0, 255, (36, 36, 3), np.uint8)
    with Run("ppo", lambda: World(ACTIONS[0], image), engine="torch", network=Conv(((4, 8, 4),))) as run:
        assert reason_apart(run) == "NumPy cannot act with its networks"


def test_an_agent_that_treats_a_batch_as_a_whole_acts_for_one_run_at_a_time():
    from etude.algorithms.ppo import PPO, PPOConfig

    class Centred(PPO):
        def act(self, observation):
            return self.policy(self.model, observation, {"x": observation["x"] * 0 + observation["x"].mean(0)})

    class Picky(PPO):
        def act(self, observation):
            if self.model["policy"].variables["dense0.weight"].ndim != 2:
                raise RuntimeError("one matrix")
            return super().act(observation)

    for kind, message in ((Centred, "as a whole"), (Picky, "no stacked weights")):
        agent = kind(PPOConfig(network=Mlp((4,)), normalize_observation=False))
        with Run(agent, lambda: World(ACTIONS[0], gym.spaces.Dict({"x": OBSERVATION["x"]})), engine="torch") as run:
            assert message in (reason_apart(run) or "")


def test_runs_stepped_together_in_pieces_that_end_within_a_time_step_learn_what_each_learns_alone():
    config = PPOConfig(network=Mlp((4,)), rollout_length=8, minibatch_size=16, epochs=1)

    def made(seed):
        return Run("ppo", "CartPole-v1", config=config, environments=4, engine="torch", seed=seed)

    group = RunGroup([made(1), made(2)])
    for end in (38, 45, 192):
        list(group.steps_until(end, total=192))
        assert group.apart is None and [run.step for run in group.runs] == [end, end]
    for seed, run in zip((1, 2), group.runs, strict=True):
        with made(seed) as alone:
            alone.train(192)
            for name, value in alone.engine.weights().items():
                np.testing.assert_array_equal(run.engine.weights()[name], value, name)
    group.close()
