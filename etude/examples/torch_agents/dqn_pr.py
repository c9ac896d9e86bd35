"""DQN with prioritised replay, in PyTorch.

Schaul et al. 2016, arXiv:1511.05952.

    agent = DQN(4, 128, 2)
    agent.set(policy=EpsGreedyQPolicy(0.01), pool_size=10_000, batch=64, update_steps=10, PR=True)
    agent.train(torch.optim.Adam(agent.param), episodes=200)
"""

from __future__ import annotations

from torch import Tensor

from etude.examples.torch_agents import dqn


class DQN(dqn.DQN):
    """What its minibatches are drawn by is the error of each transition, told to `self.prioritized_replay`."""

    def __call__(self, s: Tensor, a: Tensor, next_s: Tensor, r: Tensor, d: Tensor) -> Tensor:
        td_error = self.td_error(s, a, next_s, r, d)
        self.prioritized_replay.update(td_error)
        return td_error**2
