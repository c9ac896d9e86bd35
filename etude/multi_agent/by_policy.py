"""Policies of different algorithms for the agents of one environment, some of which may learn nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np

from etude.agent import Agent
from etude.base.errors import ConfigError
from etude.base.spaces import Spaces
from etude.multi_agent.joint import AgentSubset
from etude.multi_agent.policies import MultiAgent, Policies
from etude.protocols import Weights

LEARNER, FROZEN, RULE = "learner", "frozen", "heuristic"  # what a policy is, in the description of a run
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
        if type(self.every) is not int or self.every < 1:
            raise ConfigError(f"Alternate: every = {self.every!r}; expected a whole number of at least 1.")
        if self.order is not None:
            object.__setattr__(self, "order", _names_in("Alternate: order", self.order))


class LearningTurns:
    """Which policies learn at which environment step.

    given: None for all of them, the names of those that learn, or `Alternate`. learners: the policies that can learn.
    Raises ConfigError for other names.
    """

    def __init__(self, given: Any, learners: Sequence[str]):
        alternate = isinstance(given, Alternate)
        self.given = given if given is None or alternate else _names_in("train_only", given)
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


class PolicyAgents(MultiAgent):
    """The policies of one environment: agents of any algorithm, each with its own engine and learner, and rules.

    members: the agents that have networks, by policy. names: of their algorithms. rules: the policies without networks.
    frozen: the members that came from checkpoints. turns: who learns when. learns_from: a kind of learning.
    """

    def __init__(
        self,
        spaces: Spaces,
        policies: Policies,
        members: Mapping[str, Agent],
        names: Mapping[str, str],
        rules: Mapping[str, Rule],
        frozen: Mapping[str, FrozenAgent],
        turns: LearningTurns,
        learns_from: Any,
    ):
        super().__init__(PolicyConfigs())
        assert spaces.agents is not None
        self.policies, self.members, self.algorithms = policies, dict(members), dict(names)
        self.rules, self.frozen, self.turns = dict(rules), dict(frozen), turns
        self.subsets = subsets_of(spaces, policies)
        self.learns_from = learns_from  # type: ignore[misc]

    @property
    def learners(self) -> tuple[str, ...]:
        """The policies that can learn."""
        return tuple(name for name in self.members if name not in self.frozen)


def subsets_of(spaces: Spaces, policies: Policies) -> dict[str, AgentSubset]:
    """Policy -> the agents that it drives."""
    assert spaces.agents is not None
    return {policy: AgentSubset(spaces, names) for policy, names in policies.driven(spaces.agents).items()}


def _names_in(argument: str, given: Any) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence) else ()
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ConfigError(f"{argument} = {given!r}; expected the names of policies, each once, such as ('left',).")
    return names
