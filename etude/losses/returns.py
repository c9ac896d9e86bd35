"""Returns and advantages along trajectories, time first: all arrays [T, B], T time steps of B trajectories.

`discount[t]` applies to what follows step t: gamma, or 0 where the episode terminated there. `next_value[t]` is the
value of the observation that follows step t. A trajectory ends where its rows do: rows of two episodes that were
truncated do not belong in one column. No gradient is stopped here.

Then corrections of values along the trajectories of another policy (V-trace, Retrace). Episodes may end anywhere in a
column. `error[t]` is the one-step error `reward + discount * next value - value` with the value of the true next
observation, which `value.td` gives. `goes_on[t]` is 1 where row t + 1 continues row t and 0 where the episode ends
there in either way: nothing is carried across. `log_ratio[t]` is the log probability of the action now minus that when
it was taken. A correction is added to the value that the error was computed with; the sum is that value's target. No
gradient flows into any of the corrections.
"""

from __future__ import annotations

from etude import ops
from etude.losses.shapes import shapes
from etude.ops import Array


@shapes(reward="T *B", discount="T *B", next_value="T *B", lambda_="?T *B")
def lambda_returns(reward: Array, discount: Array, next_value: Array, lambda_: Array | float) -> Array:
    """`G[t] = reward[t] + discount[t] * ((1 - lambda_) * next_value[t] + lambda_ * G[t + 1])`.

    Sutton & Barto 2018, equation 12.18; G[T] = next_value[T - 1]. lambda_: a number, or [T, B].
    """
    one_step = reward + discount * (1.0 - lambda_) * next_value
    return ops.linear_recurrence(one_step, discount * lambda_, next_value[-1])


@shapes(reward="T *B", discount="T *B", last_value="*B")
def discounted_returns(reward: Array, discount: Array, last_value: Array) -> Array:
    """`G[t] = reward[t] + discount[t] * G[t + 1]`, G[T] = last_value [B]. Sutton & Barto 2018, equation 3.9."""
    return ops.linear_recurrence(reward, discount, last_value)


@shapes(reward="T *B", discount="T *B", next_value="T *B")
def n_step_returns(reward: Array, discount: Array, next_value: Array, n: int) -> Array:
    """n discounted rewards and the value that follows; fewer near the end. Sutton & Barto 2018, equation 7.1."""
    length = reward.shape[0]
    n = min(n, length)
    bootstrap = ops.concatenate([next_value[n - 1 :]] + [next_value[-1:]] * (n - 1), 0)
    padding = ops.zeros_like(reward[: n - 1])
    rewards = ops.concatenate([reward, padding], 0)
    discounts = ops.concatenate([discount, padding + 1.0], 0)
    returns = bootstrap
    for i in reversed(range(n)):
        returns = rewards[i : i + length] + discounts[i : i + length] * returns
    return returns


@shapes(reward="T *B", discount="T *B", value="T *B", next_value="T *B", lambda_="?T *B")
def advantages(reward: Array, discount: Array, value: Array, next_value: Array, lambda_: Array | float) -> Array:
    """Generalised advantage estimates: `A[t] = error[t] + discount[t] * lambda_ * A[t + 1]`, A[T] = 0, with the errors
    `reward[t] + discount[t] * next_value[t] - value[t]`. Schulman et al. 2016, arXiv:1506.02438, equation 16.

    lambda_: a number, or [T, B]: 0 where an episode was truncated, so that nothing is carried across its end.
    """
    error = reward + discount * next_value - value
    return ops.linear_recurrence(error, discount * lambda_, ops.zeros_like(error[-1]))


@shapes(reward="T *B", discount="T *B", next_value="T *B", follows="T *B")
def n_step_returns_of_runs(reward: Array, discount: Array, next_value: Array, follows: Array, n: int) -> Array:
    """`n_step_returns` of runs that may stop before T: no sum goes beyond a step with `follows` 0, whose `next_value`
    counts there. follows: [T, B], 1 where the next row goes on with the run."""
    returns = reward + discount * next_value
    for _ in range(min(n, reward.shape[0]) - 1):
        longer = ops.concatenate([returns[1:], next_value[-1:]], 0)
        returns = reward + discount * (follows * longer + (1.0 - follows) * next_value)
    return returns


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
