"""The arguments of a run that change the config of its algorithm, or its environment."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import etude.presets as presets
from etude.agent import Agent
from etude.algorithms import find
from etude.base.errors import ConfigError
from etude.base.other_libraries import explain
from etude.envs import ConfiguredEnvironment, configured, counted_from
from etude.training.build.agents import config_for
from etude.training.schedule import Schedule
from etude.training.setup import Setup

# Arguments of `Run` by themselves.
OWN = ("config", "policies", "train_only", "data", "run_dir", "explorer", "rewrite", "start_from")
OF_ENVIRONMENT = ("env_args", "wrappers", "frame_stack")
ARGUMENTS = (*OWN, *OF_ENVIRONMENT, *(field.name for field in dataclasses.fields(Setup)))  # what is no hyperparameter


class AsSaved:
    """The default of arguments of `etude.load`: what the checkpoint says."""

    def __repr__(self) -> str:
        return "AS_SAVED"


AS_SAVED: Any = AsSaved()


def with_hyperparameters(
    algorithm: str | Agent | Mapping[str, Any],
    env: Any,
    config: Any,
    changes: dict[str, Any],
    saved: Callable[[], Any] | None = None,
) -> Any:
    """The config of a run: `config`, or the preset or the defaults with these fields changed. ConfigError for names
    that are no fields, and where there is a config already. saved: returns what is changed in their place."""
    if not changes:
        return config
    if isinstance(algorithm, Mapping):
        raise ConfigError(
            f"{', '.join(changes)}= is of one algorithm, or unknown; give each policy an agent with its own config: "
            'Run({"left": PPO(config), ...}, env).'
        )
    given = type(algorithm.config) if isinstance(algorithm, Agent) else find(algorithm)[1]
    of_config = [field.name for field in dataclasses.fields(given) if field.init]
    if unknown := changes.keys() - set(of_config):
        of_train = {"callbacks", *(field.name for field in dataclasses.fields(Schedule))}
        if misplaced := sorted(unknown & of_train):
            raise ConfigError(
                f"Run takes no {', '.join(misplaced)}. Give train what a run reports and when it evaluates and saves: "
                f"run.train(100_000, {', '.join(f'{name}=...' for name in misplaced)})."
            )
        raise ConfigError(explain("Run", unknown, [*ARGUMENTS, *of_config]))
    if isinstance(algorithm, Agent) or config is not None:
        where = "The agent" if isinstance(algorithm, Agent) else "config="
        raise ConfigError(
            f"{where} and {', '.join(changes)}= both say what the hyperparameters are. Put them into the config: "
            f"dataclasses.replace(config, {', '.join(f'{name}=...' for name in changes)})."
        )
    return config_for(algorithm, env, **changes) if saved is None else dataclasses.replace(saved(), **changes)


def environment_for(env: Any, args: Any, wrappers: Iterable[Any] | None, frame_stack: int | None) -> Any:
    """What a run makes its environments from. Without `wrappers`, an environment of a family that presets preprocess
    has the family's, with the family's arguments and stacked frames where these are not given."""
    if isinstance(env, ConfiguredEnvironment):  # of a run that goes on
        return counted_from(environment_for(env.env, args, wrappers, frame_stack), env.origins or ())
    usual = presets.preprocessing(env) if isinstance(env, str) and wrappers is None else None
    if usual is not None:
        wrappers = usual.wrappers
        args = {**usual.env_args, **args} if isinstance(args, dict) else usual.env_args if args is None else args
        frame_stack = usual.frame_stack if frame_stack is None else frame_stack
    return configured(env, args, wrappers, 1 if frame_stack is None else frame_stack)


def environment_arguments(env: Any) -> dict[str, Any]:
    """The arguments of `Run` that say how environments are made, of what `environment_for` returned."""
    made = env if isinstance(env, ConfiguredEnvironment) else ConfiguredEnvironment(env, {}, ())
    return {"env": made.env, "env_args": made.args, "wrappers": made.wrappers, "frame_stack": made.frame_stack}


def learning_arguments(algorithm: str | Agent, config: Any) -> dict[str, Any]:
    """The arguments of `Run` that say what learns: this algorithm with this config."""
    if isinstance(algorithm, str):
        return {"algorithm": algorithm, "config": config}
    agent = copy.copy(algorithm)
    agent.config = config
    return {"algorithm": agent}


def loading_arguments(algorithm: str | Agent, config: Any) -> dict[str, Any]:
    """The same for a run that is loaded: what `etude.load` takes in the place of what was saved."""
    made = learning_arguments(algorithm, config)
    return {"agent": made["algorithm"]} if isinstance(algorithm, Agent) else {"config": config}
