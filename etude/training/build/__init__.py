"""From an algorithm, an environment and a few settings to the parts of a run. The one place that knows all axes by
name."""

from etude.training.build.agents import agent_for, config_for, multi_agent_for
from etude.training.build.arguments import settle
from etude.training.build.described import (
    built_as_described,
    check_description,
    config_from,
    environment_from,
    plain_config,
    plain_environment,
    plain_policies,
    policies_from,
    taken_from,
)
from etude.training.build.replays import example_bytes, recorded_replay_for, replay_for
from etude.training.build.rollouts import acting_weights, best_for, gradients_for, rollout_for, together
from etude.training.build.setup import EVALUATION, Setup, parallel

__all__ = [
    "EVALUATION", "Setup", "acting_weights", "agent_for", "best_for", "built_as_described", "check_description",
    "config_for", "config_from", "environment_from", "example_bytes", "gradients_for", "parallel", "plain_config",
    "plain_environment", "plain_policies", "policies_from", "recorded_replay_for", "replay_for", "rollout_for",
    "settle", "multi_agent_for", "taken_from", "together",
]  # fmt: skip
