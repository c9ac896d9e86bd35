"""From an algorithm, an environment and a few settings to the parts of a run. The one place that knows all axes by
name."""

from etude.serving import preset_name
from etude.training.build.acting import TrainedPolicy
from etude.training.build.agents import agent_for, config_for, fitted, multi_agent_for
from etude.training.build.arguments import (
    environment_arguments,
    environment_for,
    learning_arguments,
    loading_arguments,
    with_hyperparameters,
)
from etude.training.build.assemble import Assembled, assemble
from etude.training.build.by_policy import agents_for
from etude.training.build.described import (
    built_as_described,
    check_algorithm,
    check_description,
    config_from,
    describe,
    environment_from,
    members_from,
    plain_config,
    plain_environment,
    plain_policies,
    policies_from,
    taken_from,
    train_only_from,
    with_own_generators,
)
from etude.training.build.evaluator import RunEvaluator, evaluator_for
from etude.training.build.exploration import best_for
from etude.training.build.parts import (
    RunParts,
    context_for,
    data_for,
    engine_for,
    recorded_spaces,
    run_parts,
    with_environments,
)
from etude.training.build.replicas import (
    check_alike,
    check_launched,
    directory_for,
    given_directory,
    replicas_for,
    resumed_directory,
)
from etude.training.build.rewriting import as_rewriters, rewriters_from
from etude.training.build.starting import start_from
from etude.training.build.usable import (
    check_collects_steps,
    check_replay,
    check_spaces,
    check_takes_tasks,
    check_team,
    fitting,
    uses_data,
)

__all__ = [
    "Assembled", "RunEvaluator", "RunParts", "TrainedPolicy", "agent_for", "agents_for",
    "as_rewriters", "assemble", "best_for", "built_as_described", "check_algorithm", "check_alike",
    "check_collects_steps", "check_description", "check_launched", "check_replay", "check_spaces", "check_takes_tasks",
    "check_team",
    "config_for", "config_from", "context_for", "data_for", "describe", "directory_for", "engine_for",
    "environment_arguments", "environment_for", "environment_from", "evaluator_for", "fitted", "fitting",
    "given_directory", "learning_arguments", "loading_arguments", "members_from", "multi_agent_for", "plain_config",
    "plain_environment", "plain_policies", "policies_from", "preset_name", "recorded_spaces", "replicas_for",
    "resumed_directory", "rewriters_from", "run_parts", "start_from", "taken_from", "train_only_from",
    "uses_data", "with_environments",
    "with_hyperparameters", "with_own_generators",
]  # fmt: skip
