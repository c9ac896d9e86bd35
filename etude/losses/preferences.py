"""Losses of language models: preferences between games, groups of games that began alike, and the distance from a
reference policy. B is the batch."""

from __future__ import annotations

from etude import ops
from etude.losses.shapes import shapes
from etude.ops import Array


@shapes(better="*B", worse="*B")
def bradley_terry(better: Array, worse: Array) -> Array:
    """`-log sigmoid(better - worse)`, any shape: of the scores of what was preferred and of what was not. Bradley &
    Terry 1952, doi:10.2307/2334029; Christiano et al. 2017, arXiv:1706.03741, equation 1."""
    return ops.softplus(worse - better)


@shapes(better="*B", worse="*B", better_reference="*B", worse_reference="*B", beta="")
def dpo(better: Array, worse: Array, better_reference: Array, worse_reference: Array, beta: Array | float) -> Array:
    """`bradley_terry` of the rewards `beta * (log pi - log pi_ref)`, for which the policy is optimal. Rafailov et al.
    2023, arXiv:2305.18290, equation 7.

    Arguments: the log probabilities of what was preferred and of what was not, by the policy and by the reference, into
    which no gradient flows.
    """
    gain, loss = better - ops.stop_gradient(better_reference), worse - ops.stop_gradient(worse_reference)
    return bradley_terry(beta * gain, beta * loss)


@shapes(log_prob="*B", reference="*B")
def reference_kl(log_prob: Array, reference: Array) -> Array:
    """`pi_ref / pi - log(pi_ref / pi) - 1`, any shape: an estimate of KL(pi || pi_ref) from actions of pi, which is
    never negative. Shao et al. 2024, arXiv:2402.03300, equation 4. No gradient flows into `reference`."""
    difference = ops.stop_gradient(reference) - log_prob
    return ops.expm1(difference) - difference


@shapes(returns="B")
def group_advantages(returns: Array, size: int, scaled: bool = True) -> Array:
    """Returns [B] less the mean of their group, `size` neighbours, and divided by its standard deviation; 0 where all
    of a group are equal. Shao et al. 2024, arXiv:2402.03300, section 4.1.2.

    scaled: False: not divided, as in Liu et al. 2025, arXiv:2503.20783.
    """
    groups = ops.reshape(returns, (-1, size))
    centred = groups - ops.mean(groups, -1, keepdims=True)
    deviation = ops.sqrt(ops.mean(ops.square(centred), -1, keepdims=True))
    found = ops.where(deviation > 1e-6, centred / (deviation + 1e-8), 0.0 * centred) if scaled else centred
    return ops.reshape(found, (-1,))


@shapes(error="T B", mine="T B", discount="T B", lambda_="")
def token_advantages(error: Array, mine: Array, discount: Array, lambda_: Array | float) -> Array:
    """Generalised advantages [T, B] of an agent's tokens among those of the world, which they pass by: `A[t] =
    error[t] + discount[t] * lambda * A[next of the agent's]`. Schulman et al. 2016, arXiv:1506.02438, equation 16.

    error: temporal differences from one token of the agent to its next one. mine: 1 where a token is the agent's, else
    0. discount: 0 where a game terminates.
    """
    decay = 1.0 - mine + mine * discount * lambda_
    return mine * ops.linear_recurrence(mine * error, decay, ops.zeros_like(error[0]))
