"""Learning from recorded data, without acting. B is the batch, A an action's dimensions, n the number of choices, E
stacked critics. Weights carry no gradient."""

from __future__ import annotations

import math

from etude import ops
from etude.losses.masks import MaskedValues, allowed_only
from etude.losses.shapes import shapes
from etude.losses.soft import minimum
from etude.ops import Array


@shapes(log_prob="*B")
def negative_log_likelihood(log_prob: Array) -> Array:
    """`-log_prob` of the recorded action, any shape: behaviour cloning. Pomerleau 1991,
    doi:10.1162/neco.1991.3.1.88."""
    return -log_prob


@shapes(action="B A", data_action="B A")
def action_error(action: Array, data_action: Array) -> Array:
    """The mean squared distance to the recorded action, [B, A] -> [B]: behaviour cloning of a deterministic policy."""
    return ops.mean(ops.square(action - ops.stop_gradient(data_action)), -1)


@shapes(q="B", action="B A", data_action="B A", alpha="")
def td3_bc(q: Array, action: Array, data_action: Array, alpha: Array | float) -> Array:
    """`-alpha / mean|q| * q + action_error`: improve the action, but stay near the recorded one.

    Fujimoto & Gu 2021, arXiv:2106.06860, section 5; the mean over the action's dimensions and the missing
    gradient of mean|q| are the authors' code. q: [B], of `action` [B, A]; data_action: [B, A] -> [B].
    """
    scale = ops.stop_gradient(alpha / (ops.replica_mean(ops.mean(ops.abs(q))) + 1e-8))
    return action_error(action, data_action) - scale * q


@shapes(action="B A", data_action="B A")
def squared_distance(action: Array, data_action: Array) -> Array:
    """The squared distance to the recorded action, [B, A] -> [B]."""
    return ops.sum(ops.square(action - ops.stop_gradient(data_action)), -1)


@shapes(q="B", action="B A", data_action="B A", penalty="")
def rebrac_actor(q: Array, action: Array, data_action: Array, penalty: Array | float) -> Array:
    """`penalty * squared_distance - q / mean|q|`: improve the action, but stay near the recorded one.

    Tarasov et al. 2023, arXiv:2305.09836, equation 3; the division by the mean size, into which no gradient flows, is
    the authors' code. q: [B], of `action` [B, A]; data_action: [B, A] -> [B].
    """
    scale = ops.stop_gradient(1.0 / (ops.replica_mean(ops.mean(ops.abs(q))) + 1e-8))
    return penalty * squared_distance(action, data_action) - scale * q


@shapes(gradients="E B A")
def gradient_similarity(gradients: Array) -> Array:
    """`sum of cos(g_i, g_j) over i != j / (E - 1)`, [B], of the gradients g of E critics' values by the action.

    An et al. 2021, arXiv:2110.01548, section 4, with gradients of length 1, as in the authors' code. The sum over
    pairs is that of all products, which is the square of the sum, less those of each gradient with itself.
    gradients: [E, B, A], through which the critics are differentiated.
    """
    unit = gradients / ops.sqrt(ops.sum(ops.square(gradients), -1, keepdims=True) + 1e-20)
    pairs = ops.sum(ops.square(ops.sum(unit, 0)), -1) - ops.sum(ops.square(unit), (0, 2))
    return pairs / (gradients.shape[0] - 1)


@shapes(error="*B", fraction="")
def expectile(error: Array, fraction: float) -> Array:
    """`|fraction - (error < 0)| * error**2`, any shape, of error = target - prediction: above a fraction of 0.5 the
    prediction is drawn to the larger targets. Kostrikov et al. 2021, arXiv:2110.06169, equation 5."""
    return ops.where(error < 0, 1.0 - fraction, fraction) * ops.square(error)


