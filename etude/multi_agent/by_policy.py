"""Policies of different algorithms for the agents of one environment, some of which may learn nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from etude.agent import Agent
from etude.base import checks
from etude.base.errors import ConfigError
from etude.base.spaces import Spaces
from etude.multi_agent.joint import AGENTS, STATE, AgentSubset
from etude.multi_agent.policies import MultiAgent, Policies
from etude.protocols import Weights

# What a policy is, in the description of a run.
LEARNER, FROZEN, RULE, LEAGUE = "learner", "frozen", "heuristic", "league"
Rule = Callable[[Any, np.random.Generator], Any]  # (observation, rng) -> action: a policy that learns nothing


@dataclass(frozen=True)
class Frozen:
    """A policy from a checkpoint, which acts and does not learn.

    path: a checkpoint file or a run directory; nothing in it is executed. policy: which one of several the checkpoint
    holds; None: the only one. agent: needed where the checkpoint is of an agent, or a network, of your own. best: of a
    run directory, the checkpoint with the highest evaluated return instead of the newest.
    """

    path: str | PathLike[str]
    policy: str | None = None
    agent: Agent | None = None
    best: bool = False


@dataclass(frozen=True)
class League:
    """Opponents for self-play: frozen copies of another policy of the run, as it was every so many environment steps.

    Each environment plays each of its episodes against one copy. of: the policy that is copied; a copy is taken at the
    start, and after the first learning phase in every `every` steps. size: how many copies are kept, the newest ones.
    choose: "uniform", or "win_rate", which prefers the copies that the policy does not beat yet.
    """

    of: str
    every: int = 20_000
    size: int = 10
    choose: Literal["uniform", "win_rate"] = "uniform"

    def __post_init__(self) -> None:
        checks.declared(self)
        checks.counts(self, "every", "size")
        checks.one_of(self, "choose", ("uniform", "win_rate"))


@dataclass(frozen=True)
class FrozenAgent:
    """An agent that acts and does not learn.

    identity: whether its observations say whose they are. weights: by name; None: those of the checkpoint that the run
    continues. path: the checkpoint that it came from.
    """

    agent: Agent
    identity: bool
    path: str
    weights: Weights | None = None


@dataclass(frozen=True)
class Alternate:
    """Policies learn one after the other, each for `every` environment steps.

    order: their names; None takes all policies that can learn, in the order in which they were given.
    """

    every: int
    order: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        checks.whole_number("Alternate: every", self.every)
        if self.order is not None:
            object.__setattr__(self, "order", _names_in("Alternate: order", self.order))


class LearningTurns:
    """Which policies learn at which environment step.

    given: None for all of them, the names of those that learn, or `Alternate`. learners: the policies that can learn.
    Raises ConfigError for other names.
    """

    def __init__(self, given: Any, learners: Sequence[str]):
        alternate = isinstance(given, Alternate)
        self.given: Alternate | tuple[str, ...] | None = (
            given if given is None or alternate else _names_in("train_only", given)
        )
        wanted = (given.order if alternate else self.given) or tuple(learners)
        if unknown := [name for name in wanted if name not in learners]:
            raise ConfigError(
                f"train_only names {', '.join(unknown)}; the policies that can learn are "
                f"{', '.join(learners) or 'none'}."
            )
        if not wanted:
            raise ConfigError("No policy learns: give at least one an algorithm, such as 'ppo'.")
        self._every = given.every if alternate else None
        self._names = tuple(wanted)

    def at(self, step: int) -> tuple[str, ...]:
        """The policies that learn from the step that is taken now."""
        return self._names if self._every is None else (self._names[step // self._every % len(self._names)],)

    def steps_left(self, step: int) -> int | None:
        """Environment steps until others learn; None: they never do."""
        return None if self._every is None else self._every - step % self._every


@dataclass(frozen=True)
class PolicyConfigs:
    """Stands for the configs of several policies; each agent holds its own."""

    adapt: ClassVar[tuple[Any, ...]] = ()  # the rules of each policy are in its own config


class PolicyMember(NamedTuple):
    """One of several policies.

    kind: LEARNER, FROZEN, RULE or LEAGUE. algorithm: its name. agent: a `MultiAgent`, or the function of a heuristic.
    given: the `FrozenAgent` or the `League` that it was made from.
    """

    kind: str
    algorithm: str
    agent: Any
    given: Any = None


class PolicyAgents(MultiAgent):
    """The policies of one environment: agents of any algorithm, each with its own engine and learner, and functions.

    turns: who learns when. learns_from: a kind of learning.
    """

    def __init__(
        self,
        spaces: Spaces,
        policies: Policies,
        members: Mapping[str, PolicyMember],
        turns: LearningTurns,
        learns_from: Any,
    ):
        super().__init__(PolicyConfigs())
        self.policies: Policies = policies
        self.turns: LearningTurns = turns
        reading = [name for name, member in members.items() if member.kind != RULE and member.agent.reads_state]
        self.subsets: dict[str, AgentSubset] = subsets_of(spaces, policies, reading)
        self.learns_from = learns_from  # type: ignore[misc]
        self.algorithms: dict[str, str] = {name: member.algorithm for name, member in members.items()}
        # The policies with networks, those without, and those that came from checkpoints or are copies of another.
        self.members: dict[str, MultiAgent] = {n: member.agent for n, member in members.items() if member.kind != RULE}
        self.rules: dict[str, Rule] = {n: member.agent for n, member in members.items() if member.kind == RULE}
        self.frozen: dict[str, FrozenAgent] = {n: m.given for n, m in members.items() if m.kind == FROZEN}
        self.leagues: dict[str, League] = {n: m.given for n, m in members.items() if m.kind == LEAGUE}

    @property
    def reads_state(self) -> bool:
        return any(member.reads_state for member in self.members.values())

    @property
    def learners(self) -> tuple[str, ...]:
        """The policies that can learn."""
        return tuple(name for name in self.members if name not in self.frozen and name not in self.leagues)


def subsets_of(spaces: Spaces, policies: Policies, reading: Collection[str] = ()) -> dict[str, AgentSubset]:
    """Policy -> the agents that it drives. reading: the policies that read the global state."""
    assert spaces.agents is not None
    driven = policies.driven(spaces.agents)
    return {policy: AgentSubset(spaces, names, policy in reading) for policy, names in driven.items()}


def renamed_weights(
    weights: Mapping[str, Any], source: str | None, from_agents: tuple[str, ...], policy: str, agents: tuple[str, ...]
) -> Weights:
    """Weights of the policy `source` by the names that they have as those of `policy`; source None: of one agent alone.

    Moments of observations go to the agent of the same name, or are those of the first agent.
    """
    found = {}
    for name, value in weights.items():
        part, _, rest = name.partition(".")
        if part == "normaliser" and rest.startswith(f"{STATE}."):
            found[name] = value
        elif part == "normaliser":
            for agent in agents:
                before = "" if source is None else f"{AGENTS}.{agent if agent in from_agents else from_agents[0]}"
                leaf, _, moment = rest.rpartition(".")
                own = "" if leaf == "all" and source is None else leaf.removeprefix(before).removeprefix(".")
                if leaf == before or leaf.startswith(f"{before}.") or source is None:
                    found[".".join(filter(None, (part, AGENTS, agent, own, moment)))] = value
        elif source is None:
            found[f"{policy}.{name}"] = value
        elif part == source:
            found[f"{policy}.{rest}"] = value
    return found


def _names_in(argument: str, given: Any) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence) else ()
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ConfigError(f"{argument} = {given!r}; expected the names of policies, each once, such as ('left',).")
    return names
