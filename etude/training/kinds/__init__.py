"""The kinds of learning, one object each. Nothing else in etude asks what kind an agent learns by.

A new kind is a class derived from `LearningKind`, or from the kind that it resembles. `Agent.learns_from` is the object
itself, or the name of one of etude's own, which `KINDS` lists.
"""

from __future__ import annotations

from typing import Any

from etude.agent import Agent
from etude.base.errors import ConfigError
from etude.multi_agent.by_policy import PolicyAgents
from etude.replay import OneStepAndNextActions, OneStepAndReturns, ReturnSequences, WholeReturns
from etude.training.description import Execution
from etude.training.kinds.episodes import EpisodeLearning, EvolutionStrategiesLearning, GameLearning
from etude.training.kinds.kind import LearningKind, TrainingContext
from etude.training.kinds.off_policy import (
    NewTransitionLearning,
    OfflineLearning,
    OfflineToOnlineLearning,
    OffPolicyLearning,
    OffPolicySequenceLearning,
    TokenSequenceLearning,
)
from etude.training.kinds.on_policy import (
    AsyncGradientLearning,
    ImitationLearning,
    LambdaReturnLearning,
    OnPolicyLearning,
    OnPolicySequenceLearning,
    UnrollLearning,
)

KINDS: tuple[LearningKind, ...] = (
    OffPolicyLearning(), OffPolicySequenceLearning(), NewTransitionLearning(), OfflineToOnlineLearning(),
    OfflineToOnlineLearning("transitions_and_returns", OneStepAndReturns), OfflineLearning(),
    OfflineLearning("returns", WholeReturns), OfflineLearning("transitions_and_next_actions", OneStepAndNextActions),
    OfflineLearning("return_sequences", ReturnSequences),
    TokenSequenceLearning(), TokenSequenceLearning(pairs=True), OnPolicyLearning(), OnPolicySequenceLearning(),
    LambdaReturnLearning(), UnrollLearning(), ImitationLearning(), AsyncGradientLearning(), EpisodeLearning(),
    GameLearning(), EvolutionStrategiesLearning(),
)  # fmt: skip


def kind_of(agent: Agent) -> LearningKind:
    """The kind of learning of an agent; see `kind_for`."""
    return kind_for(str(agent), agent.learns_from, type(agent.config))


def kind_for(agent: str, learns_from: Any, config: type) -> LearningKind:
    """The kind of learning that `Agent.learns_from` stands for with this class of configs. agent: its name, for errors.

    Raises ConfigError for a name that no kind has, and where the config is not one for the kind.
    """
    named = [kind for kind in KINDS if kind.name == learns_from]
    candidates = [learns_from] if isinstance(learns_from, LearningKind) else named
    if not candidates:
        names = ", ".join(dict.fromkeys(kind.name for kind in KINDS))
        raise ConfigError(f"{agent}.learns_from = {learns_from!r}; expected a LearningKind, or one of {names}.")
    for kind in candidates:
        if issubclass(config, kind.config):
            return kind
    bases = [kind.config.__name__ for kind in candidates]
    raise ConfigError(
        f"{agent} learns from {candidates[0].name}, and {config.__name__} is no {' or '.join(bases)}. Derive its "
        f"config from one of these, or from that of an algorithm."
    )


def environment_count(agent: Agent, execution: Execution, preset: int | None) -> int:
    """How many environments are stepped in parallel: of several policies, as many as the one takes that takes the most.
    preset: as many as the preset says."""
    if isinstance(agent, PolicyAgents):
        return max(environment_count(agent.members[policy], execution, preset) for policy in agent.learners)
    kind = kind_of(agent)
    if not kind.steps_environments:
        return 1
    own = execution.environments
    return own if own is not None else max(preset or kind.environments, execution.workers)


__all__ = [
    "KINDS", "AsyncGradientLearning", "EpisodeLearning", "EvolutionStrategiesLearning", "ImitationLearning",
    "LambdaReturnLearning", "LearningKind", "OffPolicyLearning", "OffPolicySequenceLearning", "OfflineLearning",
    "OfflineToOnlineLearning", "OnPolicyLearning", "OnPolicySequenceLearning", "TrainingContext", "UnrollLearning",
    "environment_count", "kind_for", "kind_of",
]  # fmt: skip
