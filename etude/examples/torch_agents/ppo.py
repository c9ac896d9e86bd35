"""PPO in PyTorch, with advantages of one or a few steps.

Schulman et al. 2017, arXiv:1707.06347.

    agent = PPO(4, 128, 2, 0.2, 0.01)
    agent.set(policy=SoftmaxPolicy(), pool_size=10_000, batch=64, update_steps=1_000, PPO=True)
    agent.train([torch.optim.Adam(agent.param[0], 1e-4), torch.optim.Adam(agent.param[1], 5e-3)], episodes=200)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import etude
from etude.examples.torch_agents.dqn import network

TINY = 1e-8  # keeps logarithms and quotients of probabilities finite


class PPO(etude.RL_pytorch):
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
        self.actor: nn.Sequential = nn.Sequential(*network(state_dim, hidden_size, action_dim), nn.Softmax(-1))
        self.old_actor: nn.Sequential = nn.Sequential(*network(state_dim, hidden_size, action_dim), nn.Softmax(-1))
        self.critic: nn.Sequential = network(state_dim, hidden_size, 1)
        self.update_param()
        self.param = [self.actor.parameters(), self.critic.parameters()]
        self.env: Any = [env] * (processes or 1)
        self.clip, self.entropy, self.gamma = clip, entropy, gamma

    def action(self, s: Tensor) -> Any:
        return self.old_actor(s)

    def __call__(self, s: Tensor, a: Tensor, next_s: Tensor, r: Tensor, d: Tensor) -> tuple[Tensor, ...]:
        td_error, policy_loss, _ = self.terms(s, a, next_s, r, d)
        return policy_loss, td_error**2

    def terms(self, s: Tensor, a: Tensor, next_s: Tensor, r: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The temporal difference, the loss of the policy and the ratio of probabilities, each [B]."""
        with torch.no_grad():
            target = r + self.gamma * (1 - d) * self.critic(next_s)[:, 0]
            old = self.old_actor(s).gather(1, a[:, None])[:, 0]
        td_error = target - self.critic(s)[:, 0]
        advantage = td_error.detach()
        probabilities = self.actor(s)
        ratio = probabilities.gather(1, a[:, None])[:, 0] / (old + TINY)
        clipped = ratio.clip(1 - self.clip, 1 + self.clip)
        entropy = -(probabilities * torch.log(probabilities + TINY)).sum(1)
        policy_loss = -torch.minimum(ratio * advantage, clipped * advantage) - self.entropy * entropy
        return td_error, policy_loss, ratio

    def update_param(self) -> None:
        self.old_actor.load_state_dict(self.actor.state_dict())
