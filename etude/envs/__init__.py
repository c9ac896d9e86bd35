"""Environments as agents see them: made from a name or a callable, adapted, stepped together, checked."""

from etude.envs.actions import NormalisedActions, RawActions
from etude.envs.adapter import AdaptedEnvironment, Translation
from etude.envs.check import check_environment
from etude.envs.configured import (
    ConfiguredEnvironment,
    as_given,
    configured,
    counted_from,
    frame_stack_of,
    like,
    with_global_state,
)
from etude.envs.make import (
    Finding,
    GoalOutcome,
    action_space_of,
    choose_vectorization,
    examine,
    make_environment,
    make_environments,
    make_for_evaluation,
    with_origins_of,
)
from etude.envs.multi_agent import MultiAgentEnvironment
from etude.envs.native import NativeEnvironments
from etude.envs.registry import EnvironmentSpec, name_of
from etude.envs.vector import LoopEnvironments

__all__ = [
    "AdaptedEnvironment", "NormalisedActions", "ConfiguredEnvironment", "EnvironmentSpec", "Finding", "GoalOutcome",
    "LoopEnvironments", "NativeEnvironments", "RawActions", "MultiAgentEnvironment", "Translation", "action_space_of",
    "as_given", "check_environment", "choose_vectorization", "configured", "counted_from", "examine", "frame_stack_of",
    "like", "make_environment", "make_environments", "make_for_evaluation", "name_of", "with_global_state",
    "with_origins_of",
]  # fmt: skip
