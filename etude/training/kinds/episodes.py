"""Learning from whole episodes of the present policy, one of every environment, which are forgotten afterwards; from
games of tokens, in groups that begin alike; or from returns alone, where each was played with weights of its own and
nothing is differentiated."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from etude.agent import Agent
from etude.base.data import power_of_two
from etude.base.errors import ConfigError
from etude.base.seeding import generator
from etude.base.spaces import Box, Spaces
from etude.config import EpisodesConfig, GamesConfig
from etude.engines.stacked import FromReturns, PerturbedActor
from etude.explore import ByEnvironment, Greedy
from etude.explore.explorer import with_log_prob
from etude.networks.tokens import tokens_of
from etude.protocols import Explorer, Replay, Rollout
from etude.replay import Buffer, ColumnEpochs, EpisodeBatch, EpisodeReturns, Fitness, Ring, TokenGroups
from etude.serving import clients_of
from etude.training.description import Execution
from etude.training.kinds.kind import LearningKind, TrainingContext
from etude.training.kinds.on_policy import sampled
from etude.training.learner import GradientSource, refuse_rules
from etude.training.schedule import RunProgress, UpdateSchedule, UpdatesDue

SMALLEST_BATCH = 256  # rows that a batch of whole episodes is filled up to, at least


class EpisodeLearning(LearningKind):
    """All steps of the episodes, with their returns, in one batch."""

    name = "episodes"
    config: ClassVar[type[Any]] = EpisodesConfig
    refuses: ClassVar[Mapping[str, str]] = {
        "overlap": "overlap=True collects with weights that are one phase old; {agent} learns from whole episodes of "
        "its present policy. Leave overlap off."
    }

    def replay(self, context: TrainingContext) -> Replay:
        if (folder := context.execution.replay_folder) is not None:
            raise ConfigError(
                f"replay_folder = {folder!r}: {context.agent} keeps a batch of episodes in memory, no "
                "replay. Leave it out."
            )
        return self.episode_replay(context)

    def explorer(self, agent: Agent, spaces: Spaces, total: int, count: int) -> Explorer:
        found = super().explorer(agent, spaces, total, count)
        return with_log_prob(found) if isinstance(spaces.action, Box) else found  # the losses read samples

    def episode_replay(self, context: TrainingContext) -> Replay:
        """Holds one episode of every environment."""
        return EpisodeBatch(EpisodeReturns(context.agent.config.gamma, context.engine.value))

    def update_schedule(self, config: Any, count: int) -> UpdateSchedule:
        return _EpisodesSchedule()


class _EpisodesSchedule:
    """A phase of some gradient steps after one whole episode of every environment. size: the examples in a batch; None:
    all rows, filled up to a power of two."""

    forgets = True

    def __init__(self, gradient_steps: int = 1, size: int | None = None):
        self._gradient_steps, self.examples = gradient_steps, size
        self._step = 0  # at which a phase was asked for last

    def steps_until_update(self, step: int, stored: int) -> None:
        return None

    def updates_due(self, progress: RunProgress, replay: Replay) -> UpdatesDue:
        rows, steps, self._step = len(replay), progress.step - self._step, progress.step
        size = power_of_two(rows, SMALLEST_BATCH) if self.examples is None else self.examples
        return UpdatesDue(self._gradient_steps if rows else 0, size, steps)


class EvolutionStrategiesLearning(EpisodeLearning):
    """The return of one episode of every environment."""

    name = "fitness"
    one_by_one = True  # environments wait for each other's episodes to end
    refuses: ClassVar[Mapping[str, str]] = {
        **EpisodeLearning.refuses,
        "native": "{agent} needs environments that wait for each other's episodes to end; those of a native simulator "
        "do not. Leave vectorization on auto, or use loop.",
        "rewrite": "rewrite= changes the rewards of steps; {agent} learns from the returns of whole episodes, which "
        "are the environment's. Wrap the environment.",
    }

    def check(self, agent: Agent, execution: Execution) -> None:
        refuse_rules(agent.config)

    def episode_replay(self, context: TrainingContext) -> Replay:
        return Fitness(context.count)

    def gradients(self, context: TrainingContext) -> GradientSource:
        return FromReturns(context.engine, context.execution.seed, context.count)

    def explorer(self, agent: Agent, spaces: Spaces, total: int, count: int) -> Explorer:
        if agent.acts_for(spaces.action) == "distribution":
            return ByEnvironment(Greedy())  # exploration is in the weights
        return super().explorer(agent, spaces, total, count)

    def actor(self, context: TrainingContext, collecting: bool = True) -> Callable[[], Any]:
        if collecting:
            return functools.partial(PerturbedActor, context.agent, context.engine.spaces, context.execution.seed)
        return super().actor(context)

    def rollout(self, context: TrainingContext, explorer: Explorer) -> Rollout:
        if not context.engine.exportable:
            raise ConfigError(
                f"{context.agent} acts with weights of its own in each environment, which NumPy "
                "computes; it cannot for convolutions and modules of your own. Use an Mlp."
            )
        if clients_of(context.environment) is not None:
            raise ConfigError("Clients play one policy; es has one for each environment, and collects in its own way.")
        return super().rollout(context, explorer)


class GameLearning(EpisodeLearning):
    """A round: one game of every environment, where those of a group begin alike. It is learned from in shuffled passes
    over minibatches of games, with the extras of `replay.TokenGroups`."""

    name = "token_games"
    config: ClassVar[type[Any]] = GamesConfig
    environments: ClassVar[int] = 32
    log_prob = True
    whole_games = True
    one_by_one = True  # games of a native simulator do not begin together

    def episode_replay(self, context: TrainingContext) -> Replay:
        spaces, config = context.engine.spaces, context.agent.config
        _, window = tokens_of(spaces.observation)
        ring = Ring(spaces, (window.context + 1) * context.count, context.count, sampled(spaces))
        view = TokenGroups(config.gamma, config.group_size, config.normalize_advantage)
        return Buffer(ring, ColumnEpochs(), view, generator(context.execution.seed, "replay"))

    def update_schedule(self, config: Any, count: int) -> UpdateSchedule:
        size = min(config.minibatch_size or count, count)
        return _EpisodesSchedule(config.epochs * (count // size), size)

    def check(self, agent: Agent, execution: Execution) -> None:
        size = agent.config.group_size
        if (execution.environments or self.environments) % size:
            raise ConfigError(
                f"environments = {execution.environments or self.environments}, group_size = {size}; expected whole "
                f"groups of environments whose games begin alike, such as environments = {4 * size}."
            )
