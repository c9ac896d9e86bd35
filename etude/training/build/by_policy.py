"""From policies by name to what acts and learns for several agents, and as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from etude.agent import Agent
from etude.algorithms import find
from etude.base.checks import Stored
from etude.base.errors import ConfigError
from etude.base.spaces import Spaces
from etude.checkpoint.old_names import present_state
from etude.checkpoint.run_directory import read_run
from etude.multi_agent.by_policy import (
    FROZEN,
    LEAGUE,
    LEARNER,
    RULE,
    Frozen,
    FrozenAgent,
    League,
    LearningTurns,
    PolicyAgents,
    PolicyMember,
    renamed_weights,
    subsets_of,
)
from etude.multi_agent.policies import Policies
from etude.training.build.agents import agent_for
from etude.training.build.described import check_description, config_from
from etude.training.kinds.by_policy import PolicyLearning


def agents_for(
    algorithm: Any, environment: Any, config: Any, spaces: Spaces, policies: Any, train_only: Any
) -> tuple[str, Agent]:
    """(name, agent) of a run. algorithm: that of all policies, or a dict of what each policy is. Others: see `Run`."""
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
    _check_names(algorithm, driven)
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


def _check_names(given: Mapping[Any, Any], driven: Mapping[str, tuple[str, ...]]) -> None:
    if missing := [policy for policy in driven if policy not in given]:
        raise ConfigError(
            f"There is no policy {missing[0]!r}, which is to drive {', '.join(driven[missing[0]])}; there are "
            f"{', '.join(map(str, given))}. Give policies= a dict from each agent to one of them."
        )
    if unused := [policy for policy in given if policy not in driven]:
        raise ConfigError(f"The policy {unused[0]!r} drives no agent. Name it in policies=, or leave it out.")


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
    source = _chosen(frozen, path, names, described.get("learners"))
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


def _chosen(frozen: Frozen, path: Path, names: Mapping[str | None, Any], learners: Any) -> str | None:
    known = [name for name in names if learners is None or learners.get(name, {}).get("kind") in (LEARNER, FROZEN)]
    wanted = known[0] if frozen.policy is None and len(known) == 1 else frozen.policy
    if wanted not in known:
        raise ConfigError(
            f"Frozen({str(path)!r}, policy={frozen.policy!r}): expected one of the checkpoint's policies, "
            f"{', '.join(map(repr, known))}."
        )
    return wanted
