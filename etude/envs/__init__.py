"""Environments as agents see them: made from a name or a callable, adapted, stepped together, checked."""

from etude.envs.adapter import AdaptedEnvironment
from etude.envs.check import Finding, check_environment
from etude.envs.make import choose_vectorization, make_environment, make_environments
from etude.envs.native import NativeEnvironments
from etude.envs.registry import EnvironmentSpec, name_of
from etude.envs.vector import LoopEnvironments

__all__ = [
    "AdaptedEnvironment",
    "EnvironmentSpec",
    "Finding",
    "LoopEnvironments",
    "NativeEnvironments",
    "check_environment",
    "choose_vectorization",
    "make_environment",
    "make_environments",
    "name_of",
]
