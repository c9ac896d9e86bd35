"""Ape-X: an epsilon or noise for each environment, and initial priorities that actors compute."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from run_makers import using
from several_worlds import Coming, Counting, Meeting

import etude
from etude import Linear, Mlp, Run
from etude.algorithms import DQN, ApexDDPGConfig, ApexDQNConfig, DQNConfig, SACConfig
from etude.base.data import PolicyVersion, Steps
from etude.base.errors import ConfigError
from etude.base.spaces import Box, Discrete, Spaces
from etude.engines.numpy import NumpyEngine
from etude.explore import EpsilonGreedy, PerActorEpsilonGreedy, PerActorGaussianNoise
from etude.training.kinds.off_policy import PrioritisingActor, transitions

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
    [("apex_dqn", "CartPole-v1", APEX, values_of_dqn), ("apex_ddpg", "Pendulum-v1", APEX_DDPG, values_of_ddpg)],
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
    agent = Scaled(ScaledConfig(network=Mlp((4,))))
    actor = PrioritisingActor(agent, spaces, transitions(agent.config))
    never, reward = np.zeros((3, 1), bool), np.ones((3, 1), np.float32)
    steps = Steps(
        np.ones((3, 1, 2), np.float32), never.astype(np.int64), reward, never, never, np.ones((1, 2), np.float32),
        np.zeros((0, 2), np.float32), np.zeros((0, 2), np.int64), np.arange(1), np.zeros(1, bool),
    )  # fmt: skip
    first = actor.errors(steps)
    actor.load({}, PolicyVersion(7, {"scale": 3.0}))
    np.testing.assert_allclose(actor.errors(steps), 3 * first, rtol=1e-6)


@pytest.mark.parametrize(("world", "workers"), [(Meeting, 1), (Counting, 0), (Coming, 0)])
def test_actors_of_several_agents_send_the_errors_that_the_learner_finds(world, workers):
    config = dataclasses.replace(APEX, n_step=2, gradient_steps=4)
    with Run("apex_dqn", world, config=config, engine="torch", environments=4, seed=1, workers=workers) as run:
        run.train(32)
        buffer, actor = run.learner.replay, run.engine
        rows = buffer.ring.oldest(buffer.ring.filled)
        sent = buffer.selector.error[rows]
        batch = buffer.view(buffer.ring, rows, np.ones(len(rows), np.float32))
        alone = PrioritisingActor(run.agent, run.engine.spaces, buffer.view)
        alone.load(actor.weights())
        expected = np.abs(alone._engine.td_error(batch, alone._hyper))
        assert np.isclose(sent, expected, atol=1e-5).mean() > 0.5
        run.train(200)
        assert len(run.evaluate(episodes=1).returns) == 1


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
