"""Configs and policies as plain data, and back; from policies by name to what acts and learns for several agents."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import etude.presets as presets
from etude.agent import Agent
from etude.algorithms import ALGORITHMS, find
from etude.base.checks import Stored
from etude.base.errors import CheckpointError, ConfigError, DataError, EnvironmentFault, SpaceError
from etude.base.spaces import Spaces
from etude.base.spaces import describe as describe_space
from etude.checkpoint.config_json import from_saved, to_json
from etude.checkpoint.old_names import present_state
from etude.checkpoint.run_directory import read_run
from etude.envs import ConfiguredEnvironment, name_of
from etude.multi_agent.by_policy import (
    FROZEN,
    LEAGUE,
    LEARNER,
    RULE,
    Alternate,
    Frozen,
    FrozenAgent,
    League,
    LearningTurns,
    PolicyAgents,
    PolicyMember,
    renamed_weights,
    subsets_of,
)
from etude.multi_agent.policies import MultiAgent, Policies
from etude.networks import ActorCritic
from etude.protocols import Explorer
from etude.serving import preset_name
from etude.training.assembly.agents import agent_for
from etude.training.assembly.exploration import plain_explorer, plain_rewriters
from etude.training.description import Execution, RunDescription
from etude.training.kinds import TrainingContext, kind_of
from etude.training.kinds.by_policy import PolicyLearning
from etude.training.sources import check_sources


def describe(
    context: TrainingContext, algorithm: str, given: Explorer | None, rewrite: tuple[Any, ...], total: int
) -> dict[str, Any]:
    """What a run is, in plain data. given, rewrite: the explorer and the rewriters that the user gave. total: the steps
    of its schedules."""
    engine, data = context.engine, context.data
    config, functions = plain_config(context.agent.config)
    environment, agent, several = plain_environment(context.environment), context.agent, dict[str, Any]()
    if isinstance(agent, PolicyAgents):  # what each policy is, and which of them learn when
        several["learners"] = {policy: _plain_member(agent, policy) for policy in agent.algorithms}
        several["train_only"] = to_json(agent.turns.given)
    policies = None  # which of them drives which agent
    if isinstance(agent, MultiAgent) and engine.spaces.agents is not None:
        policies = agent.policies.plain(engine.spaces.agents)
    return {
        "algorithm": algorithm,
        **environment,
        "has_preset": presets.lookup(algorithm, environment["environment"]) is not None,
        "config": config,
        "functions": functions,
        "explorer": plain_explorer(given),
        "policies": policies,
        "setup": context.execution.plain(),
        "engine": engine.name,
        "device": engine.device,
        "observation_space": describe_space(engine.spaces.observation),
        "action_space": describe_space(engine.spaces.action),
        "total": total,
        **several,
        "steps": "environment" if kind_of(context.agent).steps_environments else "gradient",
        "data": None if data is None else data.summary(),
        **({"rewrite": plain_rewriters(rewrite)} if rewrite else {}),
    }


def _plain_member(agent: PolicyAgents, policy: str) -> dict[str, Any]:
    if policy in agent.rules:
        return {"kind": RULE, "rule": _text(agent.rules[policy])}
    if policy in agent.leagues:
        return {"kind": LEAGUE, "league": to_json(agent.leagues[policy])}
    config, functions = plain_config(agent.members[policy].config)
    plain = {"algorithm": agent.algorithms[policy], "config": config, "functions": functions}
    if policy not in agent.frozen:
        return {"kind": LEARNER, **plain}
    frozen = agent.frozen[policy]
    return {"kind": FROZEN, **plain, "path": frozen.path, "identity": frozen.identity}


def members_from(described: dict[str, Any], given: Any) -> dict[str, Any]:
    """The policies in a run's description. given: by name, in the place of those; ConfigError where one is needed."""
    given = {} if given is None else given
    if not isinstance(given, Mapping) or not set(given) <= set(described["learners"]):
        known = ", ".join(described["learners"])
        raise ConfigError(f"agent = {given!r}; this run has the policies {known}: give a dict of those that differ.")
    return {
        policy: given[policy] if policy in given else _member_from(policy, plain)
        for policy, plain in described["learners"].items()
    }


def _member_from(policy: str, plain: dict[str, Any]) -> Any:
    if plain["kind"] == RULE:
        raise ConfigError(
            f"The policy {policy!r} of this run was the function {plain['rule']}: give it again, as "
            f"agent={{{policy!r}: ...}}."
        )
    if plain["kind"] == LEAGUE:
        return from_saved(League, Stored(plain["league"], f"description/learners/{policy}/league"))
    agent = find(plain["algorithm"])[0](config_from(plain))
    return FrozenAgent(agent, plain["identity"], plain["path"]) if plain["kind"] == FROZEN else agent


