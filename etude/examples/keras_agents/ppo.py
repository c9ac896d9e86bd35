"""PPO in Keras, on TensorFlow or JAX, with advantages of one or a few steps.

Schulman et al. 2017, arXiv:1707.06347.

    agent = PPO(4, 128, 2, 0.2, 0.01)
    agent.set(policy=SoftmaxPolicy(), pool_size=10_000, batch=64, update_steps=1_000, PPO=True)
    agent.train(None, [keras.optimizers.Adam(1e-4), keras.optimizers.Adam(5e-3)], episodes=200)
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

import etude
from etude.examples.keras_agents.dqn import network
from etude.solo import assign_param

TINY = 1e-8  # keeps logarithms and quotients of probabilities finite


class PPO(etude.RL):
    """A policy over Discrete actions, and a critic; each has an optimizer of its own.

    clip: how far the probability of an action may move from that of the policy that chose it. entropy: the weight of
        the policy's entropy.
    """

    def __init__(
        self,
        state_dim: int,
        hidden_size: int,
        action_dim: int,
        clip: float,
        entropy: float,
        processes: int | None = None,
        env: Any = "CartPole-v1",
        gamma: float = 0.98,
    ):
        super().__init__()
        self.actor: keras.Sequential = network(state_dim, hidden_size, action_dim, "softmax")
        self.old_actor: keras.Sequential = network(state_dim, hidden_size, action_dim, "softmax")
        self.critic: Any = network(state_dim, hidden_size, 1)
        self.update_param()
        self.param = [self.actor.trainable_variables, self.critic.trainable_variables]
        self.env: Any = [env] * (processes or 1)
        self.clip, self.entropy, self.gamma = clip, entropy, gamma

    def action(self, s: Any) -> Any:
        return self.old_actor(s)

    def __call__(self, s: Any, a: Any, next_s: Any, r: Any, d: Any) -> Any:
        td_error, policy_loss, _ = self.terms(s, a, next_s, r, d)
        return policy_loss, td_error**2

    def terms(self, s: Any, a: Any, next_s: Any, r: Any, d: Any) -> tuple[Any, ...]:
        """The temporal difference, the loss of the policy and the ratio of probabilities, each [B]."""
        target = ops.stop_gradient(r + self.gamma * (1 - d) * self.critic(next_s)[:, 0])
        td_error = target - self.critic(s)[:, 0]
        advantage = ops.stop_gradient(td_error)
        probabilities = self.actor(s)
        chosen = ops.take_along_axis(probabilities, a[:, None], axis=1)[:, 0]
        ratio = chosen / (ops.take_along_axis(self.old_actor(s), a[:, None], axis=1)[:, 0] + TINY)
        clipped = ops.clip(ratio, 1 - self.clip, 1 + self.clip)
        entropy = -ops.sum(probabilities * ops.log(probabilities + TINY), axis=1)
        policy_loss = -ops.minimum(ratio * advantage, clipped * advantage) - self.entropy * entropy
        return td_error, policy_loss, ratio

    def update_param(self) -> None:
        assign_param(self.old_actor.weights, self.actor.weights)
