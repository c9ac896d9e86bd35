"""Environments as agents see them: made from a name or a callable, adapted, stepped together, checked."""

from etude.envs.adapter import AdaptedEnvironment
from etude.envs.make import make_environment, make_environments
from etude.envs.registry import EnvironmentSpec
from etude.envs.vector import LoopEnvironments

__all__ = ["AdaptedEnvironment", "EnvironmentSpec", "LoopEnvironments", "make_environment", "make_environments"]
