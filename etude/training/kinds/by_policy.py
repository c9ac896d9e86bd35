"""Several policies in one environment, each learning by a kind of learning of its own, from its own agents' part of the
same steps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn
from urllib.parse import quote

import numpy as np

from etude.adapt.rules import exploration_rules
from etude.agent import Agent
from etude.base.checks import Stored
from etude.base.data import CollectedSteps, CollectRequest, PolicyVersion, Steps
from etude.base.errors import ConfigError, NetworkError
from etude.base.events import Learned
from etude.base.seeding import generator
from etude.base.spaces import Spaces
from etude.engines.by_policy import LeagueEngine, PolicyEngines, full_name, joined_names
from etude.engines.numpy import NumpyEngine
from etude.engines.replicas import Replicas
from etude.explore import ByAgent, ByPolicy, Greedy, Heuristic
from etude.explore.combined import SampledOpponent
from etude.multi_agent.by_policy import FrozenAgent, PolicyAgents, PolicyConfigs, renamed_weights
from etude.multi_agent.joint import AgentSubset
from etude.protocols import Explorer, Weights
from etude.training.description import Execution
from etude.training.kinds import kind_of
from etude.training.kinds.kind import LearningKind, TrainingContext
from etude.training.league import LeagueTable, slots
from etude.training.learner import Learner
from etude.training.schedule import RunProgress, check_progress

OPTIONAL = ("adapting", "waiting")  # components of a run that hold one of each learner that has it
LEARNING = ("replay", *OPTIONAL)  # what acting does not need
BY_POLICY = (*LEARNING, "engine", "layer_noise", "moments", "scale")


class PolicyLearners:
    """A learner for each policy that learns: a `loop.RunLearning`. Collects until the first of them is due.

    A policy that does not learn at present stores nothing; what an on-policy one has stored by then is forgotten.
    frozen_weights: the names of the weights that policies act with which never learn.
    """

    def __init__(
        self,
        agent: PolicyAgents,
        engine: PolicyEngines,
        learners: Mapping[str, Learner],
        leagues: Mapping[str, LeagueTable],
        frozen_weights: tuple[str, ...],
        count: int,
    ):
        self.of: dict[str, Learner] = dict(learners)
        self.leagues: dict[str, LeagueTable] = dict(leagues)
        self.count: int = count
        self.progress: RunProgress = RunProgress()
        self._agent, self._engine, self._frozen = agent, engine, frozen_weights
        self._learning: tuple[str, ...] = ()  # those that learn from the steps that were taken last
        self._paused: set[str] = set()  # those whose next steps do not continue what they have stored

    @property
    def explores_anew(self) -> bool:
        """Whether one of them has drawn noise in layers."""
        return any(learner.explores_anew for learner in self.of.values())

    @property
    def replay(self) -> NoReturn:
        """Raises ConfigError: each policy has its own."""
        raise ConfigError("Each policy has a replay of its own: run.learner.of[policy].replay.")

    def collect_request(self, left: int, after: int = 0) -> CollectRequest:
        """Up to the first learning phase of a policy that learns, or until others learn."""
        turns, now = self._agent.turns, self._time_step()
        step = now + after * self.count
        learning = turns.at(step)
        if learning != turns.at(now):
            return CollectRequest(0)  # they have stored nothing yet that could be collected ahead for
        requests = [self.of[policy].collect_request(left, after) for policy in learning]
        until = turns.steps_left(step)
        first = min(requests, key=lambda request: request.steps or 0)
        if until is None or first.steps is None:
            return first
        return first._replace(steps=min(first.steps, max(1, -(-until // self.count))))

    def take(self, steps: CollectedSteps) -> None:
        """Store each policy's part of collected steps, where it learns, and count them."""
        assert isinstance(steps, Steps)
        self._learning = self._agent.turns.at(self._time_step())
        self.progress.count(steps)
        for league in self.leagues.values():
            league.record(steps)
            league.follow(steps)
        for policy, learner in self.of.items():
            learner.progress.total = self.progress.total
            if policy in self._learning:
                own = self._agent.subsets[policy].steps(steps, policy)
                learner.take(replace(own, restarted=own.restarted | True) if policy in self._paused else own)
                if not self.progress.begun(self.count):
                    self._paused.discard(policy)
            else:
                learner.skip(steps)
                self._paused.add(policy)

    def learn_if_due(self) -> Learned | None:
        """The learning phases that are due, as one."""
        phases = {policy: self.of[policy].learn_if_due() for policy in self._learning}
        found = {policy: learned for policy, learned in phases.items() if learned is not None}
        if not found:
            return None
        self.progress.gradient_steps = sum(learner.progress.gradient_steps for learner in self.of.values())
        losses = {name: value for learned in found.values() for name, value in learned.losses.items()}
        metrics = {
            name if name.startswith(f"{policy}.") else f"{policy}.{name}": value  # agents name their own by policy
            for policy, learned in found.items()
            for name, value in learned.metrics.items()
        }
        for league in self.leagues.values():
            league.update(self.progress.step)
            metrics |= league.metrics()
        self._load_leagues()
        seconds = sum(learned.seconds for learned in found.values())
        adjusted = tuple(
            replace(event, step=self.progress.step, name=f"{policy}.{event.name}")
            for policy, learned in found.items()
            for event in learned.adjusted
        )
        return Learned(self.progress.step, self.progress.gradient_steps, losses, metrics, seconds, adjusted)

    def follow_moments(self) -> bool:
        """Take the observations that were stored last into the normalisers of those that learn; whether there were
        any."""
        moved = [self.of[policy].follow_moments() for policy in self._learning]
        if any(moved):
            for league in self.leagues.values():
                league.follow_moments(self.progress.step)
            self._load_leagues()
        return any(moved)

    def _load_leagues(self) -> None:
        """Let the engines of leagues act with their present copies."""
        for policy, league in self.leagues.items():
            self._engine.of[policy].load(league.weights())

    def acting_weights(self) -> Weights:
        """What acting needs; nothing where the engines themselves act."""
        acting = {policy: learner.acting_weights() for policy, learner in self.of.items()}
        return joined_names(acting) | self._unlearned()

    def exploring_policy(self) -> tuple[Weights, PolicyVersion]:
        """What rollouts act with, and its version."""
        explored = {policy: learner.exploring_policy()[0] for policy, learner in self.of.items()}
        version = PolicyVersion(self.progress.gradient_steps, {})
        return joined_names(explored) | self._unlearned(), version

    def _unlearned(self) -> Weights:
        """What policies act with that do not learn."""
        copies = {policy: league.weights() for policy, league in self.leagues.items()}
        return joined_names(copies) | self._engine.weights(self._frozen)

    def trained_weights(self) -> Weights:
        """What losses train, by name."""
        return joined_names({policy: learner.trained_weights() for policy, learner in self.of.items()})

    def state(self) -> dict[str, Any]:
        """Arrays and plain data, by component and by policy, from which `restore` goes on."""
        states = {policy: learner.state() for policy, learner in self.of.items()}
        parts = {name: {policy: state[name] for policy, state in states.items() if name in state} for name in LEARNING}
        return self.policy_state() | {name: part for name, part in parts.items() if part}

    def policy_state(self) -> dict[str, Any]:
        """The part of `state` that `restore` needs to act only."""
        states = {policy: learner.policy_state() for policy, learner in self.of.items()}
        names = [name for name in BY_POLICY if name not in LEARNING]
        found = {name: {policy: state[name] for policy, state in states.items()} for name in names}
        learners = {
            policy: {"progress": state["progress"], "paused": policy in self._paused}
            for policy, state in states.items()
        }
        found["engine"] |= {policy: self._engine.of[policy].state() for policy in self._agent.frozen}
        if self.leagues:
            found["leagues"] = {policy: league.state() for policy, league in self.leagues.items()}
        return found | {"progress": asdict(self.progress), "learners": learners}

    def check_state(self, held: dict[str, Stored]) -> None:
        """Raise CheckpointError where `restore` cannot continue from these components; nothing is changed."""
        check_progress(held["progress"])
        if "learners" not in held:
            held["progress"].refuse("the progress of each policy beside it")
        learners = held["learners"].fields(self.of)
        engines = held["engine"].fields((*self.of, *self._agent.frozen))
        if self.leagues and "leagues" not in held:
            held["progress"].refuse("the leagues beside it")
        for policy, league in held["leagues"].fields(self.leagues).items() if self.leagues else ():
            self.leagues[policy].check_state(league)
        for policy in self._agent.frozen:
            self._engine.of[policy].check_state(engines[policy])
        parts = {name: held[name].table() for name in BY_POLICY if name in held}
        for policy, learner in self.of.items():
            own = learners[policy].fields(("progress", "paused"))
            own.pop("paused").flag()
            for name, by_policy in parts.items():
                if policy not in by_policy and name in OPTIONAL:
                    continue
                if policy not in by_policy:
                    held[name].refuse(f"{policy!r} in it", f"a table without {policy!r}")
                own[name] = by_policy[policy]
            learner.check_state(own)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which `check_state` has passed; without its replay, to act only."""
        for policy in self._agent.frozen:
            self._engine.of[policy].restore(state["engine"][policy])
        self.progress = RunProgress(**state["progress"])
        parts = [name for name in BY_POLICY if name in state]
        for policy, learner in self.of.items():
            progress = state["learners"][policy]["progress"]
            own = {name: state[name][policy] for name in parts if policy in state[name]}
            learner.restore(own | {"progress": progress})
        for policy, league in self.leagues.items():
            league.restore(state["leagues"][policy])
        self._load_leagues()
        self._paused = {policy for policy, own in state["learners"].items() if own["paused"]}

    def _time_step(self) -> int:
        """The environment step at which the present time step began."""
        return self.progress.step - self.progress.begun(self.count)


class PolicyLearning(LearningKind):
    """One learner for each policy that learns: its replay, engine and update schedule. One rollout for all."""

    name = "steps of several policies"
    config: ClassVar[Any] = PolicyConfigs
    multi_agent = True
    refuses: ClassVar[Mapping[str, str]] = {
        "rewrite": "rewrite= is for runs of one algorithm. Of a dict of policies, wrap the environment instead."
    }

    def make_engine(self, agent: Any, spaces: Spaces, execution: Execution, replicas: Replicas | None = None) -> Any:
        engines: dict[str, Any] = {}
        for policy in (*agent.learners, *agent.frozen):
            member, own = agent.members[policy], agent.subsets[policy].spaces
            engines[policy] = kind_of(member).make_engine(member, own, _own_execution(execution, policy), replicas)
            if policy in agent.frozen and agent.frozen[policy].weights is not None:
                _load(policy, engines[policy], member, agent.frozen[policy])
        for policy, league in agent.leagues.items():
            count = slots(league, execution.environments or 0)
            engines[policy] = _league_engine(agent, policy, engines[league.of], count)
        return PolicyEngines(engines, agent.subsets, spaces)

    def make_learner(self, context: TrainingContext, rewriters: Any = None) -> Any:
        agent: Any = context.agent
        engine: Any = context.engine
        learners: dict[str, Any] = {}
        for policy in agent.learners:
            member, execution = agent.members[policy], _own_execution(context.execution, policy)
            own = replace(context, agent=member, engine=engine.of[policy], execution=execution)
            learners[policy] = kind_of(own.agent).make_learner(own)
        acting = self.actor(context)().of if engine.exportable else {}
        frozen = {policy: acting[policy].read_by_acting() for policy in agent.frozen if policy in acting}
        names = tuple(full_name(policy, name) for policy, read in frozen.items() for name in read)
        leagues = {policy: _league_table(agent, policy, engine, context.count) for policy in agent.leagues}
        for policy, league in leagues.items():
            engine.of[policy].load(league.weights())
        return PolicyLearners(agent, engine, learners, leagues, names, context.count)

    def check(self, agent: Any, execution: Execution) -> None:
        for policy in agent.learners:
            member = agent.members[policy]
            kind_of(member).check(member, execution)
            if getattr(member.config, "actor_priorities", False):
                raise ConfigError(
                    f"actor_priorities = True of the policy {policy!r}: actors of several policies compute no initial "
                    "priorities. Leave it off."
                )

    def explorer(self, agent: Any, spaces: Spaces, total: int, count: int) -> Explorer:
        def explored(policy: str, member: Agent, own: Spaces) -> Explorer:
            if policy in agent.learners and (moved := exploration_rules(member.config)):
                raise ConfigError(
                    f"{policy}: adapt changes {moved[0]}; rules change exploration in runs of one policy alone. Leave "
                    "this rule out, or give a schedule."
                )
            if policy not in agent.learners and member.acts_by != "distribution":
                explorer = best_explorer(member, own)
            else:
                explorer = kind_of(member).explorer(member, own, total, count)
            return SampledOpponent(explorer) if policy in agent.leagues else explorer

        return _explorers(agent, spaces, explored)

    def actor(self, context: TrainingContext, collecting: bool = True) -> Callable[[], Any]:
        agent: Any = context.agent
        sizes = {policy: len(context.engine.of[policy].slots) for policy in agent.leagues}  # type: ignore[attr-defined]
        return functools.partial(_acting_in_numpy, agent.members, sizes, agent.subsets, context.engine.spaces)


def best_explorer(agent: Any, spaces: Spaces) -> Explorer:
    """What takes the best actions."""
    if isinstance(agent, PolicyAgents):

        def best(policy: str, member: Agent, own: Spaces) -> Explorer:
            explorer = best_explorer(member, own)
            return SampledOpponent(explorer, newest=True) if policy in agent.leagues else explorer

        return _explorers(agent, spaces, best)
    if spaces.agents is None:
        return Greedy()
    return ByAgent(Greedy(), [own.action for own in spaces.agents.values()])


def _explorers(agent: PolicyAgents, spaces: Spaces, explored: Callable[[str, Agent, Spaces], Explorer]) -> ByPolicy:
    found: dict[str, Explorer] = {}
    for policy, subset in agent.subsets.items():
        if policy in agent.rules:
            found[policy] = Heuristic(policy, agent.rules[policy], subset)
        else:
            found[policy] = explored(policy, agent.members[policy], subset.spaces)
    return ByPolicy(found, agent.subsets, spaces.action)


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


def _own_execution(execution: Execution, policy: str) -> Execution:
    """With a seed, and a folder for the replay, that belong to the policy."""
    seed = int(generator(execution.seed, f"policy {policy}").integers(2**31))
    folder = None if execution.replay_folder is None else str(Path(execution.replay_folder) / quote(policy, safe=""))
    return replace(execution, seed=seed, replay_folder=folder)
