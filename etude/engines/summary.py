"""What goes into the losses of an agent, and from what they return to the numbers that an update reports."""

from __future__ import annotations

import math
from typing import Any

from etude import ops
from etude.agent import Losses
from etude.base.data import Update
from etude.base.errors import NumericalError

# The fields of a batch that cross to the framework; `index` stays behind, for the replay's priorities.
READ_BY_LOSSES = ("observation", "action", "reward", "discount", "next_observation", "weight", "extras")


def read_losses(losses: Losses) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """(scalars by loss name, metrics by name, the first td_error or None)."""
    scalars = {name: loss.value for name, loss in losses.items()}
    found = {name: value for loss in losses.values() for name, value in loss.metrics.items()}
    metrics = {name: ops.mean(value) if len(getattr(value, "shape", ())) else value for name, value in found.items()}
    td_error = next((loss.td_error for loss in losses.values() if loss.td_error is not None), None)
    return scalars, metrics, td_error


def check_finite(update: Update, bound: str = "set max_gradient_norm") -> None:
    """Raise NumericalError where a loss is NaN or infinite. bound: how gradients are given a bound."""
    bad = {name: value for name, value in update.losses.items() if not math.isfinite(value)}
    if bad:
        raise NumericalError(
            f"The loss became {', '.join(f'{name} = {value}' for name, value in bad.items())}. Usual causes: a "
            "learning rate that is too large, rewards of very different size (normalise them), or gradients without a "
            f"bound ({bound}). Go on from the last checkpoint with a smaller learning rate."
        )
