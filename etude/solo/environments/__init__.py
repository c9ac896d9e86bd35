"""Environments of agents of one's own: whatever the user gives as `env`, behind Gymnasium's interface."""

from etude.solo.environments.factory import EnvironmentDescription, UserEnvironments

__all__ = ["EnvironmentDescription", "UserEnvironments"]
