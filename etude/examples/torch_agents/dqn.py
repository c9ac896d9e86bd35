"""DQN in PyTorch.

Mnih et al. 2015, doi:10.1038/nature14236.

    agent = DQN(4, 128, 2)
    agent.set(policy=EpsGreedyQPolicy(0.01), pool_size=10_000, batch=64, update_steps=10)
    agent.train(torch.optim.Adam(agent.param), episodes=200)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import etude


class DQN(etude.RL_pytorch):
    """Values of every action, for environments with flat observations and Discrete actions.

    processes: for as many worker processes; they are asked for again in `train`.
    """

    def __init__(
        self,
        state_dim: int,
        hidden_size: int,
        action_dim: int,
        processes: int | None = None,
        env: Any = "CartPole-v1",
        gamma: float = 0.98,
    ):
        super().__init__()
        self.q: nn.Sequential = network(state_dim, hidden_size, action_dim)
        self.target: nn.Sequential = network(state_dim, hidden_size, action_dim)
        self.update_param()
        self.param = self.q.parameters()
        self.env: Any = [env] * (processes or 1)
        self.gamma = gamma

    def action(self, s: Tensor) -> Tensor:
        return self.q(s)

    def __call__(self, s: Tensor, a: Tensor, next_s: Tensor, r: Tensor, d: Tensor) -> Tensor:
        return self.td_error(s, a, next_s, r, d) ** 2

    def td_error(self, s: Tensor, a: Tensor, next_s: Tensor, r: Tensor, d: Tensor) -> Tensor:
        """The temporal difference [B]."""
        q = self.q(s).gather(1, a[:, None])[:, 0]
        with torch.no_grad():
            target = r + self.gamma * (1 - d) * self.target(next_s).amax(1)
        return target - q

    def update_param(self) -> None:
        self.target.load_state_dict(self.q.state_dict())


def network(inputs: int, hidden_size: int, outputs: int) -> nn.Sequential:
    """One hidden layer."""
    return nn.Sequential(nn.Linear(inputs, hidden_size), nn.ReLU(), nn.Linear(hidden_size, outputs))
