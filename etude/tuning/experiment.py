"""What a study tunes: an algorithm, an environment, and everything that its trials have in common."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import etude.engines as engines
import etude.presets as presets
from etude.agent import Agent
from etude.algorithms import find, named
from etude.base.errors import CheckpointError, ConfigError
from etude.checkpoint import trust
from etude.checkpoint.config_json import from_json, to_json
from etude.envs import name_of
from etude.envs.configured import is_plain
from etude.training.assembly.agents import fitted
from etude.training.assembly.described import agents_for, environment_from, plain_config, plain_environment, taken_from
from etude.training.description import Execution, RunDescription, config_for
from etude.training.kinds import kind_of
from etude.training.kinds.kind import check_shared_replay
from etude.tuning.journal import FORMAT

REFUSED = ("run_dir", "replay_folder", "train_only")  # what trials cannot share
OF_REPLAY = ("buffer_size", "priority_exponent")  # fields that are the same where a replay is shared
MAY_DIFFER = ("device", "workers")  # of a study that goes on: results do not depend on them


def described_trials(algorithm: str | Agent, env: Any, further: Mapping[str, Any]) -> RunDescription:
    """What all trials of a study have in common: its run, with the config filled in. further: arguments of `Run`, and
    fields of the config. Raises ConfigError for others, and what `Run` raises where the algorithm cannot be used for
    the environment."""
    if isinstance(algorithm, Mapping):
        raise ConfigError(
            "A study tunes one algorithm; a dict of policies has several. Give a name, or an agent, and policies=."
        )
    if refused := further.keys() & set(REFUSED):
        raise ConfigError(f"A study takes no {', '.join(sorted(refused))}: each trial has a run directory of its own.")
    if refused := further.keys() & {"ray", "devices", "strategy"}:
        raise ConfigError(
            f"A study takes no {', '.join(sorted(refused))}: its trials are carried out where jobs= or executor= says."
        )
    engines.choose(further.get("engine", "auto"))  # raises where there is none, before there is a folder
    made = RunDescription.of(algorithm, env, further)
    fitted(made.environment.configured(), functools.partial(agents_for, made))
    if isinstance(algorithm, Agent):
        return made
    config = config_for(algorithm, made.environment.env) if made.config is None else made.config
    return replace(made, algorithm=named(algorithm), config=config)


def preset_steps(made: RunDescription) -> int | None:
    """How many steps the preset of an algorithm for an environment takes; None where there is none."""
    algorithm, env = made.algorithm, made.environment.env
    preset = presets.lookup(algorithm, env) if isinstance(algorithm, str) and isinstance(env, str) else None
    return preset.steps if preset else None


def algorithm_name(made: RunDescription) -> str:
    """That of the algorithm; of an agent of one's own, that of its class."""
    return made.algorithm if isinstance(made.algorithm, str) else type(made.algorithm).__name__.lower()


def study_name(made: RunDescription) -> str:
    """What the folder of a study is called."""
    return f"{algorithm_name(made)}-{name_of(made.environment.env)}"


def check_trials_share_replay(made: RunDescription, changed: Iterable[str]) -> None:
    """Raise ConfigError where trials cannot store into one replay. changed: the fields that differ among them."""
    if fixed := [name for name in OF_REPLAY if name in changed]:
        raise ConfigError(
            f"shared_replay = True, but {', '.join(fixed)} would differ among the runs that store into the replay. "
            "Leave it as it is, or leave shared_replay off."
        )
    for name, given in (("data", made.data), ("rewrite", made.execution.rewrite)):
        if given:
            raise ConfigError(
                f"shared_replay = True takes no {name}=: the replay holds what trials collect, as the environment "
                "returned it. Leave one of the two out."
            )
    agent = made.algorithm if isinstance(made.algorithm, Agent) else find(made.algorithm)[0](made.config)
    check_shared_replay(kind_of(agent), agent)


def header(made: RunDescription) -> dict[str, Any]:
    """What a study tunes, as plain data, with signatures of what its environment imports."""
    config, functions = plain_config(made.own_config)
    environment = made.environment.configured()
    return {
        "format": FORMAT,
        "algorithm": algorithm_name(made),
        "own_agent": isinstance(made.algorithm, Agent),
        **plain_environment(environment),
        "config": config,
        "functions": functions,
        "options": {name: _plain(value) for name, value in sorted(made.options().items())},
        "signatures": trust.signatures(trust.claims(environment, None)),
    }


def _plain(value: Any) -> Any:
    """An option as plain data; of an object, a text that is the same in every process."""
    if is_plain(value):
        return to_json(value)
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return {"object": re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))}


def _stored(value: Any) -> bool:
    """Whether an option is plain data as `_plain` describes it, without objects."""
    if isinstance(value, list):
        return all(map(_stored, value))
    return not (isinstance(value, dict) and set(value) == {"object"})


def difference(held: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """Where a study that is there differs from the one that is asked for; '' where it goes on."""
    for name in asked:
        if name == "signatures":
            continue
        before, now = held.get(name), asked[name]
        if name == "options" and isinstance(before, dict):  # those at their defaults were written once, too
            before = {key: value for key, value in before.items() if value != getattr(Execution(), key, None)}
        if isinstance(before, dict) and isinstance(now, dict):
            keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
            keys = [key for key in keys if not (name == "options" and key in MAY_DIFFER)]
            if keys:
                return f"{keys[0]} was {before.get(keys[0])!r}, and is {now.get(keys[0])!r} now"
        elif before != now:
            return f"{name} was {before!r}, and is {now!r} now"
    return ""


def experiment_from(held: Mapping[str, Any], given: Mapping[str, Any], trusted: bool) -> dict[str, Any]:
    """The arguments of a study from its header: algorithm, env, config, and options.

    given: in the place of those in the header. Raises ConfigError for what has to be given again, UntrustedError where
    the environment would be imported that its user did not name here, unless it is `trusted`.
    """
    if held.get("format") != FORMAT:
        raise CheckpointError(f"The journal has format {held.get('format')!r}; expected {FORMAT}.")
    found = dict(given)
    if held["own_agent"] and "algorithm" not in given:
        raise ConfigError(f"This study tunes an agent of your own, {held['algorithm']}: give it again, as algorithm=.")
    if held["functions"] and not {"config", "algorithm"} & given.keys():
        what = ", ".join(held["functions"].values())
        raise ConfigError(f"This study's config has the function {what}, which is not stored: give config= again.")
    environment, made_with = environment_from(dict(held), given.get("env"), dict(given))
    options = {name: value for name, value in held["options"].items() if name not in given}
    for name, value in options.items():
        if not _stored(value):
            raise ConfigError(
                f"This study was given {name} = {value!r}, which is not stored: give it again, as {name}=."
            )
    if not trusted:
        trust.require(held, *taken_from(dict(held), given.get("env"), made_with, {"replay_folder": None, **given}))
    found |= {"env": environment, **options}
    found.setdefault("algorithm", held["algorithm"])
    if "config" not in given and not held["own_agent"]:
        found["config"] = from_json(find(held["algorithm"])[1], held["config"])
    return found
