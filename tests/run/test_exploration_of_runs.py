"""What runs explore with: explorers that were given, noise in the layers, and epsilons and priorities of Ape-X."""

from __future__ import annotations

import dataclasses

import gymnasium as gym
import numpy as np
import pytest
from run_makers import DQN_TINY, tiny

import etude
from etude import Conv, Linear, Mlp, Run
from etude.algorithms import (
    DQN,
    A2CConfig,
    A3CConfig,
    ApexDDPGConfig,
    ApexDQNConfig,
    DiscreteSACConfig,
    DQNConfig,
    IMPALAConfig,
    PPOConfig,
    SACConfig,
)
from etude.base.data import PolicyVersion, Steps
from etude.base.errors import ConfigError
from etude.base.spaces import Box, Discrete, Spaces
from etude.engines.numpy import NumpyEngine
from etude.explore import (
    Boltzmann,
    BoltzmannQPolicy,
    CorrelatedSample,
    Each,
    EpsilonGreedy,
    GaussianNoise,
    Greedy,
    PerActorEpsilonGreedy,
    PerActorGaussianNoise,
    Sample,
    StateDependentSample,
)
from etude.training.kinds.actor_priorities import PrioritisingActor

NOISY = dataclasses.replace(DQN_TINY, network=Mlp((4,), noisy=0.5), epsilon=0.0)
APEX = ApexDQNConfig(
    network=Mlp((8,), dueling=True), learning_starts=64, train_every=32, batch_size=16, buffer_size=4_000, n_step=3
)
APEX_DDPG = ApexDDPGConfig(
    network=Mlp((8,)),
    learning_starts=64,
    train_every=32,
    batch_size=16,
    buffer_size=4_000,
    random_steps=20,
    learning_rate=1e-2,
)


def using(run):
    """The explorer of a run's rollout."""
    return run._lifecycle._explorer


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
        Run(algorithm, env, config=config, explorer=explorer, engine="torch")


# -- samples that are alike from step to step --------------------------------------------------------------------------


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
            acting = noise_of(run._lifecycle._rollout._collector.actor.weights())
            noise = np.concatenate([acting[f"q.dense{i}.noise_{end}"] for i in (0, 1) for end in ("in", "out")])
            assert noise.all()
            drawn.setdefault(run.learner.progress.gradient_steps, []).append(tuple(noise.tolist()))
        assert len(drawn) == 8  # seven learning phases
        assert [len(set(noise)) for noise in drawn.values()] == [1] * 8
        assert len({noise[0] for noise in drawn.values()}) == 8
        assert not any(value.any() for value in noise_of(run.actor().weights()).values())
        assert not any(value.any() for value in noise_of(run.engine.weights()).values())


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
            rollout = run._lifecycle._rollout
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


# -- Ape-X -------------------------------------------------------------------------------------------------------------


def test_each_environment_of_ape_x_has_an_epsilon_or_noise_of_its_own():
    with Run("apex_dqn", "CartPole-v1", config=APEX, engine="torch", environments=4) as run:
        run.train(32)
        assert using(run) == PerActorEpsilonGreedy(0.4, 7.0, 4, total=32)
    with Run("apex_ddpg", "Pendulum-v1", config=APEX_DDPG, engine="torch", environments=4) as run:
        run.train(32)
        assert using(run) == PerActorGaussianNoise(0.4, 7.0, 4, total=32, random_steps=20)
    with Run("dqn", "CartPole-v1", config=DQNConfig(epsilon=0.3), engine="torch", environments=4) as run:
        run.train(32)
        assert using(run) == EpsilonGreedy(0.3, total=32)


def values_of_dqn(agent, observation, action=None):
    """Of an action, or, by the target network, of the one that double DQN would take."""
    if action is None:
        return agent.q_target(observation)[0, agent.q(observation)[0].argmax()]
    return agent.q(observation)[0, action]


def values_of_ddpg(agent, observation, action=None):
    if action is None:
        return agent.critic_target((observation, np.tanh(agent.actor_target(observation))))[0, 0]
    return agent.critic((observation, action[None]))[0, 0]


def slow_error(value, agent, rows, t, n, gamma, horizon):
    """The error over up to `horizon` steps from row t of column n, or None if they are not all there."""
    reward, discount, k = 0.0, 1.0, 0
    while True:
        reward += discount * rows["reward"][t + k, n]
        discount *= gamma
        ended = rows["terminated"][t + k, n] or rows["truncated"][t + k, n]
        k += 1
        if ended or k == horizon:
            break
        if t + k == len(rows["reward"]):
            return None
    following = rows["final"][t + k - 1, n] if ended else rows["observation"][t + k, n]
    bootstrap = 0.0
    if not rows["terminated"][t + k - 1, n]:
        bootstrap = discount * value(agent, following[None])
    return reward + bootstrap - value(agent, rows["observation"][t, n][None], rows["action"][t, n])


