"""Hindsight experience replay (HER) as a setting of off-policy learning. Andrychowicz et al. 2017, arXiv:1707.01495."""

from __future__ import annotations

import functools
import warnings
from typing import Any

from etude.base.errors import ConfigError
from etude.base.seeding import generator
from etude.envs import GoalOutcome, frame_stack_of
from etude.replay import Hindsight, View
from etude.replay.hindsight import require_goals
from etude.training.kinds.context import TrainingContext


def with_hindsight(view: Any, context: TrainingContext, stream: str = "hindsight") -> View:
    """The view, with the share of relabelled goals that the config asks for. ConfigError where the environment has no
    goals, several agents, or stacked frames. stream: the name of the generator that goals are drawn with."""
    config, name = context.agent.config, type(context.agent).__name__
    if config.hindsight == "none":
        return view
    if context.team:
        raise ConfigError(
            f"{name}: hindsight = {config.hindsight!r}, but this environment has several agents; goals are relabelled "
            "for one. Leave hindsight off."
        )
    if (stack := frame_stack_of(context.environment)) > 1:
        raise ConfigError(
            f"{name}: hindsight = {config.hindsight!r}, but frame_stack = {stack} stacks goals, too, and "
            "compute_reward takes single ones. Leave one of them off."
        )
    require_goals(context.engine.spaces.observation)
    share = config.hindsight_goals / (config.hindsight_goals + 1)
    rng = generator(context.setup.seed, stream)
    outcome = GoalOutcome(context.environment)
    return Hindsight(view, outcome, rng, config.hindsight, share, functools.partial(_warn, outcome.name))


def _warn(name: str, stored: float, found: float) -> None:
    warnings.warn(
        f"{name}: a step was rewarded with {stored:g}, and compute_reward gives {found:g} for its goals. Hindsight "
        "mixes both, so that goals count by where their rewards come from. Where a wrapper changes rewards, give it a "
        "compute_reward that changes them likewise: wrappers are asked first.",
        stacklevel=2,
    )
