"""DDPG with hindsight experience replay, in Keras, on TensorFlow or JAX.

Lillicrap et al. 2016, arXiv:1509.02971; Andrychowicz et al. 2017, arXiv:1707.01495.

    agent = DDPG(128, 0.1, 0.98, 0.005)
    agent.set(noise=GaussianWhiteNoiseProcess(), pool_size=10_000, batch=256, HER=True)
    agent.train(None, [keras.optimizers.Adam(), keras.optimizers.Adam()], episodes=2_000)
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

import etude
from etude.examples.point import PointWorld
from etude.solo import assign_param


class DDPG(etude.RL):
    """An actor that reaches points of the plane, and a critic of what it does.

    sigma: the standard deviation of the noise on the action that the target values, which smooths the critic (Fujimoto
    et al. 2018, arXiv:1802.09477). tau: how fast the target networks follow, for each minibatch. effort: the weight of
    squared actions in the actor's loss; without it the actor saturates before the critic knows anything, and stays
    where it is for ever (Andrychowicz et al. 2017, appendix A, for the same reason square what goes into tanh).
    """

    def __init__(
        self,
        hidden_size: int,
        sigma: float,
        gamma: float,
        tau: float,
        processes: int | None = None,
        env: Any = PointWorld,
        effort: float = 0.1,
    ):
        super().__init__()
        self.actor: keras.Sequential = network(4, hidden_size, 2, "tanh")
        self.target_actor: keras.Sequential = network(4, hidden_size, 2, "tanh")
        self.critic: keras.Sequential = network(6, hidden_size, 1)
        self.target_critic: keras.Sequential = network(6, hidden_size, 1)
        assign_param(self.target_actor.weights, self.actor.weights)
        assign_param(self.target_critic.weights, self.critic.weights)
        self.param = [self.actor.trainable_variables, self.critic.trainable_variables]
        self.env: Any = [env] * (processes or 1)
        self.sigma, self.gamma, self.tau, self.effort = sigma, gamma, tau, effort
        self.noise: Any = keras.random.SeedGenerator(0)

    def action(self, s: Any) -> Any:
        return self.actor(s)

    def __call__(self, s: Any, a: Any, next_s: Any, r: Any, d: Any) -> Any:
        smooth = self.sigma * keras.random.normal(ops.shape(a), seed=self.noise)
        next_a = ops.clip(self.target_actor(next_s) + smooth, -1.0, 1.0)
        next_q = self.value(self.target_critic, next_s, next_a)
        target = ops.clip(r + self.gamma * (1 - d) * next_q, -1 / (1 - self.gamma), 0.0)  # every reward is -1 or 0
        td_error = ops.stop_gradient(target) - self.value(self.critic, s, a)
        best = self.actor(s)
        return self.effort * ops.sum(best**2, axis=1) - self.value(self.critic, s, best), td_error**2

    def value(self, critic: keras.Model, s: Any, a: Any) -> Any:
        """What the critic expects of actions [B, 2] in states [B, 4]: [B]."""
        return critic(ops.concatenate([s, a], axis=1))[:, 0]

    def update_param(self) -> None:
        assign_param(self.target_actor.weights, self.actor.weights, self.tau)
        assign_param(self.target_critic.weights, self.critic.weights, self.tau)

    def reward_done_func(self, reached: np.ndarray, goal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What a step earns that led to the points `reached` [..., 2], were these the goals."""
        done = np.linalg.norm(reached - goal, axis=-1) < PointWorld.tolerance
        return np.where(done, 0.0, -1.0), done


def network(inputs: int, hidden_size: int, outputs: int, activation: str | None = None) -> keras.Sequential:
    """Two hidden layers."""
    return keras.Sequential(
        [
            keras.Input((inputs,)),
            keras.layers.Dense(hidden_size, activation="relu"),
            keras.layers.Dense(hidden_size, activation="relu"),
            keras.layers.Dense(outputs, activation=activation),
        ]
    )
