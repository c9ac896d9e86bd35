"""Several policies in one environment, each learning by a kind of learning of its own."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import numpy as np

from etude.adapt.adaptation import exploration_rules
from etude.agent import Agent
from etude.base.errors import ConfigError, NetworkError
from etude.base.seeding import generator
from etude.base.spaces import Spaces
from etude.engines.by_policy import LeagueEngine, PolicyEngines, full_name
from etude.engines.numpy import NumpyEngine
from etude.engines.replicas import Replicas
from etude.explore import ByPolicy, Heuristic
from etude.explore.by_policy import SampledOpponent
from etude.multi_agent.by_policy import FrozenAgent, PolicyAgents, PolicyConfigs, renamed_weights
from etude.multi_agent.joint import AgentSubset
from etude.protocols import Explorer, Weights
from etude.training.kinds import kind_of
from etude.training.kinds.context import TrainingContext
from etude.training.kinds.kind import LearningKind
from etude.training.league import LeagueTable, slots
from etude.training.policy_learners import PolicyLearners
from etude.training.setup import Setup


class PolicyLearning(LearningKind):
    """One learner for each policy that learns: its replay, engine and update schedule. One rollout for all."""

    name = "steps of several policies"
    config: ClassVar[Any] = PolicyConfigs
    multi_agent = True

    def make_engine(self, agent: Any, spaces: Spaces, setup: Setup, replicas: Replicas | None = None) -> Any:
        engines: dict[str, Any] = {}
        for policy in (*agent.learners, *agent.frozen):
            member, own = agent.members[policy], agent.subsets[policy].spaces
            engines[policy] = kind_of(member).make_engine(member, own, _own_setup(setup, policy), replicas)
            if policy in agent.frozen and agent.frozen[policy].weights is not None:
                _load(policy, engines[policy], member, agent.frozen[policy])
        for policy, league in agent.leagues.items():
            engines[policy] = _league_engine(agent, policy, engines[league.of], slots(league, setup.environments or 0))
        return PolicyEngines(engines, agent.subsets, spaces)

    def make_learner(self, context: TrainingContext, rewriters: Any = None) -> Any:
        agent: Any = context.agent
        learners: dict[str, Any] = {}
        for policy in agent.learners:
            own = _own_context(context, policy)
            learners[policy] = kind_of(own.agent).make_learner(own)
        engine: Any = context.engine
        acting = {policy: engine.of[policy] for policy in agent.frozen if engine.exportable}
        frozen = self._read_by_acting(agent, acting)
        leagues = {policy: _league_table(agent, policy, engine, context.count) for policy in agent.leagues}
        for policy, league in leagues.items():
            engine.of[policy].load(league.weights())
        return PolicyLearners(agent, engine, learners, leagues, frozen, context.count)

    def check_rewriting(self, context: TrainingContext) -> None:
        raise ConfigError("rewrite= is for runs of one algorithm. Of a dict of policies, wrap the environment instead.")

    # -- exploration ---------------------------------------------------------------------------------------------------

    def run_explorer(self, agent: Any, spaces: Spaces, total: int, count: int) -> Explorer:
        def explored(policy: str, member: Agent, own: Spaces) -> Explorer:
            kind = kind_of(member)
            if policy not in agent.learners and member.acts_by != "distribution":
                explorer = kind.best_explorer(member, own)
            else:
                explorer = kind.run_explorer(member, own, total, count)
            return SampledOpponent(explorer) if policy in agent.leagues else explorer

        return self._explorers(agent, spaces, explored)

    def best_explorer(self, agent: Any, spaces: Spaces) -> Explorer:
        def best(policy: str, member: Agent, own: Spaces) -> Explorer:
            explorer = kind_of(member).best_explorer(member, own)
            return SampledOpponent(explorer, newest=True) if policy in agent.leagues else explorer

        return self._explorers(agent, spaces, best)

    def _explorers(
        self, agent: PolicyAgents, spaces: Spaces, explored: Callable[[str, Agent, Spaces], Explorer]
    ) -> ByPolicy:
        found: dict[str, Explorer] = {}
        for policy, subset in agent.subsets.items():
            if policy in agent.rules:
                found[policy] = Heuristic(policy, agent.rules[policy], subset)
            else:
                found[policy] = explored(policy, agent.members[policy], subset.spaces)
        return ByPolicy(found, agent.subsets, spaces.action)

    def check_exploration(self, agent: Any) -> None:
        for policy in agent.learners:
            member = agent.members[policy]
            kind_of(member).check_exploration(member)
            if moved := exploration_rules(member.config):
                raise ConfigError(
                    f"{policy}: adapt changes {moved[0]}; rules change exploration in runs of one policy alone. Leave "
                    "this rule out, or give a schedule."
                )

    # -- collecting ----------------------------------------------------------------------------------------------------

    def environment_count(self, agent: Any, setup: Setup, preset: int | None) -> int:
        """As many as the policy takes that takes the most."""
        members = [agent.members[policy] for policy in agent.learners]
        return max(kind_of(member).environment_count(member, setup, preset) for member in members)

    def check_setup(self, agent: Any, setup: Setup) -> None:
        for policy in agent.learners:
            member = agent.members[policy]
            kind_of(member).check_setup(member, setup)
            if getattr(member.config, "actor_priorities", False):
                raise ConfigError(
                    f"actor_priorities = True of the policy {policy!r}: actors of several policies compute no initial "
                    "priorities. Leave it off."
                )

    def check_overlap(self, context: TrainingContext) -> None:
        for policy in context.agent.learners:  # type: ignore[attr-defined]
            own = _own_context(context, policy)
            kind_of(own.agent).check_overlap(own)

    def acting_weights(self, context: TrainingContext) -> tuple[str, ...]:
        engine: Any = context.engine
        if not engine.exportable:
            return ()
        return self._read_by_acting(context.agent, engine.of)

    @staticmethod
    def _read_by_acting(agent: Any, engines: Mapping[str, Any]) -> tuple[str, ...]:
        """The full names of the weights that actions of these policies depend on."""
        read = {
            policy: tuple(own.layout.initial)
            if policy in agent.leagues
            else NumpyEngine(agent.members[policy], own.spaces).read_by_acting()
            for policy, own in engines.items()
        }
        return tuple(full_name(policy, name) for policy, names in read.items() for name in names)

    def make_actor(self, context: TrainingContext) -> Callable[[], Any]:
        agent: Any = context.agent
        sizes = {policy: len(context.engine.of[policy].slots) for policy in agent.leagues}  # type: ignore[attr-defined]
        return functools.partial(_acting_in_numpy, agent.members, sizes, agent.subsets, context.engine.spaces)

    def make_policy_actor(self, context: TrainingContext) -> Callable[[], Any]:
        return self.make_actor(context)


def _acting_in_numpy(
    members: Mapping[str, Agent], sizes: Mapping[str, int], subsets: Mapping[str, AgentSubset], spaces: Spaces
) -> PolicyEngines:
    """sizes: how many copies of a league may act, by policy."""
    engines: dict[str, Any] = {}
    for policy, member in members.items():
        own = subsets[policy].spaces
        engines[policy] = LeagueEngine(member, own, sizes[policy]) if policy in sizes else NumpyEngine(member, own)
    return PolicyEngines(engines, subsets, spaces)


def _load(policy: str, engine: Any, member: Agent, frozen: FrozenAgent) -> None:
    """Load what a frozen policy acts with. ConfigError where its checkpoint was trained on other spaces."""
    weights = frozen.weights or {}
    needed = NumpyEngine(member, engine.spaces).read_by_acting() if engine.exportable else engine.layout.initial
    try:
        if missing := [name for name in needed if name not in weights]:
            raise NetworkError(f"There is no weight for {missing[0]!r}.")
        engine.load({name: weights[name] for name in needed})
    except NetworkError as error:
        agents = ", ".join(engine.spaces.agents)
        raise ConfigError(
            f"The frozen policy {policy!r} cannot act for {agents}: {frozen.path} was trained on other observations or "
            f"actions. {error}"
        ) from error


def _league_engine(agent: PolicyAgents, policy: str, copied: Any, size: int) -> LeagueEngine:
    """What acts with the copies of a league. ConfigError where the policy cannot be copied for these agents."""
    league, spaces = agent.leagues[policy], agent.subsets[policy].spaces
    try:
        engine = LeagueEngine(agent.members[policy], spaces, size, copied.name, copied.device)
    except NetworkError as error:
        raise ConfigError(
            f"The policy {policy!r} is a league of {league.of!r}, whose network NumPy cannot compute. Use a spec, such "
            "as Mlp or Conv."
        ) from error
    own, theirs = engine.slots[0].weights(), _copied_weights(agent, policy, copied)
    if any(name not in theirs or theirs[name].shape != own[name].shape for name in engine.acting):
        raise ConfigError(
            f"The policy {policy!r} is a league of {league.of!r}, which acts for other observations or actions: their "
            "agents must have the same spaces."
        )
    return engine


def _league_table(agent: PolicyAgents, policy: str, engine: Any, environments: int) -> LeagueTable:
    league, acting = agent.leagues[policy], engine.of[policy].acting

    def read() -> Weights:
        found = _copied_weights(agent, policy, engine.of[league.of])
        return {name: np.array(found[name]) for name in acting}

    players, opponents = agent.subsets[league.of].agents, agent.subsets[policy].agents
    return LeagueTable(league, policy, read, players, opponents, environments)


def _copied_weights(agent: PolicyAgents, policy: str, copied: Any) -> Weights:
    """The weights of the policy that a league copies, by the names that they have in the league."""
    source = agent.leagues[policy].of
    names = tuple(agent.subsets[source].agents), tuple(agent.subsets[policy].agents)
    return renamed_weights(copied.weights(), source, names[0], policy, names[1])


def _own_context(context: TrainingContext, policy: str) -> TrainingContext:
    agent, engine = context.agent, context.engine
    return dataclasses.replace(
        context,
        agent=agent.members[policy],  # type: ignore[attr-defined]
        engine=engine.of[policy],  # type: ignore[attr-defined]
        setup=_own_setup(context.setup, policy),
    )


def _own_setup(setup: Setup, policy: str) -> Setup:
    """With a seed, and a folder for the replay, that belong to the policy."""
    seed = int(generator(setup.seed, f"policy {policy}").integers(2**31))
    folder = None if setup.replay_folder is None else str(Path(setup.replay_folder) / quote(policy, safe=""))
    return dataclasses.replace(setup, seed=seed, replay_folder=folder)
