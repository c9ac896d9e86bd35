"""DDPG with hindsight experience replay, in PyTorch.

Lillicrap et al. 2016, arXiv:1509.02971; Andrychowicz et al. 2017, arXiv:1707.01495.

    agent = DDPG(128, 0.1, 0.98, 0.005)
    agent.set(noise=GaussianWhiteNoiseProcess(), pool_size=10_000, batch=256, HER=True)
    agent.train([torch.optim.Adam(param) for param in agent.param], episodes=2_000)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import etude
from etude.examples.point import PointWorld
from etude.solo import assign_param


class DDPG(etude.RL_pytorch):
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
        self.actor: nn.Sequential = nn.Sequential(*network(4, hidden_size, 2), nn.Tanh())
        self.target_actor: nn.Sequential = nn.Sequential(*network(4, hidden_size, 2), nn.Tanh())
        self.critic: nn.Sequential = network(6, hidden_size, 1)
        self.target_critic: nn.Sequential = network(6, hidden_size, 1)
        self.target_actor.load_state_dict(self.actor.state_dict())
        self.target_critic.load_state_dict(self.critic.state_dict())
        self.param = [self.actor.parameters(), self.critic.parameters()]
        self.env: Any = [env] * (processes or 1)
        self.sigma, self.gamma, self.tau, self.effort = sigma, gamma, tau, effort

    def action(self, s: Tensor) -> Tensor:
        return self.actor(s)

    def __call__(self, s: Tensor, a: Tensor, next_s: Tensor, r: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            next_a = (self.target_actor(next_s) + self.sigma * torch.randn_like(a)).clip(-1.0, 1.0)
            next_q = self.value(self.target_critic, next_s, next_a)
            target = (r + self.gamma * (1 - d) * next_q).clip(-1 / (1 - self.gamma), 0.0)  # every reward is -1 or 0
        td_error = target - self.value(self.critic, s, a)
        best = self.actor(s)
        return self.effort * (best**2).sum(1) - self.value(self.critic, s, best), td_error**2

    def value(self, critic: nn.Module, s: Tensor, a: Tensor) -> Tensor:
        """What the critic expects of actions [B, 2] in states [B, 4]: [B]."""
        return critic(torch.cat([s, a], 1))[:, 0]

    def update_param(self) -> None:
        assign_param(self.target_actor.parameters(), self.actor.parameters(), self.tau)
        assign_param(self.target_critic.parameters(), self.critic.parameters(), self.tau)

    def reward_done_func(self, reached: np.ndarray, goal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What a step earns that led to the points `reached` [..., 2], were these the goals."""
        done = np.linalg.norm(reached - goal, axis=-1) < PointWorld.tolerance
        return np.where(done, 0.0, -1.0), done


def network(inputs: int, hidden_size: int, outputs: int) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, hidden_size),
        nn.ReLU(),
        nn.Linear(hidden_size, hidden_size),
        nn.ReLU(),
        nn.Linear(hidden_size, outputs),
    )
