"""What runs explore with: explorers that were given, correlated and state-dependent noise, noise in the layers."""

from __future__ import annotations

import copy
import dataclasses

import gymnasium as gym
import numpy as np
import pytest
from run_makers import DQN_TINY, assert_same_weights, pair, tiny, using
from several_worlds import Meeting

import etude
from etude import Conv, Linear, Mlp, Run
from etude.algorithms import DQN, A2CConfig, A3CConfig, DiscreteSACConfig, DQNConfig, IMPALAConfig, PPOConfig, SACConfig
from etude.base.errors import ConfigError
from etude.base.events import Collected
from etude.explore import (
    Boltzmann,
    BoltzmannQPolicy,
    CorrelatedSample,
    Each,
    EpsilonGreedy,
    GaussianNoise,
    Greedy,
    Sample,
    StateDependentSample,
)
from etude.multi_agent import Alternate
from etude.run import from_state
from etude.training.description import Execution

NOISY = dataclasses.replace(DQN_TINY, network=Mlp((4,), noisy=0.5), epsilon=0.0)


# -- explorers that are given ------------------------------------------------------------------------------------------


def test_an_explorer_that_is_given_explores_over_the_whole_run_and_is_gone_on_with(tmp_path):
    given = Boltzmann(Linear(1.0, 0.1))
    with tiny(explorer=given) as run:
        run.train(60)
        assert using(run) == Boltzmann(Linear(1.0, 0.1), total=60)
        run.save(tmp_path / "run.etude")
        run.train(60)
        expected = run.engine.weights()
    with etude.load(tmp_path / "run.etude", env=run.environment) as again:
        assert again.explorer == given
        again.train(60)
        assert using(again) == Boltzmann(Linear(1.0, 0.1), total=120)
        assert all(np.array_equal(value, again.engine.weights()[name]) for name, value in expected.items())
    with etude.load(tmp_path / "run.etude", env=run.environment, explorer=EpsilonGreedy(0.5)) as other:
        other.train(8)
        assert using(other) == EpsilonGreedy(0.5, total=68)


def test_one_explorer_for_each_environment_is_stored_as_data(tmp_path):
    with tiny(explorer=Each([EpsilonGreedy(0.1), EpsilonGreedy(Linear(1.0, 0.0))])) as run:
        run.train(16)
        run.save(tmp_path / "run.etude")
    with etude.load(tmp_path / "run.etude", env=run.environment) as again:
        assert again.explorer == run.explorer


def test_an_explorer_of_ones_own_is_given_again(tmp_path):
    with tiny(explorer=BoltzmannQPolicy(tau=0.5)) as run:
        run.train(16)
        run.save(tmp_path / "run.etude")
    with pytest.raises(ConfigError, match=r"explores with BoltzmannQPolicy\(.*give it again, as explorer="):
        etude.load(tmp_path / "run.etude", env=run.environment)
    with etude.load(tmp_path / "run.etude", env=run.environment, explorer=BoltzmannQPolicy(tau=0.5)) as again:
        again.train(16)


@pytest.mark.parametrize(
    ("algorithm", "config", "env", "explorer", "message"),
    [
        (
            "dqn",
            DQNConfig(),
            "CartPole-v1",
            GaussianNoise(0.1),
            "Give Boltzmann or BoltzmannGumbel or EpsilonGreedy or",
        ),
        ("dqn", DQNConfig(), "CartPole-v1", Each([Sample()]), "Sample.* does not suit DQN, which acts by values"),
        ("sac", SACConfig(), "Pendulum-v1", EpsilonGreedy(0.1), "Give GaussianNoise or Greedy or Sample"),
        ("ppo", PPOConfig(), "CartPole-v1", Greedy(), "learns from advantages. Give Sample, or leave it out"),
        ("ppo", PPOConfig(), "CartPole-v1", Sample(log_prob=False), "keeps no log probabilities"),
        ("dqn", DQNConfig(), "CartPole-v1", Boltzmann, "Boltzmann is a class; make one"),
        ("discrete_sac", DiscreteSACConfig(), "CartPole-v1", CorrelatedSample(0.5, 1), "Give Greedy or Sample, or"),
        (
            "ppo",
            PPOConfig(),
            "Pendulum-v1",
            StateDependentSample(64, 1),
            "learns from advantages. Give Sample, or leave",
        ),
        ("impala", IMPALAConfig(), "CartPole-v1", Greedy(), "learns from unrolls. Give Sample, or leave it out"),
    ],
)
def test_an_explorer_that_does_not_suit_the_agent_is_refused_with_those_that_do(
    algorithm, config, env, explorer, message
):
    with pytest.raises(ConfigError, match=message):
        Run(algorithm, env, config=config, engine="torch", execution=Execution(explorer=explorer))


