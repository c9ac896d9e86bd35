"""Generative adversarial imitation learning in Keras, on TensorFlow or JAX, on top of PPO.

Ho & Ermon 2016, arXiv:1606.03476: a discriminator learns to tell the expert's steps from the policy's, and the policy
earns what makes it hard to tell. Here D is the probability that a step is the expert's (in the paper, the policy's),
and the reward is -log(1 - D): always above 0, so that it also rewards long episodes, whoever the expert is (Kostrikov
et al. 2019, arXiv:1809.02925). Deviation: the policy is trained by PPO, not by TRPO.

    agent = GAIL(4, 64, 2, 0.2, 0.01, Expert.of(read("experts.etude")))
    agent.set(SoftmaxPolicy(), pool_size=10_000, num_updates=40, update_steps=500, PPO=True, IRL=True)
    agent.train(None, [keras.optimizers.Adam(rate) for rate in (1e-3, 5e-3, 1e-3)], episodes=200)
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from etude.examples.experts import Expert
from etude.examples.keras_agents import ppo
from etude.examples.keras_agents.dqn import network


class GAIL(ppo.PPO):
    """PPO for Discrete actions with a third network, the discriminator, which has an optimizer of its own.

    expert: the steps to imitate. The others: see `ppo.PPO`.
    """

    def __init__(
        self,
        state_dim: int,
        hidden_size: int,
        action_dim: int,
        clip: float,
        entropy: float,
        expert: Expert,
        processes: int | None = None,
        env: Any = "CartPole-v1",
        gamma: float = 0.98,
    ):
        super().__init__(state_dim, hidden_size, action_dim, clip, entropy, processes, env, gamma)
        self.discriminator: Any = network(state_dim + action_dim, hidden_size, 1)
        self.param = [*self.param, self.discriminator.trainable_variables]
        self.expert = expert
        self.action_dim = action_dim
        self.draws: Any = keras.random.SeedGenerator(0)

    def action(self, s: Any) -> Any:
        return [s, super().action(s)]

    def reward_model(self, inputs: Any, a: Any, next_s: Any, d: Any) -> Any:
        return ops.softplus(self.logit(inputs, a, next_s, d))

    def __call__(self, s: Any, a: Any, next_s: Any, r: Any, d: Any) -> Any:
        return *super().__call__(s, a, next_s, r, d), self.discriminator_loss(s, a, next_s, d)

    def logit(self, s: Any, a: Any, next_s: Any, d: Any) -> Any:
        """log D - log(1 - D) of each step [B]."""
        return self.discriminator(ops.concatenate([s, ops.one_hot(a, self.action_dim)], axis=1))[:, 0]

    def discriminator_loss(self, s: Any, a: Any, next_s: Any, d: Any) -> Any:
        """-log D of as many steps of the expert, and -log(1 - D) of these: [B]."""
        return ops.softplus(-self.logit(*self.drawn(d))) + ops.softplus(self.logit(s, a, next_s, d))

    def drawn(self, d: Any) -> list[Any]:
        """(s, a, next_s, d) of random steps of the expert, as many as in d [B]."""
        rows = keras.random.randint(d.shape, 0, len(self.expert), seed=self.draws)
        held = (self.expert.s, self.expert.a, self.expert.next_s, self.expert.d)
        return [ops.take(ops.convert_to_tensor(x), rows, axis=0) for x in held]
