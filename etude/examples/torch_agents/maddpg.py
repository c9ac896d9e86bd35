"""MADDPG in PyTorch: each agent acts on what it sees, and is judged by a critic that sees all.

Lowe et al. 2017, arXiv:1706.02275; relaxed samples of discrete actions: Jang et al. 2017, arXiv:1611.01144.

    agent = DDPG(128, 0.1, 0.98, 0.005)
    agent.set(policy=SoftmaxPolicy(), pool_size=100_000, batch=256, MARL=True)
    agent.train([torch.optim.Adam(param) for param in agent.param], episodes=2_000)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import etude
from etude.examples.speaker_listener import speaker_listener
from etude.examples.torch_agents.ddpg_her import network
from etude.solo import assign_param


class DDPG(etude.RL_pytorch):
    """A speaker that sees the goal, and a listener that moves; any other PettingZoo parallel environment by its sizes.

    entropy: the weight of the policies' entropies. tau: how fast the target networks follow, for each minibatch.
    observations, actions: the sizes of each agent's observation, and its number of actions.
    """

    def __init__(
        self,
        hidden_size: int,
        entropy: float,
        gamma: float,
        tau: float,
        processes: int | None = None,
        env: Any = speaker_listener,
        observations: tuple[int, ...] = (3, 11),
        actions: tuple[int, ...] = (3, 5),
    ):
        super().__init__()
        sizes = list(zip(observations, actions, strict=True))
        joint = sum(observations) + sum(actions)
        self.actors, self.target_actors = (
            nn.ModuleList(nn.Sequential(*network(seen, hidden_size, n), nn.Softmax(-1)) for seen, n in sizes)
            for _ in range(2)
        )
        self.critics, self.target_critics = (
            nn.ModuleList(network(joint, hidden_size, 1) for _ in sizes) for _ in range(2)
        )
        self.param = [self.actors.parameters(), self.critics.parameters()]
        self.actions = actions
        self.env: Any = [env] * (processes or 1)
        self.entropy, self.gamma, self.tau = entropy, gamma, tau
        self.follow(1.0)

    def action(self, s: Tensor, i: int) -> Tensor:
        return self.actors[i](s)

    def __call__(self, s: list[Tensor], a: Tensor, next_s: list[Tensor], r: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        taken = [functional.one_hot(a[:, i], n).float() for i, n in enumerate(self.actions)]
        with torch.no_grad():
            policies = [actor(seen) for actor, seen in zip(self.target_actors, next_s, strict=True)]
            following = [
                functional.one_hot(p.argmax(1), n).float() for p, n in zip(policies, self.actions, strict=True)
            ]
        actor_loss: Any = 0.0
        critic_loss: Any = 0.0
        for i, actor in enumerate(self.actors):
            with torch.no_grad():
                next_q = judge(self.target_critics[i], next_s, following)
                target = r[:, i] + self.gamma * (1 - d[:, i]) * next_q
            critic_loss = critic_loss + (target - judge(self.critics[i], s, taken)) ** 2
            probabilities = actor(s[i])
            logits = torch.log(probabilities + 1e-8)
            chosen = [*taken[:i], functional.gumbel_softmax(logits, hard=True), *taken[i + 1 :]]
            entropy = -(probabilities * logits).sum(1)
            actor_loss = actor_loss - judge(self.critics[i], s, chosen) - self.entropy * entropy
        return actor_loss, critic_loss

    def update_param(self) -> None:
        self.follow(self.tau)

    def follow(self, tau: float) -> None:
        assign_param(self.target_actors.parameters(), self.actors.parameters(), tau)
        assign_param(self.target_critics.parameters(), self.critics.parameters(), tau)


def judge(critic: nn.Module, s: list[Tensor], a: list[Tensor]) -> Tensor:
    """What a critic expects of joint observations and joint one-hot actions: [B]."""
    return critic(torch.cat([*s, *a], 1))[:, 0]
