"""On-policy learning from rewards that compare the policy's steps with those of an expert."""

from __future__ import annotations

from collections.abc import Callable

from etude.agent import Agent
from etude.base.errors import ConfigError
from etude.protocols import Explorer
from etude.replay import Advantages, Demonstrations, View
from etude.training.kinds.context import TrainingContext
from etude.training.kinds.kind import LearningKind, LoopParts
from etude.training.kinds.on_policy import OnPolicyLearning
from etude.training.kinds.recorded import recorded_buffer
from etude.training.learner import Learner
from etude.training.sources import Sources


class ImitationLearning(OnPolicyLearning):
    """Advantages of the rewards that `Agent.reward` computes, with as many recorded steps of the expert in each
    batch. The normaliser starts from the expert's observations."""

    name = "demonstrations"
    multi_agent = False
    uses_data = True

    def check_rewriting(self, context: TrainingContext) -> None:
        raise ConfigError(
            f"rewrite= changes the environment's rewards; {type(context.agent).__name__} learns from rewards of its "
            "own model. Leave it out."
        )

    def for_data(self, agent: Agent, data: Sources) -> LearningKind:
        if data.single is None:
            raise ConfigError(
                f"{type(agent).__name__} compares its steps with one expert's: give data= one file or Dataset, without "
                "shares."
            )
        return self

    def view(self, context: TrainingContext) -> View:
        config, engine = context.agent.config, context.engine
        expert = recorded_buffer(context, context.recorded(), folder=None, stream="expert")
        if (steps := context.recorded().steps()) is not None:
            expert.add(steps)
        return Demonstrations(Advantages(config.gamma, config.gae_lambda, engine.value), expert, engine.reward)

    def example_bytes(self, context: TrainingContext) -> int:
        return 2 * super().example_bytes(context)  # the expert's step comes with the policy's

    def loop_parts(
        self, learner: Learner, context: TrainingContext, make_explorer: Callable[[int], Explorer]
    ) -> LoopParts:
        if (steps := context.recorded().steps()) is not None:
            learner.follow_moments(steps)
        return super().loop_parts(learner, context, make_explorer)
