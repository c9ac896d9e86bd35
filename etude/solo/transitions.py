"""What a minibatch is made of: transitions of one step or of several, triplets of a trajectory, relabelled goals. The
flags TRL and HER are read here, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from etude.base.errors import ConfigError
from etude.base.seeding import generator
from etude.replay import Hindsight, NStep, OneStep, Triplets
from etude.replay.buffer import View
from etude.solo.conversion import Conversion, conversion_for, is_goal_space, of_each_time
from etude.solo.environments import EnvironmentDescription
from etude.solo.settings import Settings


@dataclass(frozen=True)
class Transitions:
    """view: makes batches. convert: from their observations to those that `__call__` gets."""

    view: View
    convert: Conversion


def transitions_of(
    agent: Any, settings: Settings, described: EnvironmentDescription, gamma: float, seed: int
) -> Transitions:
    """What the settings ask for; ConfigError where agent or environment do not fit."""
    convert = conversion_for(described.spaces.observation)
    if settings.TRL:
        return Transitions(Triplets(gamma, rng=generator(seed, "triplets")), of_each_time(convert))
    view: OneStep | NStep = OneStep(gamma)
    if settings.num_steps is not None:
        view = _of_several_steps(agent, settings.num_steps, gamma)
    if settings.HER:
        return Transitions(_relabelled(agent, view, described, seed), convert)
    return Transitions(view, convert)


def _of_several_steps(agent: Any, steps: int, gamma: float) -> NStep:
    if steps > 1 and not hasattr(agent, "gamma"):
        raise ConfigError(
            f"num_steps = {steps} sums discounted rewards: give {type(agent).__name__} an attribute gamma."
        )
    return NStep(gamma, steps)


def _relabelled(agent: Any, view: OneStep | NStep, described: EnvironmentDescription, seed: int) -> Hindsight:
    if not is_goal_space(described.spaces.observation):
        raise ConfigError(
            "HER=True needs observations with the keys observation, achieved_goal and desired_goal, as those of "
            f"Gymnasium-Robotics; {described.name} has others. Return such a dict from the environment."
        )
    if agent.reward_done_func is None:
        raise ConfigError(
            f"HER=True needs {type(agent).__name__}.reward_done_func(self, next_goal, goal), which returns what a step "
            "earns and whether it ends the episode."
        )
    return Hindsight(view, agent.reward_done_func, generator(seed, "hindsight"))
