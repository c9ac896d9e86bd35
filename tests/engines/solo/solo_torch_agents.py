"""Agents of one's own in torch, as users write them; see solo_keras_agents."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

S, A = 3, 2
LAST = {None: [], "softmax": [nn.Softmax(-1)], "tanh": [nn.Tanh()]}


def mlp(inputs, outputs, last=None, width=16):
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, outputs), *LAST[last])


def array(x):
    return torch.as_tensor(np.asarray(x))


def values(x):
    return x.detach().numpy().copy()


def variables(network):
    return list(network.parameters())


def optimizer(parameters, rate=1e-2):
    return torch.optim.Adam(parameters, rate)


def sgd(parameters, rate):
    return torch.optim.SGD(parameters, rate)


def seed(number):
    torch.manual_seed(number)


def copy_weights(source, target):
    target.load_state_dict(source.state_dict())


class DQN:
    """Deep Q-learning."""

    mode = "per example"

    def __init__(self, gamma=0.9):
        torch.manual_seed(0)
        self.q, self.target = mlp(S, A), mlp(S, A)
        copy_weights(self.q, self.target)
        self.param = list(self.q.parameters())
        self.gamma, self.scale, self.double, self.power = gamma, 1.0, False, 2
        self._offset = 0.0

    def action(self, s):
        return self.q(s)

    def __call__(self, s, a, next_s, r, d):
        best = self.target(next_s).max(-1).values
        if self.double:
            best = self.target(next_s).gather(1, self.q(next_s).argmax(-1, keepdim=True))[:, 0]
        wanted = (r + self.gamma * (1 - d) * best).detach()
        error = self.q(s).gather(1, a[:, None])[:, 0] - wanted
        self.prioritized_replay.update(error, error * 2)
        loss = self.scale * error**self.power + self._offset
        return {"per example": loss, "scalar": loss.mean(), "listed": [loss]}[self.mode]

    def update_param(self):
        copy_weights(self.q, self.target)


class PPO:
    """Clipped policy gradients with copies of the old policy; one loss for two optimizers."""

    def __init__(self):
        torch.manual_seed(0)
        self.actor, self.old, self.critic = mlp(S, A, "softmax"), mlp(S, A, "softmax"), mlp(S, 1)
        copy_weights(self.actor, self.old)
        self.param = [self.actor.parameters(), self.critic.parameters()]
        self.gamma, self.clip = 0.9, 0.2

    def action(self, s):
        return self.old(s)

    def __call__(self, s, a, next_s, r, d):
        ratio = self.actor(s).gather(1, a[:, None])[:, 0] / self.old(s).gather(1, a[:, None])[:, 0]
        error = r + self.gamma * (1 - d) * self.critic(next_s)[:, 0] - self.critic(s)[:, 0]
        advantage = error.detach()
        self.prioritized_replay.update(error, ratio)
        bounded = ratio.clip(1 - self.clip, 1 + self.clip)
        return -torch.minimum(ratio * advantage, bounded * advantage) + error**2

    def update_param(self):
        copy_weights(self.actor, self.old)


class DDPG:
    """Deterministic policy gradients: two losses, each for its own optimizer."""

    def __init__(self):
        torch.manual_seed(0)
        self.actor, self.critic = mlp(S, 1, "tanh"), mlp(S + 1, 1)
        self.targets = {"actor": mlp(S, 1, "tanh"), "critic": mlp(S + 1, 1)}
        self.tau = 1.0
        with torch.no_grad():
            self.update_param()
        self.param = [list(self.actor.parameters()), list(self.critic.parameters())]
        self.gamma, self.tau = 0.9, 0.1

    def action(self, s):
        return self.actor(s)

    def __call__(self, s, a, next_s, r, d):
        pair = torch.cat([next_s, self.targets["actor"](next_s)], -1)
        wanted = (r + self.gamma * (1 - d) * self.targets["critic"](pair)[:, 0]).detach()
        error = self.critic(torch.cat([s, a], -1))[:, 0] - wanted
        policy = -self.critic(torch.cat([s, self.actor(s)], -1)).mean()
        return [policy, error**2]

    def update_param(self):
        for name, target in self.targets.items():
            for mine, other in zip(target.parameters(), getattr(self, name).parameters(), strict=True):
                mine.copy_(mine + self.tau * (other - mine))


class Noisy(DQN):
    """Random numbers in the loss and in acting, and dropout."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def action(self, s):
        return self.q(s) + torch.randn(s.shape[0], A)

    def __call__(self, s, a, next_s, r, d):
        return super().__call__(self.dropout(s), a, next_s, r + torch.randn(s.shape[0]), d)


class Team:
    """Two agents that observe and act together."""

    def __init__(self):
        torch.manual_seed(0)
        self.actors = [mlp(S, A), mlp(S, A)]
        self.param = [list(network.parameters()) for network in self.actors]

    def action(self, s, i):
        return self.actors[i](s)

    def __call__(self, s, a, next_s, r, d):
        return [((self.actors[i](s[i])[:, 0] - r[:, i]) ** 2).mean() for i in range(2)]

    def update_param(self): ...


class Subclassed(nn.Module):
    """A module of a user's own around a Sequential."""

    def __init__(self):
        super().__init__()
        self.inner = mlp(S, A)

    def forward(self, s):
        return self.inner(s)


def dense_network(activation):
    """A network whose output is plain dense layers with this activation."""
    kinds = {"relu": nn.ReLU(), "tanh": nn.Tanh(), "sigmoid": nn.Sigmoid(), "elu": nn.ELU(), "gelu": nn.GELU()}
    kinds |= {"silu": nn.SiLU(), "softplus": nn.Softplus(), "softmax": nn.Softmax(-1), "linear": nn.Identity()}
    return nn.Sequential(nn.Linear(S, 8), kinds[activation], nn.Linear(8, A, bias=False))


ACTIVATIONS = ("relu", "tanh", "sigmoid", "elu", "gelu", "silu", "softplus", "softmax", "linear")
