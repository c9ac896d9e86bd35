"""Generative adversarial imitation learning in PyTorch, on top of PPO.

Ho & Ermon 2016, arXiv:1606.03476: a discriminator learns to tell the expert's steps from the policy's, and the policy
earns what makes it hard to tell. Here D is the probability that a step is the expert's (in the paper, the policy's),
and the reward is -log(1 - D): always above 0, so that it also rewards long episodes, whoever the expert is (Kostrikov
et al. 2019, arXiv:1809.02925). Deviation: the policy is trained by PPO, not by TRPO.

    agent = GAIL(4, 64, 2, 0.2, 0.01, Expert.of(read("experts.etude")))
    agent.set(SoftmaxPolicy(), pool_size=10_000, num_updates=40, update_steps=500, PPO=True, IRL=True)
    agent.train([torch.optim.Adam(param, rate) for param, rate in zip(agent.param, (1e-3, 5e-3, 1e-3))], episodes=200)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, softplus

from etude.examples.experts import Expert
from etude.examples.torch_agents import ppo
from etude.examples.torch_agents.dqn import network


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
        self.discriminator: nn.Sequential = network(state_dim + action_dim, hidden_size, 1)
        self.param = [*self.param, self.discriminator.parameters()]
        self.expert = expert
        self.action_dim = action_dim

    def action(self, s: Tensor) -> Any:
        return [s, super().action(s)]

    def reward_model(self, inputs: Tensor, a: Tensor, next_s: Tensor, d: Tensor) -> Tensor:
        return softplus(self.logit(inputs, a, next_s, d))

    def __call__(self, s: Tensor, a: Tensor, next_s: Tensor, r: Tensor, d: Tensor) -> tuple[Tensor, ...]:
        return *super().__call__(s, a, next_s, r, d), self.discriminator_loss(s, a, next_s, d)

    def logit(self, s: Tensor, a: Tensor, next_s: Tensor, d: Tensor) -> Tensor:
        """log D - log(1 - D) of each step [B]."""
        return self.discriminator(torch.cat([s, one_hot(a, self.action_dim)], dim=1))[:, 0]

    def discriminator_loss(self, s: Tensor, a: Tensor, next_s: Tensor, d: Tensor) -> Tensor:
        """-log D of as many steps of the expert, and -log(1 - D) of these: [B]."""
        return softplus(-self.logit(*self.drawn(d))) + softplus(self.logit(s, a, next_s, d))

    def drawn(self, d: Tensor) -> list[Tensor]:
        """(s, a, next_s, d) of random steps of the expert, as many as in d [B]."""
        rows = torch.randint(len(self.expert), d.shape, device=d.device)
        held = (self.expert.s, self.expert.a, self.expert.next_s, self.expert.d)
        return [torch.as_tensor(x, device=d.device)[rows] for x in held]
