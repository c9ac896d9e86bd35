"""V-trace over unrolls: time and batch as one axis for networks, time first for the recursion."""

from __future__ import annotations

from typing import Any, NamedTuple

from etude import ops
from etude.base import trees
from etude.base.data import Batch
from etude.config import UnrollsConfig
from etude.losses.off_policy import vtrace, vtrace_advantages
from etude.losses.value import td


def flat(tree: Any) -> Any:
    """[B, T, ...] -> [B * T, ...]."""
    return trees.map(lambda x: ops.reshape(x, (-1, *tuple(x.shape)[2:])), tree)


class Corrected(NamedTuple):
    """V-trace targets and advantages of B * T steps, without gradients."""

    target: Any  # [B * T] targets of the values
    advantage: Any  # [B * T] including importance weights


def corrected(batch: Batch, value: Any, next_value: Any, log_ratio: Any, config: UnrollsConfig) -> Corrected:
    """V-trace over unrolls [B, T]; see `losses.off_policy`.

    value, next_value: [B * T] of the observations and of those that followed. log_ratio: [B * T] log probability of the
    actions minus that when they were taken.
    """
    shape = tuple(batch.weight.shape)

    def time_first(x: Any) -> Any:
        return ops.swapaxes(ops.reshape(ops.stop_gradient(x), shape), 0, 1)

    reward, discount, goes_on = (time_first(x) for x in (batch.reward, batch.discount, batch.extras["goes_on"]))
    value, next_value, log_ratio = time_first(value), time_first(next_value), time_first(log_ratio)
    error = td(value, reward, discount, next_value)
    correction = vtrace(error, discount, goes_on, log_ratio, config.trace_lambda, config.rho_bar, config.c_bar)
    advantage = vtrace_advantages(error, correction, discount, goes_on, log_ratio, config.trace_lambda, config.rho_bar)
    target, advantage = (ops.reshape(ops.swapaxes(x, 0, 1), (-1,)) for x in (value + correction, advantage))
    return Corrected(target, advantage)
