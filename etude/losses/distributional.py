"""Distributions of returns: as probabilities of fixed values (C51), or as values of fixed probabilities (QR-DQN).

B is the batch, A the number of actions, N that of atoms or quantiles. `support` [N] is evenly spaced and rising, as
`ops.linspace(lowest, highest, N, like=reward)` gives it. discount is 0 where an episode terminated. No gradient flows
into a target.
"""

from __future__ import annotations

from etude import ops
from etude.losses.masks import MaskedValues, best_action
from etude.losses.shapes import shapes
from etude.losses.value import huber
from etude.ops import Array


@shapes(logits="*B N", support="N")
def expected_values(logits: Array, support: Array) -> Array:
    """The mean of each categorical distribution: logits [..., N], support [N] -> [...]."""
    return ops.sum(ops.softmax(logits) * support, -1)


@shapes(atoms="*B M", weight="*B M", support="*S N")
def project(atoms: Array, weight: Array, support: Array) -> Array:
    """The weights that the support takes over: each atom's goes to its two neighbours, to the nearer one more of it;
    beyond the ends, all of it to the end. Bellemare et al. 2017, arXiv:1707.06887, equation 7.

    atoms, weight: [..., M], weight[i] belongs to atoms[i]; support: [N], or [..., N] -> [..., N].
    """
    low, high, n = support[..., :1], support[..., -1:], support.shape[-1]
    return ops.linear_binning((ops.clip(atoms, low, high) - low) * (n - 1) / (high - low), weight, n)


@shapes(logits="B N", reward="B", discount="B", next_logits="B N", support="N")
def categorical_td(logits: Array, reward: Array, discount: Array, next_logits: Array, support: Array) -> Array:
    """The cross-entropy of `logits` under the projected distribution of `reward + discount * next value`.

    Bellemare et al. 2017, arXiv:1707.06887, algorithm 1. logits, next_logits: [B, N]; reward, discount: [B];
    support: [N] -> [B], which also serves as priority (Hessel et al. 2018, arXiv:1710.02298).
    """
    atoms = ops.expand_dims(reward, -1) + ops.expand_dims(discount, -1) * support
    target = ops.stop_gradient(project(atoms, ops.softmax(next_logits), support))
    return -ops.sum(target * ops.log_softmax(logits), -1)


@shapes(logits="B A N", action="B", reward="B", discount="B", next_logits="B A N", selector="B A", support="N")
def categorical_q_learning(
    logits: Array,
    action: Array,
    reward: Array,
    discount: Array,
    next_logits: Array,
    selector: Array | MaskedValues,
    support: Array,
) -> Array:
    """`categorical_td` between the action and the next one that `selector` values most, among those that it allows.

    logits, next_logits: [B, A, N]; action: [B] integers; reward, discount: [B]; selector: [B, A], `expected_values` of
    next_logits, or for double estimation of the online network (van Hasselt et al. 2016, arXiv:1509.06461);
    support: [N] -> [B].
    """
    next_logits = ops.take_row(next_logits, best_action(selector))
    return categorical_td(ops.take_row(logits, action), reward, discount, next_logits, support)


@shapes(quantile="B N", target="B M", fraction="*F N")
def quantile_regression(quantile: Array, target: Array, fraction: Array, width: float) -> Array:
    """Each quantile's loss against all samples of the target: the sum over quantiles of the mean over samples of
    `|fraction - (u < 0)| * huber(u)` with u = target - quantile; where width is 0, `|u|` in place of the Huber loss.

    Dabney et al. 2018, arXiv:1710.10044, equations 8 to 10. quantile: [B, N]; target: [B, M]; fraction: [N] or [B, N],
    midpoints `ops.linspace(0.5 / N, 1 - 0.5 / N, N, like=quantile)`; width: kappa, 0 or more -> [B].
    """
    error = ops.expand_dims(ops.stop_gradient(target), -2) - ops.expand_dims(quantile, -1)  # [B, N, M]
    size = huber(error, width) if width > 0 else ops.abs(error)
    fraction = ops.expand_dims(fraction, -1)
    return ops.sum(ops.mean(ops.where(error < 0, 1.0 - fraction, fraction) * size, -1), -1)


@shapes(quantile="B N", target="B M")
def quantile_error(quantile: Array, target: Array) -> Array:
    """`mean target - mean quantile`: the temporal-difference error of the expected values, for priorities.

    quantile: [B, N]; target: [B, M] -> [B]. The whole distributions would differ by noise that cannot be learned away.
    """
    return ops.mean(ops.stop_gradient(target), -1) - ops.mean(quantile, -1)


@shapes(logits="*B N")
def expected_symlog(logits: Array, largest: Array | float) -> Array:
    """The number whose symlog is the mean over N evenly spaced values in [-largest, largest] with these logits.

    Hafner et al. 2023, arXiv:2301.04104, equations 8 and 9: symlog(x) = sign(x) log(|x| + 1).

    logits: [..., N] -> [...].
    """
    mean = largest * expected_values(logits, ops.linspace(-1.0, 1.0, logits.shape[-1], like=logits))
    return ops.sign(mean) * ops.expm1(ops.abs(mean))


@shapes(label="*B", logits="*E *B")
def binary_cross_entropy(logits: Array, label: Array) -> Array:
    """`-log p` where the label is 1 and `-log(1 - p)` where it is 0, for p = sigmoid(logits): [...], or [E, ...] of E
    networks, in the shape of the logits. Good 1952, doi:10.1111/j.2517-6161.1952.tb00104.x."""
    return ops.softplus(logits) - label * logits


@shapes(value="*B", logits="*E *B N")
def symlog_cross_entropy(value: Array, logits: Array, largest: Array | float) -> Array:
    """The cross-entropy of logits [..., N] under symlog of a value, as shares of the two nearest of N evenly
    spaced values in [-largest, largest] (two-hot). Hafner et al. 2023, arXiv:2301.04104, equations 10 and 11. No
    gradient flows into the value.

    value: [...]; logits: [..., N], or of E networks [E, ..., N] -> the shape of logits without N.
    """
    place = ops.expand_dims(ops.sign(value) * ops.log1p(ops.abs(value)) / largest, -1)
    share = project(place, ops.ones_like(place), ops.linspace(-1.0, 1.0, logits.shape[-1], like=logits))
    return -ops.sum(ops.stop_gradient(share) * ops.log_softmax(logits), -1)
