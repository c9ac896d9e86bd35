"""What a study tunes: an algorithm, an environment, and everything that its trials have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
from etude.training.assembly.agents import OF_ENVIRONMENT, config_for, environment_for, fitted, with_hyperparameters
from etude.training.assembly.described import agents_for, environment_from, plain_config, plain_environment, taken_from
from etude.training.kinds import kind_of
from etude.training.kinds.kind import check_shared_replay
from etude.tuning.journal import FORMAT

OPTIONS = (  # arguments of `Run` that all trials have in common
    "engine", "device", "compiled", "environments", "workers", "overlap", "vectorization", "keep_info", "env_args",
    "wrappers", "frame_stack", "data", "policies", "explorer", "rewrite", "start_from",
)  # fmt: skip
IN_STATE = ("data", "policies", "start_from")  # those of a new run, which a loaded one has already
OF_REPLAY = ("buffer_size", "priority_exponent")  # fields that are the same where a replay is shared
MAY_DIFFER = ("device", "workers")  # of a study that goes on: results do not depend on them


def loading_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the options of a new run that a loaded one takes, too."""
    return {name: value for name, value in options.items() if name not in IN_STATE}


@dataclass(frozen=True)
class Experiment:
    """An algorithm on an environment. options: further arguments of `Run`. steps: of the preset, if there is one."""

    algorithm: str | Agent
    env: Any
    config: Any
    options: Mapping[str, Any]
    steps: int | None

    @staticmethod
    def of(algorithm: str | Agent, env: Any, config: Any, further: Mapping[str, Any]) -> Experiment:
        """From the arguments of a study. further: arguments of `Run`, and fields of the config. Raises ConfigError for
        others, and what `Run` raises where the algorithm cannot be used for the environment."""
        if isinstance(algorithm, Mapping):
            raise ConfigError(
                "A study tunes one algorithm; a dict of policies has several. Give a name, or an agent, and policies=."
            )
        options = {name: value for name, value in further.items() if name in OPTIONS}
        fields = {name: value for name, value in further.items() if name not in OPTIONS}
        if refused := fields.keys() & {"run_dir", "replay_folder", "train_only"}:
            raise ConfigError(
                f"A study takes no {', '.join(sorted(refused))}: each trial has a run directory of its own."
            )
        engines.choose(options.get("engine", "auto"))  # raises where there is none, before there is a folder
        config = with_hyperparameters(algorithm, env, config, fields)
        environment = environment_for(env, *map(options.get, OF_ENVIRONMENT))
        policies = options.get("policies")
        fitted(environment, lambda own: agents_for(algorithm, env, config, own, policies, None))
        if isinstance(algorithm, Agent):
            return Experiment(algorithm, env, algorithm.config, options, None)
        algorithm = named(algorithm)
        preset = presets.lookup(algorithm, env) if isinstance(env, str) else None
        config = config_for(algorithm, env) if config is None else config
        return Experiment(algorithm, env, config, options, preset.steps if preset else None)

    @property
    def algorithm_name(self) -> str:
        """That of the algorithm; of an agent of one's own, that of its class."""
        return self.algorithm if isinstance(self.algorithm, str) else type(self.algorithm).__name__.lower()

    @property
    def name(self) -> str:
        """What the folder of a study is called."""
        return f"{self.algorithm_name}-{name_of(self.env)}"

    def check_shared_replay(self, changed: Iterable[str]) -> None:
        """Raise ConfigError where trials cannot store into one replay. changed: the fields that differ among them."""
        if fixed := [name for name in OF_REPLAY if name in changed]:
            raise ConfigError(
                f"shared_replay = True, but {', '.join(fixed)} would differ among the runs that store into the replay. "
                "Leave it as it is, or leave shared_replay off."
            )
        for name in ("data", "rewrite"):
            if self.options.get(name):
                raise ConfigError(
                    f"shared_replay = True takes no {name}=: the replay holds what trials collect, as the environment "
                    "returned it. Leave one of the two out."
                )
        algorithm, config = self.algorithm, self.config
        agent = algorithm if isinstance(algorithm, Agent) else find(algorithm)[0](config)
        check_shared_replay(kind_of(agent), agent)

    def header(self) -> dict[str, Any]:
        """What it is, as plain data, with signatures of what its environment imports."""
        config, functions = plain_config(self.config)

        environment = environment_for(self.env, *map(self.options.get, OF_ENVIRONMENT))
        return {
            "format": FORMAT,
            "algorithm": self.algorithm_name,
            "own_agent": isinstance(self.algorithm, Agent),
            **plain_environment(environment),
            "config": config,
            "functions": functions,
            "options": {name: _plain(value) for name, value in sorted(self.options.items())},
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