# -- samples that are alike from step to step --------------------------------------------------------------------------


@pytest.mark.parametrize("explorer", ["epsilon", lambda values: values.argmax(-1)])
def test_what_is_no_explorer_is_refused_where_the_run_is_made(explorer):
    with pytest.raises(ConfigError, match="expected one of etude.explore, such as"):
        Run("dqn", "CartPole-v1", engine="torch", execution=Execution(explorer=explorer))


def test_correlated_samples_go_on_within_an_episode_after_a_stop(tmp_path):
    def made():
        config = SACConfig(network=Mlp((8,)), learning_starts=16, batch_size=8, exploration_correlation=0.9)
        return Run("sac", "Pendulum-v1", config=config, environments=2, engine="torch", seed=3)

    with made() as run:
        run.train(40)
        assert using(run) == CorrelatedSample(0.9, 1)
        run.save(tmp_path / "run.etude")
        run.train(40)
        expected = run.engine.weights()
    with etude.load(tmp_path / "run.etude") as again:
        again.train(40)
        found = again.engine.weights()
    assert all(np.array_equal(value, found[name]) for name, value in expected.items())


# -- noise as a function of the state ----------------------------------------------------------------------------------


def gsde_run(algorithm, config, env="Pendulum-v1", **more):
    return Run(algorithm, env, config=config, **{"environments": 2, "engine": "torch", "seed": 3, **more})


@pytest.mark.parametrize(
    ("algorithm", "config", "explorer"),
    [
        ("sac", SACConfig(network=Mlp((8,)), gsde=True), StateDependentSample(8, 1, None, log_prob=False)),
        ("ppo", PPOConfig(network=Mlp((4, 6)), gsde=True, gsde_sample_every=5), StateDependentSample(6, 1, 5)),
        ("a2c", A2CConfig(network=Mlp((8,)), gsde=True), StateDependentSample(8, 1)),
        ("a3c", A3CConfig(network=Mlp((8,)), gsde=True), StateDependentSample(8, 1)),
        ("sac", SACConfig(network=Mlp((8,))), Sample(log_prob=False)),
        ("ppo", PPOConfig(network=Mlp((8,))), Sample()),
    ],
)
def test_the_config_says_whether_noise_depends_on_the_state(algorithm, config, explorer):
    with gsde_run(algorithm, config) as run:
        run.train(20)
        assert using(run) == explorer


def test_the_explorer_of_state_dependent_noise_may_be_given_and_is_kept(tmp_path):
    given = StateDependentSample(8, 1, 3)
    with gsde_run("ppo", PPOConfig(network=Mlp((8,)), gsde=True, rollout_length=8), explorer=given) as run:
        run.train(16)
        run.save(tmp_path / "run.etude")
    with etude.load(tmp_path / "run.etude") as again:
        again.train(16)
        assert using(again) == given


@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_noise_as_a_function_of_the_state_is_refused_for_actions_that_are_not_box(algorithm):
    with pytest.raises(ConfigError, match=r"gsde = True adds noise to Box actions; this environment has Discrete\(2\)"):
        gsde_run(algorithm, etude.algorithms.find(algorithm)[1](gsde=True), "CartPole-v1")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"network": Mlp(())}, r"Give the actor a spec with hidden layers"),
        ({"network": lambda: None}, r"Give the actor a spec with hidden layers"),
        ({"gsde_sample_every": 0}, r"gsde_sample_every = 0; expected a whole number of at least 1"),
        ({"exploration_correlation": 0.5}, r"gsde = True and exploration_correlation = 0.5; .*Leave one of them off"),
    ],
)
def test_configs_refuse_noise_as_a_function_of_the_state_where_it_cannot_be(changed, message):
    with pytest.raises(ConfigError, match=message):
        SACConfig(**{"gsde": True, **changed})


def test_evaluation_and_single_actions_do_without_the_noise_unless_asked_to_explore():
    with gsde_run("sac", SACConfig(network=Mlp((8,)), gsde=True)) as run:
        seen = np.array([1.0, 0.0, 0.0], np.float32)
        best = run.act(seen)
        explored = [run.act(seen, explore=True, first=t == 0) for t in range(3)]
        np.testing.assert_array_equal(run.act(seen), best)
        assert not np.array_equal(explored[0], best)
        np.testing.assert_array_equal(explored[0], explored[2])


# -- noise in the layers -----------------------------------------------------------------------------------------------


def noise_of(weights):
    return {name: value for name, value in weights.items() if ".noise_" in name}


