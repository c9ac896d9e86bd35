"""From an algorithm, an environment and a few settings to the parts of a run. The one place that knows all axes by
name."""

from etude.training.build.acting import TrainedPolicy
from etude.training.build.agents import agent_for, config_for, multi_agent_for
from etude.training.build.arguments import environment_for, with_hyperparameters
from etude.training.build.assemble import Assembled, assemble
from etude.training.build.described import (
    built_as_described,
    check_description,
    config_from,
    describe,
    environment_from,
    plain_config,
    plain_environment,
    plain_policies,
    policies_from,
    taken_from,
)
from etude.training.build.exploration import best_for
from etude.training.build.parts import RunParts, data_for, engine_for, run_parts, with_environments
from etude.training.build.saved_arguments import saved_arguments
from etude.training.build.saving import check_run_state, save, stopped_by
from etude.training.build.starting import start_from
from etude.training.build.usable import (
    check_collects_steps,
    check_spaces,
    check_takes_tasks,
    check_team,
    fitting,
    uses_data,
)

__all__ = [
    "Assembled", "RunParts", "TrainedPolicy", "agent_for", "assemble", "best_for", "built_as_described",
    "check_collects_steps", "check_description", "check_run_state", "check_spaces", "check_takes_tasks", "check_team",
    "config_for", "config_from", "data_for", "describe",
    "engine_for", "environment_for", "environment_from", "fitting", "multi_agent_for", "plain_config",
    "plain_environment", "plain_policies", "policies_from", "run_parts", "save", "saved_arguments", "stopped_by",
    "taken_from", "uses_data",
    "start_from", "with_environments", "with_hyperparameters",
]  # fmt: skip
