"""PPO with prioritised replay, in PyTorch.

The pool is not emptied when the old policy follows, but cut; what was chosen by older policies is weighed by the ratio
of probabilities, and drawn by the size of its error and by how far that ratio is from 1.

    agent = PPO(4, 128, 2, 0.2, 0.01)
    agent.set(policy=SoftmaxPolicy(), pool_size=10_000, batch=64, update_steps=1_000, PPO=True, PR=True)
"""

from __future__ import annotations

from torch import Tensor

from etude.examples.torch_agents import ppo


class PPO(ppo.PPO):
    """Tells `self.prioritized_replay` the error and the ratio of each transition."""

    def __call__(self, s: Tensor, a: Tensor, next_s: Tensor, r: Tensor, d: Tensor) -> tuple[Tensor, ...]:
        td_error, policy_loss, ratio = self.terms(s, a, next_s, r, d)
        self.prioritized_replay.update(td_error, ratio)
        return policy_loss, td_error**2
