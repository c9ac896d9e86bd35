"""The methods by name, and what each of them needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from etude.base.errors import ConfigError
from etude.estimation.direct import direct
from etude.estimation.doubly_robust import doubly_robust, weighted_doubly_robust
from etude.estimation.importance import importance_sampling, per_decision, weighted, weighted_trajectories

Estimator = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float], np.ndarray]
"""From reward, log_ratio, q, v [E, T] and gamma to contributions [E]; see `importance`."""


class Method(NamedTuple):
    """An estimator, whether it reads ratios of probabilities and values of a model, and whether its weights are shares
    in those of all episodes."""

    estimator: Estimator
    ratios: bool
    values: bool
    shares: bool = False


METHODS = {
    "is": Method(importance_sampling, True, False),
    "pdis": Method(per_decision, True, False),
    "wis": Method(weighted, True, False, shares=True),
    "trajectory_wis": Method(weighted_trajectories, True, False, shares=True),
    "dm": Method(direct, False, True),
    "dr": Method(doubly_robust, True, True),
    "wdr": Method(weighted_doubly_robust, True, True, shares=True),
    "fqe": Method(direct, False, True),
}
SIMULATION = "simulation"  # episodes of the environment, beside the estimates


def chosen(methods: str | Iterable[str]) -> tuple[str, ...]:
    """The names in their order, once each; ConfigError for one that there is not, and where there are none."""
    names = tuple(dict.fromkeys((methods,) if isinstance(methods, str) else methods))
    known = [*METHODS, SIMULATION]
    for name in names:
        if name not in known:
            raise ConfigError(f"There is no method {name!r} of estimation. There are {', '.join(known)}.")
    if not names:
        raise ConfigError(f"methods names no method of estimation. Give at least one of {', '.join(known)}.")
    return names
