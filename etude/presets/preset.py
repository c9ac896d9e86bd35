"""What a preset is, and how the environments of a family are preprocessed."""

from __future__ import annotations

from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Preprocessing:
    """The arguments of `Run` that environments of one family are trained with, whatever the algorithm."""

    wrappers: tuple[str, ...]
    frame_stack: int = 1
    env_args: dict[str, Any] = field(default_factory=dict)


ATARI = "ALE/*"
"""Stands for every game of the Arcade Learning Environment among the ids that presets are for."""

ATARI_PREPROCESSING = Preprocessing(
    # No-op starts, 4 frames a step of which the last two are max-pooled, 84 x 84 grey. It skips the frames itself.
    wrappers=("gymnasium.wrappers:AtariPreprocessing",),
    frame_stack=4,
    env_args={"frameskip": 1},
)

POINT = "etude.examples.point:PointWorld"
"""The goal environment of the examples."""

WITHOUT_VELOCITIES = "etude.examples.cart_pole:WithoutVelocities"
"""The task of the examples that needs a memory."""

ZOO = "rl-baselines3-zoo, hyperparams/{}.yml, {}"
"""The source of most presets: https://github.com/DLR-RM/rl-baselines3-zoo, by file and entry."""

ATARI_SOURCE = (
    ". Life losses end no episode (zoo: they do), as Machado et al. 2018, arXiv:1709.06009, recommend; ALE/*-v5 "
    "repeats actions with probability 0.25 (zoo: NoFrameskip-v4, which does not)."
)
"""How the presets for Atari differ from the zoo's."""
