"""Rewards learned by telling an expert's steps from the policy's, by the logits of D, the probability that a step is
the expert's. B is the batch.
"""

from __future__ import annotations

from etude import ops
from etude.losses.shapes import shapes
from etude.ops import Array


@shapes(logits="*B")
def gail_reward(logits: Array) -> Array:
    """`-log(1 - D)`, [B], without a gradient; above 0, so that it also rewards long episodes (Kostrikov et al. 2019,
    arXiv:1809.02925). Ho & Ermon 2016, arXiv:1606.03476, algorithm 1, where D is the probability of the policy's."""
    return ops.stop_gradient(ops.softplus(logits))


@shapes(logits="*B")
def log_reward(logits: Array) -> Array:
    """`log D`, [B], without a gradient; below 0, so that it also rewards short episodes. Goodfellow et al. 2014,
    arXiv:1406.2661, section 3: what a generator ascends where it is told from the data with ease."""
    return ops.stop_gradient(-ops.softplus(-logits))


@shapes(logits="*B")
def log_odds_reward(logits: Array) -> Array:
    """`log D - log(1 - D)`, [B], without a gradient: the logits themselves, above 0 where the step is taken for the
    expert's. Fu et al. 2018, arXiv:1710.11248, algorithm 1."""
    return ops.stop_gradient(logits)


@shapes(reward="*B", potential="*B", next_potential="*B", log_prob="*B", discount="?*B")
def airl_logits(reward: Array, discount: Array, potential: Array, next_potential: Array, log_prob: Array) -> Array:
    """`reward + discount * next_potential - potential - log_prob`, all [B]: D = exp(f) / (exp(f) + probability).

    Fu et al. 2018, arXiv:1710.11248, section 6. reward: g, the learned reward of the state (or step); potential: h of
    its two ends; log_prob: of the action by the policy, without a gradient; discount: 0 where the episode terminated.
    """
    return reward + discount * next_potential - potential - ops.stop_gradient(log_prob)
