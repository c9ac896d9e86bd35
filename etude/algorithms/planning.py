"""Planning in a model: sequences of actions are drawn, valued, and drawn again around the best of them.

Model predictive path integral control: Williams, Aldrich & Theodorou 2015, arXiv:1509.01149; with elites, Hansen, Wang
& Su 2022, arXiv:2203.04955, section 3.1. The cross-entropy method weights all elites alike (`plan_temperature` = 0);
random shooting takes the best of one draw (`iterations` = `n_elites` = 1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from etude import ops
from etude.base import checks
from etude.base.errors import ConfigError
from etude.config import Config
from etude.losses.distributions import Gaussian

TIE = 1e-6  # relative difference of values below which rounding alone decides which plan is better


@dataclass(frozen=True)
class PlanningConfig(Config):
    """How plans are drawn and refitted. Actions are in [-1, 1]."""

    iterations: int = 6  # times that plans are drawn and refitted, for each action
    n_plans: int = 512  # plans in each iteration
    n_elites: int = 64  # plans of the highest value, which the next ones are fitted to
    plan_temperature: float = 0.5  # weight of a plan's value in the logarithm of its share in the fit
    least_std: float = 0.05  # lower bound on the standard deviation that plans are drawn with
    largest_std: float = 2.0  # upper bound on it, which plans are first drawn with

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.counts(self, "iterations", "n_plans", "n_elites")
        checks.positive(self, "least_std", "largest_std")
        checks.not_negative(self, "plan_temperature")
        if not self.n_elites <= self.n_plans:
            raise ConfigError(
                f"{type(self).__name__}: n_elites = {self.n_elites} of n_plans = {self.n_plans}; expected at most all "
                "of them."
            )


def planned(
    config: PlanningConfig, state: Any, drawn: Any, value_of: Callable[[Any], Any], others: list[Any] | None = None
) -> Gaussian:
    """The first action of the plans that are drawn last: mean and deviation after the last refit.

    state: [N, ...], what is planned from. drawn: [iterations, S, H, A] standard normal numbers, of S plans of H steps.
    value_of: from plans [N, n_plans, H, A] to their values [N, n_plans]. others: plans [N, P, H, A] that take part in
    every iteration; n_plans = P + S.
    """
    mean = ops.reshape(ops.zeros_like(state[:, :1]), (-1, 1, 1, 1))
    std = mean + config.largest_std
    for i in range(config.iterations):
        plans = ops.concatenate([*(others or ()), ops.clip(mean + std * drawn[i], -1.0, 1.0)], 1)
        value = value_of(plans)
        worst = ops.sort(value)[:, -config.n_elites :][:, :1]
        worst = worst - TIE * ops.maximum(1.0, ops.abs(worst))
        logits = ops.where(value >= worst, config.plan_temperature * value, -1e9 + ops.zeros_like(value))
        share = ops.reshape(ops.softmax(logits), (-1, config.n_plans, 1, 1))
        mean = ops.sum(share * plans, 1, keepdims=True)
        std = ops.sqrt(ops.sum(share * ops.square(plans - mean), 1, keepdims=True))
        std = ops.clip(std, config.least_std, config.largest_std)
    return Gaussian(mean[:, 0, 0], ops.log(std[:, 0, 0]))


def with_each(state: Any, plans: Any) -> Any:
    """The states [N, Z], each once for each of S plans [S, ...]: [N * S, Z]."""
    empty = ops.zeros_like(ops.reshape(plans, (plans.shape[0], -1))[:, :1])
    return ops.reshape(ops.expand_dims(state, 1) + empty, (-1, state.shape[-1]))
