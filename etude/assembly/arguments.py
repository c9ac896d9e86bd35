"""The keyword arguments of a run: which are for its setup, and which change its config."""

from __future__ import annotations

import dataclasses
from typing import Any

from etude.agent import Agent
from etude.algorithms import find
from etude.assembly.agents import config_for
from etude.assembly.setup import Setup
from etude.config.other_libraries import explain
from etude.errors import ConfigError

OWN = ("config", "policies", "data", "run_dir", "explorer")  # arguments of `Run` that are none of either


def settle(algorithm: str | Agent, env: Any, config: Any, given: dict[str, Any]) -> tuple[Setup, Any]:
    """(setup, config) from the keyword arguments of a run: fields of `Setup`, and fields of the algorithm's config,
    which change its preset for this environment, or its defaults. ConfigError for all others."""
    of_setup = [field.name for field in dataclasses.fields(Setup)]
    changes = {name: value for name, value in given.items() if name not in of_setup}
    setup = Setup(**{name: value for name, value in given.items() if name in of_setup})
    if not changes:
        return setup, config
    held = type(algorithm.config) if isinstance(algorithm, Agent) else find(algorithm)[1]
    of_config = [field.name for field in dataclasses.fields(held) if field.init]
    if unknown := changes.keys() - set(of_config):
        raise ConfigError(explain("Run", unknown, [*OWN, *of_setup, *of_config]))
    if isinstance(algorithm, Agent) or config is not None:
        where = "The agent" if isinstance(algorithm, Agent) else "config="
        raise ConfigError(
            f"{where} and {', '.join(changes)}= both say what the hyperparameters are. Put them into the config: "
            f"dataclasses.replace(config, {', '.join(f'{name}=...' for name in changes)})."
        )
    return setup, config_for(algorithm, env, **changes)
