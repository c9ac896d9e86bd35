"""The keyword arguments of a run: what is for its environment, what for its setup, and what changes its config."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from etude.agent import Agent
from etude.algorithms import find
from etude.base.errors import ConfigError
from etude.base.other_libraries import explain
from etude.envs import configured
from etude.training.build.agents import config_for
from etude.training.build.setup import Setup

OWN = ("config", "policies", "data", "run_dir", "explorer")  # arguments of `Run` by themselves
OF_ENVIRONMENT = ("env_args", "wrappers")


class Settled(NamedTuple):
    """What a run is made from."""

    environment: Any
    setup: Setup
    config: Any


def settle(algorithm: str | Agent, env: Any, config: Any, given: dict[str, Any]) -> Settled:
    """From the keyword arguments of a run: `env_args` and `wrappers` of its environment; fields of `Setup`; and fields
    of the algorithm's config, which change its preset for this environment, or its defaults. ConfigError for others."""
    of_setup = [field.name for field in dataclasses.fields(Setup)]
    setup = Setup(**{name: value for name, value in given.items() if name in of_setup})
    environment = configured(env, *(given.get(name) for name in OF_ENVIRONMENT))
    changes = {name: value for name, value in given.items() if name not in (*of_setup, *OF_ENVIRONMENT)}
    return Settled(environment, setup, _changed(algorithm, env, config, changes, of_setup) if changes else config)


def _changed(algorithm: str | Agent, env: Any, config: Any, changes: dict[str, Any], of_setup: list[str]) -> Any:
    held = type(algorithm.config) if isinstance(algorithm, Agent) else find(algorithm)[1]
    of_config = [field.name for field in dataclasses.fields(held) if field.init]
    if unknown := changes.keys() - set(of_config):
        raise ConfigError(explain("Run", unknown, [*OWN, *OF_ENVIRONMENT, *of_setup, *of_config]))
    if isinstance(algorithm, Agent) or config is not None:
        where = "The agent" if isinstance(algorithm, Agent) else "config="
        raise ConfigError(
            f"{where} and {', '.join(changes)}= both say what the hyperparameters are. Put them into the config: "
            f"dataclasses.replace(config, {', '.join(f'{name}=...' for name in changes)})."
        )
    return config_for(algorithm, env, **changes)
