"""Action values of which a mask forbids some. The mask travels beside the values: any finite value may be one."""

from __future__ import annotations

from typing import NamedTuple

from etude import ops
from etude.ops import Array

NEVER = float("-inf")  # stands in for what is forbidden within one reduction, and never leaves it


class MaskedValues(NamedTuple):
    """What `Agent.act` returns in the place of action values [B, n] where observations carry an action mask."""

    values: Array  # [B, n] of all actions
    allowed: Array  # [B, n] bool

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the values."""
        return self.values.shape


def masked(values: Array, mask: Array) -> MaskedValues:
    """Values [B, n] with a mask [B, n] as environments give it, in which 0 forbids an action."""
    return MaskedValues(values, mask > 0)


def allowed_only(values: Array | MaskedValues) -> Array:
    """[B, n], with minus infinity in the place of what is forbidden: for a maximum, a softmax or its logarithm."""
    return ops.where(values.allowed, values.values, NEVER) if isinstance(values, MaskedValues) else values


def best_action(values: Array | MaskedValues) -> Array:
    """The allowed action of the largest value [B], the first of several."""
    return ops.argmax(allowed_only(values))


def best_value(values: Array | MaskedValues) -> Array:
    """The largest value [B] of an allowed action; that of some action where a row allows none."""
    if isinstance(values, MaskedValues):
        return ops.take_last(values.values, best_action(values))
    return ops.max(values, -1)