def rows_of(steps):
    following = np.concatenate([steps.observation, steps.next_observation[None]])
    final = {tuple(place): end for place, end in zip(steps.final_index.tolist(), steps.final_observation, strict=True)}
    return {
        "observation": following, "action": steps.action, "reward": steps.reward, "terminated": steps.terminated,
        "truncated": steps.truncated, "final": final,
    }  # fmt: skip


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("algorithm", "env", "config", "value"),
    [
        ("apex_dqn", "CartPole-v1", APEX, values_of_dqn),
        ("apex_ddpg", "Pendulum-v1", APEX_DDPG, values_of_ddpg),
    ],
)
def test_new_rows_have_the_errors_that_their_workers_found_with_the_weights_that_they_had(
    algorithm, env, config, value, workers
):
    known = 0
    with Run(algorithm, env, config=config, engine="torch", environments=4, workers=workers) as run:
        collected, take = [], run.learner.take
        selector, ring = run.learner.replay.selector, run.learner.replay.ring
        run.learner.take = lambda steps: (collected.append((steps, run.engine.weights())), take(steps), look())

        def look():
            steps = collected[-1][0]
            times, n = steps.shape
            newest = (ring.head[0] - times + np.arange(times))[:, None] * n + np.arange(n)
            written.append((selector.error[newest].copy(), float(selector.largest[0])))

        written: list = []
        run.train(256)
    for (steps, weights), (errors, largest) in zip(collected, written, strict=True):
        actor = NumpyEngine(run.agent, run.engine.spaces)
        actor.load(weights)
        rows = rows_of(steps)
        for t, n in np.ndindex(*steps.shape):
            expected = slow_error(value, actor._bound, rows, t, n, config.gamma, config.n_step)
            if expected is None:
                assert np.isnan(steps.extras["priority"][t, n])
                assert errors[t, n] <= largest
            else:
                assert errors[t, n] == pytest.approx(abs(expected), rel=1e-3, abs=1e-5)
                known += 1
    assert known > 100


def test_workers_of_ape_x_collect_while_it_learns_and_go_on_from_a_checkpoint(tmp_path):
    settings = {"config": APEX, "engine": "torch", "environments": 4, "workers": 2, "overlap": True}
    with Run("apex_dqn", "CartPole-v1", **settings) as run:
        run.train(128)
        run.save(tmp_path / "run.etude")
        run.train(64)
    with etude.load(tmp_path / "run.etude") as again:
        again.train(64)
    mine, theirs = run.learner.replay.selector.error, again.learner.replay.selector.error
    np.testing.assert_array_equal(mine, theirs)


@dataclasses.dataclass(frozen=True)
class ScaledConfig(DQNConfig):
    scale: float | Linear = Linear(1.0, 3.0)


class Scaled(DQN):
    """Q-learning whose errors are measured in other units in the course of a run."""

    def loss(self, batch, noise):
        losses = super().loss(batch, noise)
        losses["q"].td_error = losses["q"].td_error * self.config.scale
        return losses


def test_actors_compute_priorities_with_the_hyperparameters_of_their_version():
    spaces = Spaces(Box(-1, 1, (2,), np.float32), Discrete(2))
    actor = PrioritisingActor(Scaled(ScaledConfig(network=Mlp((4,)))), spaces)
    never, reward = np.zeros((3, 1), bool), np.ones((3, 1), np.float32)
    steps = Steps(
        np.ones((3, 1, 2), np.float32), never.astype(np.int64), reward, never, never, np.ones((1, 2), np.float32),
        np.zeros((0, 2), np.float32), np.zeros((0, 2), np.int64), np.arange(1), np.zeros(1, bool),
    )  # fmt: skip
    first = actor.errors(steps)
    actor.load({}, PolicyVersion(7, {"scale": 3.0}))
    np.testing.assert_allclose(actor.errors(steps), 3 * first, rtol=1e-6)


def test_priorities_by_actors_need_priorities_and_rewards_as_they_are():
    with pytest.raises(ConfigError, match="priority_exponent = 0 draws all rows alike"):
        DQNConfig(actor_priorities=True)
    with pytest.raises(ConfigError, match="actors see rewards as the environment gives them"):
        DQNConfig(actor_priorities=True, priority_exponent=0.6, normalize_reward=True)
    with pytest.raises(ConfigError, match="exploration_noise = 1.5; expected a number from 0 to 1"):
        ApexDDPGConfig(exploration_noise=1.5)


def test_a_policy_that_is_sampled_alike_everywhere_refuses_a_ladder():
    with pytest.raises(ConfigError, match="exploration_exponent = 7.0, but SAC samples its policy"):
        Run("sac", "Pendulum-v1", config=SACConfig(exploration_exponent=7.0))
