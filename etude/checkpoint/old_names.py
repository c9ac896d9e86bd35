"""Names of earlier versions, which old checkpoints and run directories hold. A hyperparameter, a part of an agent or a
field of a state that is renamed gets a line here, so that old files stay readable.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from etude.base.data import CLIPPED, LOG_PROB, SAMPLED_ACTION

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
OF_ALGORITHMS = {  # further hyperparameters
    "appo": {"gae_lambda": "trace_lambda"},
    "impala": {"gae_lambda": "trace_lambda"},
}
ADDED: dict[str, dict[str, Any]] = {  # hyperparameters that were not: what runs did
    "ars": {"squash": True},
    "dreamer_v3": {"replay_coefficient": 0.0},
}
_PPO = (
    (re.compile(r"(^|\.)penalty\.value$"), r"\1objective.kl_coefficient"),
    (re.compile(r"(^|\.)returns\.value$"), r"\1value_normaliser.moments"),
)
WEIGHTS = {"airl": _PPO, "gail": _PPO, "ppo": _PPO}  # names of weights
EXPLORERS = {"SpreadEpsilonGreedy": "PerActorEpsilonGreedy", "SpreadGaussianNoise": "PerActorGaussianNoise"}
COMPONENTS = {"perturbation": "layer_noise"}  # of the state of a run
STATE = {"updates": "gradient_steps"}  # of the progress, and of gradients that wait to be applied
SESSION = {"rounds": "collections", **STATE}  # of the progress of an agent of one's own
AGENT = {"record": "history"}  # of a file that an agent of one's own saved
ROLLOUT = {"contributions": "worker_gradients"}
EXTRAS = {"memory": "recurrent_state"}  # of the steps of recurrent agents
ENVIRONMENT = {"memory": "explorer_state", "recalled": "recurrent_state"}  # of each environment of a rollout
RUN_CONFIG = {"cadence": "schedule"}  # of config.json
_EXAMPLES = re.compile(r"^lagged_(?=(actor|critic)s?\.)")  # in the names of weights of example agents
_PARTS = (re.compile(r"_lagged(?=\.|$)"), "_target")  # in the names of weights: target networks


def present_state(state: Any) -> Any:
    """The state of a run with the names of this version. What is no such state comes back as it is: it is checked
    where it is restored."""
    if not isinstance(state, Mapping):
        return state
    renamed = _with_names(state, COMPONENTS)
    algorithm: Any = None
    if isinstance(described := state.get("description"), Mapping):
        renamed["description"] = present_config(described)
        algorithm = described.get("algorithm")
    for component in ("progress", "rollout"):
        if component in state:
            renamed[component] = _renamed(state[component], STATE)
    for component in {"replay", "rollout"} & renamed.keys():
        renamed[component] = _with_samples(renamed[component])
    if isinstance(rollout := renamed.get("rollout"), Mapping):
        # Only the keys of environments: steps that were collected ahead may hold others of the same name.
        renamed["rollout"], states = _with_names(rollout, ROLLOUT), []
        if isinstance(environments := rollout.get("environments"), Mapping):
            environments = {
                number: _with_names(one, ENVIRONMENT) if isinstance(one, Mapping) else one
                for number, one in environments.items()
            }
            renamed["rollout"]["environments"] = environments
            states = [one.get("recurrent_state") for one in environments.values() if isinstance(one, Mapping)]
        # Of agents with a state: extras of other rollouts are those of their explorers.
        if any(isinstance(state, np.ndarray) and state.size > 0 for state in states):
            steps = {"replay", "rollout"} & renamed.keys()
            renamed |= {component: _with_present_extras(renamed[component]) for component in steps}
    if "engine" in state:
        rules = (_PARTS, *WEIGHTS.get(str(algorithm), ()))
        renamed["engine"] = _with_present_weights(state["engine"], rules)
    return renamed


def present_agent(state: Any, weights: Collection[str]) -> Any:
    """What an agent of one's own saved, with the names of this version; see `present_state`.

    weights: the names of the agent's variables. Those in the file are the user's, and stay, except where only the
    attributes of the example agents were renamed.
    """
    if not isinstance(state, Mapping):
        return state
    renamed = dict(state)
    if isinstance(agent := state.get("agent"), Mapping):
        renamed["agent"] = _with_attributes_of(_with_names(agent, AGENT), "weights", weights)
    if isinstance(training := state.get("training"), Mapping):
        present = {**training}
        for component in {"progress", "rollout"} & training.keys():
            present[component] = _renamed(training[component], SESSION)
        progress: Any = present.get("progress")
        for name in {"targets", "target_updates"} & progress.keys() if isinstance(progress, dict) else ():
            del progress[name]  # how many; that of the earlier setting, and so of no use for another one
            progress["followed"] = [progress.get("step"), progress.get("batches")]
        if isinstance(engine := training.get("engine"), Mapping):
            present["engine"] = _with_attributes_of(engine, "values", weights)
        renamed["training"] = present
    return renamed


def _with_attributes_of(state: Mapping[str, Any], field: str, weights: Collection[str]) -> dict[str, Any]:
    """A state whose `field` holds values by the names of weights: those of the example agents, renamed where the agent
    has the new name."""
    if not isinstance(values := state.get(field), Mapping):
        return dict(state)
    other = {name: _EXAMPLES.sub("target_", name) for name in values if isinstance(name, str) and name not in weights}
    return {**state, field: {other[n] if other.get(n) in weights else n: value for n, value in values.items()}}


def present_config(described: Mapping[str, Any]) -> dict[str, Any]:
    """The description of a run, or its config.json, with the names of this version."""
    renamed = _with_names(described, RUN_CONFIG)
    if isinstance(config := described.get("config"), Mapping):
        own = OF_ALGORITHMS.get(str(described.get("algorithm")), {})
        names = {name: HYPERPARAMETERS.get(str(name), str(name)) for name in config}
        present = {own.get(names[name], names[name]): value for name, value in config.items()}
        renamed["config"] = ADDED.get(str(described.get("algorithm")), {}) | present
    if "explorer" in described:
        renamed["explorer"] = _with_present_classes(described["explorer"])
    return renamed


def _with_present_classes(value: Any) -> Any:
    if isinstance(value, dict):
        kind = value.get("class")
        own = {"class": EXPLORERS[kind]} if isinstance(kind, str) and kind in EXPLORERS else {}
        return {key: _with_present_classes(item) for key, item in value.items()} | own
    return [_with_present_classes(item) for item in value] if isinstance(value, list) else value


def _with_present_extras(value: Any) -> Any:
    if isinstance(value, dict):
        found = {key: _with_present_extras(item) for key, item in value.items()}
        extras = found.get("extras")
        return found | {"extras": _with_names(extras, EXTRAS)} if isinstance(extras, dict) else found
    return type(value)(map(_with_present_extras, value)) if type(value) in (list, tuple) else value


def _with_samples(value: Any) -> Any:
    """Rings and steps with the samples of Box actions that `log_prob` is of, which stood in the place of what was
    executed."""
    if not isinstance(value, dict):
        return type(value)(map(_with_samples, value)) if type(value) in (list, tuple) else value
    found = {key: _with_samples(item) for key, item in value.items()}
    action, extras, built = found.get("action"), found.get("extras"), found.get("built")
    if not (isinstance(action, np.ndarray) and isinstance(extras, dict)) or action.dtype.kind != "f":
        return found
    if LOG_PROB in extras and extras.keys().isdisjoint((SAMPLED_ACTION, CLIPPED)):
        found["extras"] = {**extras, SAMPLED_ACTION: action}
        if isinstance(built, dict) and isinstance(built.get("extras"), dict):
            row = [list(action.shape[1:]), str(action.dtype)]
            found["built"] = {**built, "extras": {**built["extras"], SAMPLED_ACTION: row}}
    return found


def _with_names(table: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in table.items()}


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {names.get(key, key): _renamed(item, names) for key, item in value.items()}
    return type(value)(_renamed(item, names) for item in value) if type(value) in (list, tuple) else value


def _with_present_weights(value: Any, rules: Sequence[tuple[re.Pattern[str], str]]) -> Any:
    if not isinstance(value, dict):
        return value
    return {_present_weight(key, rules): _with_present_weights(item, rules) for key, item in value.items()}


def _present_weight(name: Any, rules: Sequence[tuple[re.Pattern[str], str]]) -> Any:
    if isinstance(name, str):
        for old, new in rules:
            name = old.sub(new, name)
    return name
