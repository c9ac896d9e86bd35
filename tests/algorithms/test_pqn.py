"""What PQN learns from, beside a slow program."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

import etude
from etude import Mlp
from etude.algorithms import PQN, PQNConfig
from etude.engines.numpy import NumpyEngine

GAMMA, LAMBDA, STEPS = 0.9, 0.8, 7


class Ends(gym.Env):
    """Every third step ends an episode: the first is terminated, the second truncated. Observations count all steps."""

    observation_space = gym.spaces.Dict(
        observation=gym.spaces.Box(-99, 99, (2,)), action_mask=gym.spaces.MultiBinary(3)
    )
    action_space = gym.spaces.Discrete(3)
    clock = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.seen(), {}

    def step(self, action):
        assert self.seen()["action_mask"][action]
        self.clock, self.time = self.clock + 1, self.time + 1
        last = self.time == 3
        return self.seen(), float(action + self.clock), last and self.clock == 3, last and self.clock == 6, {}

    def seen(self):
        mask = np.array([self.time != 1, 1, self.time != 2], np.int8)
        return {"observation": np.float32([self.clock, self.time]), "action_mask": mask}


class Watched(PQN):
    """Keeps the batch and the loss."""

    def loss(self, batch, noise):
        self.kept.append((batch, super().loss(batch, noise)["q"]))
        return etude.Losses(q=self.kept[-1][1])


def slow_return(t, reward, value_after):
    """The mean of all n-step returns from step t to the end of its episode, or of the rollout: Sutton & Barto 2018,
    equation 12.3. value_after: of the best action in what follows each step, 0 after the one that terminated."""
    last = next(s for s in range(t, STEPS) if s in (2, 5, STEPS - 1))
    weights, returns = [], []
    for n in range(1, last - t + 2):
        rewards = sum(GAMMA**i * reward[t + i] for i in range(n))
        returns.append(rewards + GAMMA**n * value_after[t + n - 1])
        weights.append(LAMBDA ** (n - 1) * (1.0 if t + n - 1 == last else 1 - LAMBDA))
    return np.dot(weights, returns)


def test_targets_and_loss_of_a_rollout_with_ends_and_masks_are_those_of_a_slow_program():
    network = Mlp((4,), layer_norm=True)
    config = PQNConfig(network, gamma=GAMMA, gae_lambda=LAMBDA, rollout_length=STEPS, minibatch_size=None, epochs=1)
    agent = Watched(config)
    agent.kept = []
    with etude.Run(agent, Ends, environments=1, engine="torch", seed=1) as run:
        before = NumpyEngine(run.agent, run.engine.spaces)
        before.load(run.engine.weights())
        run.train(STEPS)
    [(batch, loss)] = agent.kept
    order = np.argsort(batch.observation["observation"][:, 0].numpy())
    action, target = batch.action.numpy()[order], batch.extras["return"].numpy()[order]

    def q(clock, time):
        mask = np.array([[time != 1, 1, time != 2]], np.int8)
        return before.act({"observation": np.float32([[clock, time]]), "action_mask": mask})

    after = [np.where(x.allowed, x.values, -np.inf).max() for x in (q(t + 1, t % 3 + 1) for t in range(STEPS))]
    after[2] = 0.0  # after[5], of the truncated episode, counts
    expected = [slow_return(t, action + np.arange(STEPS) + 1.0, after) for t in range(STEPS)]
    np.testing.assert_allclose(target, expected, rtol=1e-5)
    errors = expected - np.array([q(t, t % 3).values[0, a] for t, a in enumerate(action)])
    np.testing.assert_allclose(loss.value.item(), np.mean(errors**2) / 2, rtol=1e-5)


def test_it_explores_by_values_and_stores_no_log_probabilities():
    explored = etude.Execution(explorer=etude.explore.Boltzmann(0.5))
    agent = Watched(PQNConfig(Mlp((4,)), rollout_length=8, minibatch_size=None, epochs=1))
    agent.kept = []
    with etude.Run(agent, "CartPole-v1", execution=explored, engine="torch", environments=2) as run:
        run.train(16)
    assert set(agent.kept[0][0].extras) == {"advantage", "value", "return"}
