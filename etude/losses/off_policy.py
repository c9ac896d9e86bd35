"""Corrections of values along the trajectories of another policy, time first: arrays [T, B], T steps of B columns.

Episodes may end anywhere in a column. `error[t]` is the one-step error `reward + discount * next value - value` with
the value of the true next observation, which `value.td` gives. `discount[t]` is gamma, or 0 where the episode
terminated there. `goes_on[t]` is 1 where row t + 1 continues row t and 0 where the episode ends there in either way:
nothing is carried across. `log_ratio[t]` is the log probability of the action now minus that when it was taken.

A correction is added to the value that the error was computed with; the sum is that value's target. No gradient flows
into any of the results.
"""

from __future__ import annotations

from etude import ops
from etude.losses.shapes import shapes
from etude.ops import Array


@shapes(error="T B", discount="T B", goes_on="T B", log_ratio="T B", lambda_="?T B", rho_bar="", c_bar="")
def vtrace(
    error: Array,
    discount: Array,
    goes_on: Array,
    log_ratio: Array,
    lambda_: Array | float,
    rho_bar: Array | float,
    c_bar: Array | float,
) -> Array:
    """`x[t] = rho[t] * error[t] + discount[t] * c[t] * x[t + 1]` with rho = min(rho_bar, ratio) and
    c = lambda_ * min(c_bar, ratio): the V-trace correction [T, B] of a state's value.

    Espeholt et al. 2018, arXiv:1802.01561, equation 1 and remark 2.
    """
    ratio = ops.exp(log_ratio)
    decay = discount * goes_on * lambda_ * ops.minimum(ratio, c_bar)
    return _carried(ops.minimum(ratio, rho_bar) * error, decay)


@shapes(error="T B", correction="T B", discount="T B", goes_on="T B", log_ratio="T B", lambda_="?T B", rho_bar="")
def vtrace_advantages(
    error: Array,
    correction: Array,
    discount: Array,
    goes_on: Array,
    log_ratio: Array,
    lambda_: Array | float,
    rho_bar: Array | float,
) -> Array:
    """`rho[t] * (error[t] + discount[t] * lambda_ * x[t + 1])` with the corrections x of `vtrace`: the advantages
    [T, B] for the policy gradient, importance weights included.

    Espeholt et al. 2018, arXiv:1802.01561, section 4.2, which is lambda_ = 1. rho_bar may differ from that of `vtrace`.
    """
    following = ops.concatenate([correction[1:], ops.zeros_like(correction[:1])], 0)
    advantage = error + discount * goes_on * lambda_ * following
    return ops.stop_gradient(ops.minimum(ops.exp(log_ratio), rho_bar) * advantage)


@shapes(error="T B", discount="T B", goes_on="T B", log_ratio="T B", lambda_="?T B")
def retrace(error: Array, discount: Array, goes_on: Array, log_ratio: Array, lambda_: Array | float) -> Array:
    """`x[t] = error[t] + discount[t] * c[t + 1] * x[t + 1]` with c = lambda_ * min(1, ratio): the Retrace correction
    [T, B] of an action's value. The next value in the error is the expected one under the policy now.

    Munos et al. 2016, arXiv:1606.02647, the operator R with the traces of Retrace(lambda).
    """
    trace = lambda_ * ops.minimum(ops.exp(log_ratio), 1.0)
    following = ops.concatenate([trace[1:], ops.zeros_like(trace[:1])], 0)
    return _carried(error, discount * goes_on * following)


def _carried(x: Array, decay: Array) -> Array:
    return ops.stop_gradient(ops.linear_recurrence(x, decay, ops.zeros_like(x[-1])))