@shapes(error="*B", temperature="", limit="")
def gumbel_regression(error: Array, temperature: Array | float, limit: Array | float) -> Array:
    """`exp(z) - z - 1`, any shape, with z = error / temperature, at most `limit`, of error = target - prediction. The
    prediction of the least mean is `temperature * log mean exp(target / temperature)`: the likeliest one where errors
    are Gumbel distributed. Garg et al. 2023, arXiv:2301.02328, equation 11; the bound is that of the authors' code."""
    z = ops.minimum(error / temperature, limit)
    return ops.exp(z) - z - 1.0


@shapes(q="E *B", value="*B", target="*B", target_q="E *B", fraction="")
def ilql(q: Array, value: Array, target: Array, target_q: Array, fraction: float) -> Array:
    """`sum over E critics of (target - q)**2 / 2 + expectile(min target_q - value) / 2`, any shape, of the tokens of
    the agent. Snell et al. 2022, arXiv:2206.11871, section 4.1; the halves are those of the code of LMRL-Gym.

    target: `reward + gamma * value` of the agent's next token, or a return. No gradient flows into the targets.
    """
    error = ops.stop_gradient(target) - q
    return ops.sum(0.5 * ops.square(error), 0) + 0.5 * expectile(ops.stop_gradient(minimum(target_q)) - value, fraction)


@shapes(advantage="*B", beta="")
def exponential_weight(advantage: Array, beta: Array | float, largest: float) -> Array:
    """`min(exp(beta * advantage), largest)`, any shape: what a recorded action's log likelihood is weighted with.

    Peng et al. 2019, arXiv:1910.00177 (beta is the inverse of theirs); Kostrikov et al. 2021, arXiv:2110.06169,
    equation 7.
    """
    # Clipped before exp: beyond, exp overflows.
    return ops.stop_gradient(ops.exp(ops.minimum(beta * advantage, math.log(largest))))


@shapes(log_prob="*B", advantage="*B", beta="", scale="?*B")
def marwil(log_prob: Array, advantage: Array, beta: Array | float, scale: Array | float) -> Array:
    """`-exp(beta * advantage / scale) * log_prob`, all [B]; beta = 0 is behaviour cloning.

    Wang et al. 2018, Exponentially weighted imitation learning for batched historical data (NeurIPS). scale: the
    typical size of an advantage, the root of the running `running_square`.
    """
    return -ops.stop_gradient(ops.exp(beta * advantage / scale)) * log_prob


@shapes(square="?B", advantage="B", rate="")
def running_square(square: Array | float, advantage: Array, rate: float) -> Array:
    """`square + rate * (mean advantage**2 - square)`: the running mean of squared advantages, after these [B]."""
    return ops.stop_gradient(square + rate * (ops.replica_mean(ops.mean(ops.square(advantage))) - square))


@shapes(q="*B n", action="*B")
def cql_gap(q: Array | MaskedValues, action: Array) -> Array:
    """`logsumexp q - q[action]`: what all (allowed) choices are worth above the recorded one. q: [B, n]; action: [B]
    -> [B], any shape.

    Kumar et al. 2020, arXiv:2006.04779, equation 4. Minimising it pushes the recorded action's value up, all others
    down.
    """
    own = q.values if isinstance(q, MaskedValues) else q
    return ops.logsumexp(allowed_only(q)) - ops.take_last(own, action)


@shapes(log_prob="B M", sampled_q="E B M", q="E B")
def cql_sampled_gap(sampled_q: Array, log_prob: Array, q: Array) -> Array:
    """`cql_gap` for continuous actions, the integral over them estimated from M sampled ones:
    `log(mean(exp(sampled_q - log_prob))) - q`. Kumar et al. 2020, arXiv:2006.04779, appendix F.

    sampled_q: [E, B, M]; log_prob: [B, M], the log density that each was drawn with, also of uniform ones: A * log(0.5)
    in [-1, 1]**A; no gradient flows into it. q: [E, B], of the recorded actions -> [E, B].
    """
    excess = sampled_q - ops.stop_gradient(log_prob)
    return ops.logsumexp(excess) - math.log(excess.shape[-1]) - q
