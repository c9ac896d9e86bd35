"""From the state of a run to the arguments that make it again."""

from __future__ import annotations

from typing import Any

from etude.agent import Agent
from etude.checkpoint import trust as trust_
from etude.offline.loading import CheckpointedData
from etude.training.build.described import (
    check_description,
    config_from,
    environment_from,
    policies_from,
    taken_from,
)
from etude.training.build.exploration import explorer_from


def saved_arguments(
    state: dict[str, Any], env: Any, config: Any, agent: Agent | None, given: dict[str, Any], trust: bool
) -> dict[str, Any]:
    """The arguments of `Run` for the state of one. env, config, agent, given: what is given anew in the place of what
    was saved. Raises UntrustedError for what would be imported or written to, unless `trust`."""
    described, given = check_description(state), dict(given)
    if "replay" not in state:
        given["replay_folder"] = None  # it belongs to the run that trains
    own, made_with = environment_from(described, env, given)
    if not trust:
        trust_.require(described, *taken_from(described, env, made_with, given))
    if agent is None and config is None:
        config = config_from(described)
    if "explorer" not in given:
        given["explorer"] = explorer_from(described.get("explorer"))
    return {
        **described["setup"],
        "engine": described["engine"],
        **given,
        **made_with,
        "algorithm": described["algorithm"] if agent is None else agent,
        "env": own,
        "config": config,
        "policies": policies_from(described),
        "data": CheckpointedData(described["data"]) if described.get("data") else None,
    }
