"""What a preset is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """Hyperparameters that are known to learn one environment.

    config: fields of the algorithm's config that differ from their defaults, or that the source names.
    steps: environment steps of a whole run; schedules are stretched over them.
    environments: how many are stepped in parallel.
    source: where the figures are from, and every difference from there.
    """

    config: dict[str, Any]
    steps: int
    environments: int
    source: str


POINT = "etude.examples.point:PointWorld"
"""The goal environment of the examples."""

ZOO = "rl-baselines3-zoo, hyperparams/{}.yml, {}"
"""The source of most presets: https://github.com/DLR-RM/rl-baselines3-zoo, by file and entry."""
