"""Names of earlier versions, which old checkpoints and run directories hold. A hyperparameter, a part of an agent or a
field of a state that is renamed gets a line here, so that old files stay readable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HYPERPARAMETERS = {
    "clip": "clip_range",
    "conservatism": "cql_alpha",
    "deviation": "sigma",
    "entropy": "entropy_coefficient",
    "highest": "v_max",
    "lambda_": "gae_lambda",
    "learn_every": "train_every",
    "lowest": "v_min",
    "minibatch": "minibatch_size",
    "replay_size": "buffer_size",
    "rollout": "rollout_length",
    "stored_memory": "stored_state",
    "target_every": "target_update_every",
    "target_noise_reach": "target_noise_clip",
    "updates": "gradient_steps",
    "value_clip": "value_clip_range",
    "value_cost": "value_coefficient",
    "wanted_gap": "target_gap",
    "warmup": "learning_starts",
}
STATE = {"updates": "gradient_steps"}  # of the progress, and of gradients that wait to be applied
ROLLOUT = {"contributions": "worker_gradients"}
ENVIRONMENT = {"memory": "explorer_state", "recalled": "recurrent_state"}  # of each environment of a rollout
RUN_CONFIG = {"cadence": "schedule"}  # of config.json
_PARTS = (re.compile(r"_lagged(?=\.|$)"), "_target")  # in the names of weights: target networks


def present_state(state: Any) -> Any:
    """The state of a run with the names of this version. What is no such state comes back as it is: it is checked
    where it is restored."""
    if not isinstance(state, Mapping):
        return state
    renamed = dict(state)
    if isinstance(described := state.get("description"), Mapping):
        renamed["description"] = present_config(described)
    for component in ("progress", "rollout"):
        if component in state:
            renamed[component] = _renamed(state[component], STATE)
    if isinstance(rollout := renamed.get("rollout"), Mapping):
        renamed["rollout"] = _present_rollout(rollout)
    if "engine" in state:
        renamed["engine"] = _with_present_parts(state["engine"])
    return renamed


def present_config(described: Mapping[str, Any]) -> dict[str, Any]:
    """The description of a run, or its config.json, with the names of this version."""
    renamed = {RUN_CONFIG.get(name, name): value for name, value in described.items()}
    if isinstance(config := described.get("config"), Mapping):
        renamed["config"] = {HYPERPARAMETERS.get(name, name): value for name, value in config.items()}
    return renamed


def _present_rollout(rollout: Mapping[str, Any]) -> dict[str, Any]:
    """Only the keys of environments are renamed: steps that were collected ahead may hold others of the same name."""
    renamed = _with_names(rollout, ROLLOUT)
    if isinstance(environments := rollout.get("environments"), Mapping):
        renamed["environments"] = {
            number: _with_names(one, ENVIRONMENT) if isinstance(one, Mapping) else one
            for number, one in environments.items()
        }
    return renamed


def _with_names(table: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in table.items()}


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {names.get(key, key): _renamed(item, names) for key, item in value.items()}
    return type(value)(_renamed(item, names) for item in value) if type(value) in (list, tuple) else value


def _with_present_parts(value: Any) -> Any:
    if isinstance(value, dict):
        old, new = _PARTS
        return {
            old.sub(new, key) if isinstance(key, str) else key: _with_present_parts(item) for key, item in value.items()
        }
    return value