def test_noise_is_fixed_between_learning_phases_and_evaluation_has_none():
    with tiny(config=NOISY) as run:
        drawn = {}  # by the gradient steps so far
        for event in run.steps(64):
            if event.step == 0:
                continue
            acting = noise_of(run.collection.rollout._collector.actor.weights())
            noise = np.concatenate([acting[f"q.dense{i}.noise_{end}"] for i in (0, 1) for end in ("in", "out")])
            assert noise.all()
            drawn.setdefault(run.learner.progress.gradient_steps, []).append(tuple(noise.tolist()))
        assert len(drawn) == 8  # seven learning phases
        assert [len(set(noise)) for noise in drawn.values()] == [1] * 8
        assert len({noise[0] for noise in drawn.values()}) == 8
        assert not any(value.any() for value in noise_of(run.actor().weights()).values())
        assert not any(value.any() for value in noise_of(run.engine.weights()).values())


class Still(gym.Env):
    """Always the same state."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.full(3, 0.5, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.full(3, 0.5, np.float32), 0.0, False, self.time == 50, {}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("environments", "pieces"), [(1, (400,)), (4, (400,)), (1, (130, 7, 263)), (4, (132, 8, 260))])
def test_noise_is_drawn_before_learning_starts_whenever_a_phase_would_be_due(environments, pieces, workers):
    if workers and environments == 1:
        pytest.skip("one environment has one worker at most")
    config = dataclasses.replace(NOISY, network=Mlp((4,), noisy=5.0), learning_starts=400, train_every=20)
    with tiny(Still, config=config, environments=environments, workers=workers) as run:
        actions: list[int] = []

        def note(event):
            if isinstance(event, Collected):
                actions.extend(action for part in event.steps for action in part.action.ravel().tolist())

        for steps in pieces:
            run.train(steps - 20 * (steps == pieces[-1]), callbacks=note)
        assert run.learner.progress.gradient_steps == 0
        phases = np.array(actions).reshape(19, 20)
        assert all(len(set(phase)) == 1 for phase in phases.tolist()), "one policy from phase to phase"
        assert set(actions) == {0, 1, 2}
        state = copy.deepcopy(run.state())
        run.train(60)
        expected = run.engine.weights()
    with from_state(state, Still, workers=0) as again:
        again.train(60)
        assert_same_weights(again.engine.weights(), expected)


def test_each_of_several_policies_draws_noise_before_it_learns_and_while_others_learn():
    noisy = DQN(dataclasses.replace(NOISY, learning_starts=200, train_every=20))
    with pair({"ann": noisy, "bob": noisy}, Meeting, train_only=Alternate(every=100)) as run:
        seen = {"ann": set(), "bob": set()}
        for event in run.steps(200):
            if event.step:
                acting = noise_of(run.collection.rollout._collector.actor.weights())
                for policy, drawn in seen.items():
                    drawn.add(tuple(np.concatenate([x for n, x in acting.items() if n.startswith(policy)]).tolist()))
    assert {policy: len(drawn) for policy, drawn in seen.items()} == {"ann": 10, "bob": 10}


class Picture(gym.Env):
    """Images that change with time; the reward is the action."""

    observation_space = gym.spaces.Box(0, 255, (6, 6, 1), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._picture(), {}

    def step(self, action):
        self.time += 1
        return self._picture(), float(action), False, self.time == 9, {}

    def _picture(self):
        return np.full((6, 6, 1), 25 * self.time, np.uint8)


def test_where_the_engine_acts_rollouts_have_noise_and_evaluation_has_none(tmp_path):
    config = dataclasses.replace(NOISY, network=Conv(((2, 3, 2),), (4,), noisy=2.0))
    actions = []
    for workers in (0, 2):
        with tiny(Picture, config=config, workers=workers) as run:
            observation = np.zeros((2, 6, 6, 1), np.uint8)
            run.train(40)
            still = run.engine.act(observation)
            run.save(tmp_path / f"{workers}.etude")
            rollout = run.collection.rollout
            actor = rollout._collector.actor if workers == 0 else rollout._actor
            assert not np.allclose(actor.act(observation), still)
            np.testing.assert_array_equal(run.engine.act(observation), still)
            np.testing.assert_array_equal(run.actor().act(observation), still)
            run.train(40)
            ring = run.learner.replay.ring
            actions.append((ring.action[:80], run.engine.weights()))
        with etude.load(tmp_path / f"{workers}.etude", env=Picture) as again:
            again.train(40)
            actions.append((again.learner.replay.ring.action[:80], again.engine.weights()))
    for action, weights in actions[1:]:
        np.testing.assert_array_equal(action, actions[0][0])
        assert all(np.array_equal(value, weights[name]) for name, value in actions[0][1].items())
