"""Adversarial inverse reinforcement learning in PyTorch, on top of PPO.

Fu et al. 2018, arXiv:1710.11248: the discriminator has the form D = exp(f) / (exp(f) + pi(a | s)) with
f = g(s, a) + gamma h(s') - h(s), and the reward is log D - log(1 - D) = f - log pi(a | s). Where an episode terminated
h(s') counts as 0. Deviations: g sees the action, too (equation 4; the paper's portable rewards take g(s)), and the
policy is trained by PPO, not by TRPO.

    agent = AIRL(4, 64, 2, 0.2, 0.01, Expert.of(read("experts.etude")))
    agent.set(policy=SoftmaxPolicy(), pool_size=10_000, batch=64, update_steps=1_000, PPO=True, IRL=True)
    agent.train([torch.optim.Adam(param, 1e-3) for param in agent.param], episodes=200)
"""

from __future__ import annotations

from typing import Any

import torch

from etude.examples.experts import Expert
from etude.examples.torch_agents import gail, ppo


class AIRL(gail.GAIL):
    """GAIL with another discriminator: `discriminator` is g, `shaping` is h, and the policy is part of it.

    Arguments: see `gail.GAIL`.
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
        super().__init__(state_dim, hidden_size, action_dim, clip, entropy, expert, processes, env, gamma)
        self.shaping = ppo.network(state_dim, hidden_size, 1)
        self.param[2].extend(self.shaping.parameters())

    def reward_model(self, inputs, a, next_s, d):
        return self.logit(inputs, a, next_s, d)

    def logit(self, s, a, next_s, d):
        f = super().logit(s, a, next_s, d) + self.gamma * (1 - d) * self.shaping(next_s)[:, 0] - self.shaping(s)[:, 0]
        with torch.no_grad():
            chosen = self.old_actor(s).gather(1, a[:, None])[:, 0]
        return f - torch.log(chosen + ppo.TINY)
