"""Adversarial inverse reinforcement learning in Keras, on TensorFlow or JAX, on top of PPO.

Fu et al. 2018, arXiv:1710.11248: the discriminator has the form D = exp(f) / (exp(f) + pi(a | s)) with
f = g(s, a) + gamma h(s') - h(s), and the reward is log D - log(1 - D) = f - log pi(a | s).

Deviations: the policy is trained by PPO, not by TRPO; g sees the action, too (the paper's rewards that carry over to
other worlds take g(s)). These rewards are below 0 where the policy is told from the expert, so that ending an episode
would pay: as in Kostrikov et al. 2019, arXiv:1809.02925, a step that terminates (h(s') = 0) is followed by an absorbing
state for ever, whose logit is learned like any other. Labels are smoothed (Salimans et al. 2016, arXiv:1606.03498),
which bounds the logits.

    agent = AIRL(4, 64, 2, 0.2, 0.01, Expert.of(read("experts.etude")))
    agent.set(SoftmaxPolicy(), pool_size=10_000, num_updates=40, update_steps=500, PPO=True, IRL=True)
    agent.train(None, [keras.optimizers.Adam(rate) for rate in (1e-3, 5e-3, 1e-3)], episodes=400)
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from etude.examples.keras_agents import gail, ppo
from etude.examples.keras_agents.dqn import network

SMOOTHING = 0.2  # how much of a label goes to the other side


class AIRL(gail.GAIL):
    """GAIL with another discriminator: `discriminator` is g, `shaping` is h, and the policy is part of it.

    state_dim, hidden_size, others, named: see `gail.GAIL`; gamma is below 1.
    """

    def __init__(self, state_dim: int, hidden_size: int, *others: Any, **named: Any):
        super().__init__(state_dim, hidden_size, *others, **named)
        self.shaping: keras.Sequential = network(state_dim, hidden_size, 1)
        self.absorbing: keras.Variable = keras.Variable(0.0)
        learned = [*self.discriminator.trainable_variables, *self.shaping.trainable_variables, self.absorbing]
        self.param = [*self.param[:2], learned]

    def reward_model(self, inputs: Any, a: Any, next_s: Any, d: Any) -> Any:
        return self.logit(inputs, a, next_s, d) + d * self.gamma / (1 - self.gamma) * self.absorbing

    def logit(self, s: Any, a: Any, next_s: Any, d: Any) -> Any:
        f = super().logit(s, a, next_s, d) + self.gamma * (1 - d) * self.shaping(next_s)[:, 0] - self.shaping(s)[:, 0]
        chosen = ops.take_along_axis(ops.stop_gradient(self.old_actor(s)), a[:, None], axis=1)[:, 0]
        return f - ops.log(chosen + ppo.TINY)

    def discriminator_loss(self, s: Any, a: Any, next_s: Any, d: Any) -> Any:
        expert = self.drawn(d)
        steps = surprise(-self.logit(*expert)) + surprise(self.logit(s, a, next_s, d))
        return steps + expert[3] * surprise(-self.absorbing) + d * surprise(self.absorbing)


def surprise(logit: Any) -> Any:
    """-log(1 - D), with smoothed labels."""
    return ops.softplus(logit) - SMOOTHING * logit
