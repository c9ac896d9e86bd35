"""Learning from the returns of episodes that were each played with weights of their own. Nothing is differentiated."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from etude.agent import ActsBy, Agent
from etude.base.errors import ConfigError
from etude.base.spaces import Space
from etude.engines.evolution import FromReturns, PerturbedActor
from etude.engines.gradients import GradientSource
from etude.envs.make import Vectorization
from etude.explore import ByEnvironment, Greedy
from etude.protocols import Explorer, Replay, Rollout
from etude.replay import Fitness
from etude.training.adapting import Adapting, refuse_rules
from etude.training.kinds.context import TrainingContext
from etude.training.kinds.episodes import EpisodeLearning


class EvolutionStrategiesLearning(EpisodeLearning):
    """The return of one episode of every environment."""

    name = "fitness"
    one_by_one = True  # environments wait for each other's episodes to end

    def episode_replay(self, context: TrainingContext) -> Replay:
        return Fitness(context.count)

    def check_rewriting(self, context: TrainingContext) -> None:
        raise ConfigError(
            f"rewrite= changes the rewards of steps; {type(context.agent).__name__} learns from the returns of whole "
            "episodes, which are the environment's. Wrap the environment."
        )

    def adapting(self, context: TrainingContext, replay: Replay) -> Adapting:
        refuse_rules(context.agent.config)
        return super().adapting(context, replay)

    def gradients(self, context: TrainingContext) -> GradientSource:
        return FromReturns(context.engine, context.setup.seed, context.count)

    def explorer(self, agent: Agent, acts_by: ActsBy, action: Space, total: int, count: int) -> Explorer:
        if acts_by == "distribution":
            return ByEnvironment(Greedy())  # exploration is in the weights
        return super().explorer(agent, acts_by, action, total, count)

    def make_actor(self, context: TrainingContext) -> Callable[[], Any]:
        return functools.partial(PerturbedActor, context.agent, context.engine.spaces, context.setup.seed)

    def rollout(self, context: TrainingContext, explorer: Explorer) -> Rollout:
        if not context.engine.exportable:
            raise ConfigError(
                f"{type(context.agent).__name__} acts with weights of its own in each environment, which NumPy "
                "computes; it cannot for convolutions and modules of your own. Use an Mlp."
            )
        return super().rollout(context, explorer)

    def vectorization(self, context: TrainingContext) -> Vectorization:
        found = super().vectorization(context)
        if found == "native":
            raise ConfigError(
                f"{type(context.agent).__name__} needs environments that wait for each other's episodes to end; those "
                "of a native simulator do not. Leave vectorization on auto, or use loop."
            )
        return found
