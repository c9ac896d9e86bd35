"""From an algorithm, an environment and a few settings to the parts of a run. The one place that knows all axes by
name."""

from etude.assembly.agents import agent_for, config_for, several_for
from etude.assembly.arguments import settle
from etude.assembly.described import (
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
from etude.assembly.replays import example_bytes, recorded_replay_for, replay_for
from etude.assembly.rollouts import acting_weights, best_for, gradients_for, rollout_for, together
from etude.assembly.setup import EVALUATION, Setup, parallel

__all__ = [
    "EVALUATION", "Setup", "acting_weights", "agent_for", "best_for", "built_as_described", "check_description",
    "config_for", "config_from", "environment_from", "example_bytes", "gradients_for", "parallel", "plain_config",
    "plain_environment", "plain_policies", "policies_from", "recorded_replay_for", "replay_for", "rollout_for",
    "settle", "several_for", "taken_from", "together",
]  # fmt: skip
