"""Where the gradients of a learning phase come from, and the numbers that an update reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from etude import ops
from etude.agent import Losses
from etude.base.data import Batch, Update, WorkerGradients
from etude.base.errors import NumericalError
from etude.engines.optimizers import clip_by_norm, norm_of
from etude.engines.parameter_layout import FILLED, ParameterLayout
from etude.protocols import Engine

GradientSource = Callable[[Any, dict[str, float], int], Update]
"""Takes one gradient step on each of the batches that the replay sampled, from (batches, values of hyperparameters,
gradient steps before them)."""


class FromRollouts:
    """Gradient steps with what was differentiated elsewhere, by weights that may be older. See `GradientSource`."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def __call__(self, found: WorkerGradients, hyper: dict[str, float], gradient_steps: int) -> Update:
        """One gradient step. The metric `gradient_age` is the number of gradient steps since the weights were read that
        the gradient was computed with."""
        update = self._engine.apply(found.gradients, hyper)
        age = float(gradient_steps - found.gradient_steps)
        return Update(found.losses, {**found.metrics, **update.metrics, "gradient_age": age}, None, 1)


def joined(arrays: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """These arrays as one vector."""
    return ops.concatenate([ops.reshape(arrays[name], (-1,)) for name in names])


def bounded(
    layout: ParameterLayout, group: str, gradients: Mapping[str, Any], hyper: Any
) -> tuple[Any, dict[str, Any]]:
    """The gradient [P] that trains a group, of gradients by name, transformed and clipped; and metrics of it."""
    layers, limit = layout.layers.get(group, {}), "max_gradient_norm"
    reported = {metric: norm_of([gradients[name] for name in own]) for metric, own in layers.items()}
    gradient = layout.transformed(group, joined(gradients, layout.groups[group]), hyper)
    if limit in layout.hyper:
        gradient, norm = clip_by_norm(gradient, hyper[limit])
        reported[f"{group}_gradient_norm"] = norm
        reported[f"{group}_gradient_clipped"] = ops.cast(norm > hyper[limit], "float32")
    return gradient, reported


def measured(
    layout: ParameterLayout, values: Mapping[str, Any], batch: Batch, noise: Any, hyper: Any, group: str, vector: Any
) -> tuple[Any, Any]:
    """The value of a loss and its `Loss.policy`, where all that it trains is this vector."""
    found = layout.bind({**values, **layout.split(group, vector)}, hyper).loss(batch, noise)[group]
    return found.value, found.policy


# The fields of a batch that cross to the framework; `index` stays behind, for the replay's priorities.
READ_BY_LOSSES = ("observation", "action", "reward", "discount", "next_observation", "weight", "extras")


def read_losses(losses: Losses) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """(scalars by loss name, metrics by name, the first td_error or None)."""
    scalars = {name: loss.value for name, loss in losses.items()}
    metrics = {}
    for loss, found in losses.items():
        for name, value in found.metrics.items():
            mean = ops.mean(value) if len(getattr(value, "shape", ())) else value
            metrics[name] = mean if found.filled is None else mean * found.filled
        if found.filled is not None:
            metrics[f"{loss}{FILLED}"] = found.filled
    td_error = next((loss.td_error for loss in losses.values() if loss.td_error is not None), None)
    return scalars, metrics, td_error


def update_of(
    losses: Collection[str], numbers: dict[str, float], told: Mapping[str, set[str]], td_error: Any, steps: int
) -> Update:
    """An update that reports these numbers. losses: those of them that are losses. told: see `ParameterLayout.told_by`;
    of means over all minibatches these become means over those in which there was something to learn from, if any."""
    for filled, names in told.items():
        share = numbers.pop(filled, 1.0)
        for name in names & numbers.keys() if share < 1.0 else ():
            mean = numbers.pop(name)
            if share > 0.0:
                numbers[name] = mean / share
    metrics = {name: value for name, value in numbers.items() if name not in losses}
    return Update({name: numbers[name] for name in losses if name in numbers}, metrics, td_error, steps)


def check_finite(update: Update, bound: str = "set max_gradient_norm") -> None:
    """Raise NumericalError where a loss is NaN or infinite. bound: how gradients are given a bound."""
    bad = {name: value for name, value in update.losses.items() if not math.isfinite(value)}
    if bad:
        raise NumericalError(
            f"The loss became {', '.join(f'{name} = {value}' for name, value in bad.items())}. Usual causes: a "
            "learning rate that is too large, rewards of very different size (normalise them), or gradients without a "
            f"bound ({bound}). Go on from the last checkpoint with a smaller learning rate."
        )