def plain_config(config: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """A config as plain data, and the names of the functions in it (networks of one's own), which are no data."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.init}
    functions: dict[str, str] = {}
    plain = {name: _plain(value, name, functions) for name, value in values.items()}
    return {"class": type(config).__name__, **plain}, functions


def _plain(value: Any, place: str, functions: dict[str, str]) -> Any:
    if callable(value):
        return functions.setdefault(place, name_of(value))
    if isinstance(value, ActorCritic):
        own = {name: _plain(part, f"{place}.{name}", functions) for name, part in vars(value).items()}
        return {"class": type(value).__name__, **own}
    return to_json(value)


def config_from(described: dict[str, Any], given: Collection[str] = ()) -> Any:
    """The config in a run's description; ConfigError where that is not all that the run was made from. given: fields
    that are given again, and are not read."""
    algorithm = described["algorithm"]
    functions = {name: own for name, own in described["functions"].items() if name.partition(".")[0] not in given}
    if algorithm not in ALGORITHMS:
        raise ConfigError(f"This run trains an agent of your own, {algorithm}: give it again, as agent=.")
    if functions:
        what = ", ".join(f"{name} was made by {function}" for name, function in functions.items())
        raise ConfigError(f"This run's {what}, which is not in its checkpoints: give config= (or agent=) again.")
    plain = described["config"]
    if isinstance(plain, dict):
        plain = {name: value for name, value in plain.items() if name not in given}
    return from_saved(find(algorithm)[1], Stored(plain, "description/config"))


def check_description(state: dict[str, Any]) -> dict[str, Any]:
    """The description in a run's state. Raises CheckpointError where no run can be made from it."""
    names = ("algorithm", "environment", "environment_is_named", "config", "functions", "setup", "engine")
    whole = Stored(state, "").fields(("description", "rollout"), state)
    held = whole["description"].fields(names, whole["description"].table())
    for name in ("algorithm", "environment", "engine"):
        held[name].text()
    held["environment_is_named"].flag()
    for function in held["functions"].table().values():
        function.text()
    setup = held["setup"].table()
    from_saved(Execution, Stored({**held["setup"].value, "class": "Execution"}, "description/setup"))
    if whole["rollout"].value is not None:  # before as many environments are made
        environments = whole["rollout"].fields(("environments",), whole["rollout"].table())["environments"].table()
        setup["environments"].whole(len(environments), len(environments))
    if "environment_args" in held:
        held["environment_args"].table()
    if "wrappers" in held:
        for wrapper in held["wrappers"].items():
            wrapper.text()
        held["wrappers_are_named"].flag()
    if "frame_stack" in held:
        held["frame_stack"].whole(1)
    if "origins" in held:
        for origin in held["origins"].items():
            for key in origin.items(2)[0].items():
                if not isinstance(key.value, str | int):
                    key.refuse("the key of a part of an observation")
    if "explorer" in held and held["explorer"].value is not None:
        held["explorer"].table()
    if "policies" in held and held["policies"].value is not None:
        policies = held["policies"].fields(("of", "identity"))
        for policy in policies["of"].table().values():
            policy.text()
        policies["identity"].flag()
    if "learners" in held:
        for member in held["learners"].table().values():
            _check_member(member)
    if "data" in held and held["data"].value is not None:
        check_sources(held["data"])
    return whole["description"].value


def check_algorithm(saved: Stored, algorithm: str) -> None:
    """Raise CheckpointError where a description is that of a run of another algorithm."""
    found = saved.fields(("algorithm",), saved.table())["algorithm"].text()
    if found != algorithm:
        raise CheckpointError(
            f"This checkpoint is of {found}, and the run is of {algorithm}. Load it with etude.load, or make the run "
            "with the same algorithm."
        )


@contextmanager
def built_as_described(env_given: bool, rest_given: bool) -> Iterator[None]:
    """Turns what is wrong with a description into CheckpointError, while a run is made from it; what was given instead
    of what it says is wrong as it is."""
    try:
        yield
    except (EnvironmentFault, SpaceError) as error:
        if env_given:
            raise
        raise _unusable(error) from error
    except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as error:
        if rest_given or isinstance(error, DataError):
            raise
        raise _unusable(error) from error


def _unusable(error: Exception) -> CheckpointError:
    return CheckpointError(f"No run can be made from the description in this checkpoint: {error}")


def _check_member(saved: Stored) -> None:
    kind = saved.fields(("kind",), saved.table())["kind"].text()
    if kind == RULE:
        saved.fields(("kind", "rule"))["rule"].text()
        return
    if kind == LEAGUE:
        saved.fields(("kind", "league"))
        return
    if kind not in (LEARNER, FROZEN):
        saved.refuse(f"{LEARNER}, {FROZEN}, {LEAGUE} or {RULE}", kind)
    held = saved.fields(("kind", "algorithm", "config", "functions", *(("path", "identity") if kind == FROZEN else ())))
    held["algorithm"].text()
    for function in held["functions"].table().values():
        function.text()
    if kind == FROZEN:
        held["path"].text()
        held["identity"].flag()


def plain_environment(env: Any) -> dict[str, Any]:
    """What a run's environments are made from, as plain data; callables by their text alone. Where clients play, the
    environment whose spaces they have."""
    given = env if isinstance(env, ConfiguredEnvironment) else ConfiguredEnvironment(env, {}, ())
    made = preset_name(given.env)
    return {
        "environment": _text(made),
        "environment_is_named": isinstance(made, str),
        **({"clients": True} if made is not given.env else {}),
        "environment_args": given.args,
        "wrappers": [_text(wrapper) for wrapper in given.wrappers],
        "wrappers_are_named": all(isinstance(wrapper, str) for wrapper in given.wrappers),
        "frame_stack": given.frame_stack,
        **({"origins": [[list(path), origin] for path, origin in given.origins]} if given.origins else {}),
    }


def _text(given: Any) -> str:
    """A name itself; a callable as a text that is the same in every process."""
    return given if isinstance(given, str) else re.sub(r" at 0x[0-9a-fA-F]+", "", repr(given))


def environment_from(described: dict[str, Any], env: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """(env, and env_args, wrappers and frame_stack) of a run that goes on; ConfigError where one has to be given again.

    env: in the place of that in the description; None: that one. given: the arguments of loading, which come before
    what the description says. Arguments of an environment are not those of another one; wrappers and stacked frames
    stay.
    """
    named, before = described["environment_is_named"], described["environment"]
    if env is None and not named:
        raise ConfigError(f"This run's environment was made by {before}: give it again, as env=.")
    wrappers = given.get("wrappers")
    if wrappers is None and not described.get("wrappers_are_named", True):
        raise ConfigError(
            f"This run's environment has the wrappers {', '.join(described['wrappers'])}, and not all are names: give "
            "them again, as wrappers=[...]."
        )
    same = env is None or not named or env == before
    args = given.get("env_args", described.get("environment_args") if same else None)
    wrappers = described.get("wrappers", ()) if wrappers is None else wrappers
    frames = given.get("frame_stack", described.get("frame_stack", 1))
    return (before if env is None else env), {"env_args": args, "wrappers": wrappers, "frame_stack": frames}


def taken_from(
    described: dict[str, Any], env: Any, made_with: dict[str, Any], given: dict[str, Any]
) -> tuple[Any, Any]:
    """(the environment, the folder of the replay) as far as a run takes them from its description, and its user did not
    give them again."""
    named = described["environment"] if env is None else None
    args, wrappers = (None if name in given else made_with[name] for name in ("env_args", "wrappers"))
    folder = None if "replay_folder" in given else described["setup"].get("replay_folder")
    return ConfiguredEnvironment(named, dict(args or {}), tuple(wrappers or ())), folder


def policies_from(described: dict[str, Any]) -> Policies | None:
    """The policies in a run's description, with those that learn when."""
    plain, turns = described.get("policies"), Stored(described.get("train_only"), "description/train_only")
    of_several = "learners" in described
    train_only = from_saved(Alternate | tuple[str, ...] | None, turns) if of_several else None
    return None if plain is None else Policies(**plain, train_only=train_only)


def agents_for(made: RunDescription, spaces: Spaces) -> tuple[str, Agent]:
    """(name, agent) of a run in an environment of these spaces."""
    algorithm, environment, config, policies = made.algorithm, made.named_environment, made.config, made.policies
    train_only = policies.train_only if isinstance(policies, Policies) else None
    if not isinstance(algorithm, Mapping):
        if train_only is not None:
            raise ConfigError(
                f"train_only = {train_only!r} names policies that learn; give them first, by name: "
                'Run({"left": "ppo", "right": "dqn"}, env, train_only=("left",)).'
            )
        return agent_for(algorithm, environment, config, spaces, policies)
    if config is not None:
        raise ConfigError("config= is of one algorithm; give each policy an agent of its own, such as PPO(config).")
    if spaces.agents is None:
        raise ConfigError(f"The policies {', '.join(map(str, algorithm))} are for several agents; here is one.")
    given = Policies.given(policies)
    driven = given.driven(spaces.agents)
    if missing := [policy for policy in driven if policy not in algorithm]:
        raise ConfigError(
            f"There is no policy {missing[0]!r}, which is to drive {', '.join(driven[missing[0]])}; there are "
            f"{', '.join(map(str, algorithm))}. Give policies= a dict from each agent to one of them."
        )
    if unused := [policy for policy in algorithm if policy not in driven]:
        raise ConfigError(f"The policy {unused[0]!r} drives no agent. Name it in policies=, or leave it out.")
    members = {}
    for policy, subset in subsets_of(spaces, given).items():
        own = Policies(dict.fromkeys(driven[policy], policy), given.identity)
        member = _member(policy, _copied(policy, algorithm), environment, subset.spaces, own)
        if isinstance(league := algorithm[policy], League):
            member = PolicyMember(LEAGUE, f"league of {league.of}", member.agent, league)
        members[policy] = member
    members = {policy: members[policy] for policy in algorithm}
    learners = [policy for policy, member in members.items() if member.kind == LEARNER]
    found = PolicyAgents(spaces, given, members, LearningTurns(train_only, learners), PolicyLearning())
    return ", ".join(f"{policy}: {member.algorithm}" for policy, member in members.items()), found


def _copied(policy: str, given: Mapping[str, Any]) -> Any:
    """What a policy is; of a league, what the policy is that it copies."""
    league = given[policy]
    if not isinstance(league, League):
        return league
    if not isinstance(given.get(league.of), str | Agent):
        known = [name for name, member in given.items() if isinstance(member, str | Agent)]
        raise ConfigError(
            f"The policy {policy!r} is a league of {league.of!r}; expected a policy of this run that learns: "
            f"{', '.join(known) or 'none does'}."
        )
    return given[league.of]


def _member(policy: str, given: Any, environment: Any, spaces: Spaces, policies: Policies) -> PolicyMember:
    """What a policy is to be, for agents of these spaces."""
    if isinstance(given, Frozen):
        given = _read_frozen(given, policy, spaces)
    if isinstance(given, FrozenAgent):
        algorithm, agent = agent_for(given.agent, environment, None, spaces, Policies(policies.of, given.identity))
        return PolicyMember(FROZEN, algorithm, agent, given)
    if isinstance(given, str | Agent):
        algorithm, agent = agent_for(given, environment, None, spaces, policies)
        return PolicyMember(LEARNER, algorithm, agent)
    if not callable(given) or isinstance(given, type):
        raise ConfigError(
            f"The policy {policy!r} is {given!r}; expected the name of an algorithm, an agent such as PPO(config), "
            "Frozen(path), or a function of (observation, rng) that returns an action."
        )
    return PolicyMember(RULE, "heuristic", given)


# -- policies from checkpoints -----------------------------------------------------------------------------------------


def _read_frozen(frozen: Frozen, policy: str, spaces: Spaces) -> FrozenAgent:
    """What a checkpoint holds of a policy, with weights named as those of `policy` for agents of these spaces."""
    path = Path(frozen.path)
    state = present_state(read_run(path, ("description", "engine"), ("replay",), frozen.best).state)
    described = check_description(state)
    plain = described.get("policies")
    names: dict[str | None, tuple[str, ...]] = {None: ()} if plain is None else {}
    for name, of in ({} if plain is None else plain["of"]).items():
        names[of] = (*names.get(of, ()), name)
    learners = described.get("learners")
    known = [name for name in names if learners is None or learners.get(name, {}).get("kind") in (LEARNER, FROZEN)]
    source = known[0] if frozen.policy is None and len(known) == 1 else frozen.policy
    if source not in known:
        raise ConfigError(
            f"Frozen({str(path)!r}, policy={frozen.policy!r}): expected one of the checkpoint's policies, "
            f"{', '.join(map(repr, known))}."
        )
    engine = Stored(state["engine"], "engine")
    if "learners" in described:
        described = described["learners"][source]
        engine = engine.table().get(str(source)) or engine.refuse(f"{source!r} in it")
    values = engine.fields(("values",), engine.table())["values"]
    weights = {name: held.array(np.float32, np.shape(held.value)) for name, held in values.table().items()}
    agent = frozen.agent or find(described["algorithm"])[0](config_from(described))
    identity = bool(plain and plain["identity"])
    renamed = renamed_weights(weights, source, names[source], policy, tuple(spaces.agents or ()))
    return FrozenAgent(agent, identity, str(path), renamed)
