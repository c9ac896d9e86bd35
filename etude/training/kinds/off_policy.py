"""Learning from replayed transitions, whatever policy collected them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from etude.adapt.adaptation import values_reached
from etude.agent import ActsBy, Agent
from etude.base.errors import ConfigError
from etude.base.seeding import generator
from etude.base.spaces import Space, zeros
from etude.config import Config, OffPolicyConfig
from etude.envs import frame_stack_of
from etude.explore import CorrelatedSample, PerActorEpsilonGreedy, PerActorGaussianNoise
from etude.protocols import Explorer, Replay
from etude.replay import Buffer, MultiAgentTransitions, Prioritised, Ring, Selector, Uniform, View
from etude.replay.frames import has_stacks
from etude.replay.sizes import Extras
from etude.training.adapting import Adapting
from etude.training.kinds.actor_priorities import PrioritisingActor, transitions
from etude.training.kinds.context import TrainingContext
from etude.training.kinds.hindsight import with_hindsight
from etude.training.kinds.kind import LearningKind
from etude.training.kinds.offline import OfflineLearning, OfflineSchedule
from etude.training.kinds.recorded import BufferRequest, replay_for
from etude.training.progress import RunProgress
from etude.training.sources import Sources
from etude.training.update_schedule import UpdateSchedule, UpdatesDue

PHASE = 100  # gradient steps of a learning phase on recorded data alone, as `OfflineConfig` has them


class OffPolicyLearning(LearningKind):
    """Transitions: of one step, or of `n_step`; drawn uniformly, or by priorities."""

    name = "transitions"
    config: ClassVar[type[Config]] = OffPolicyConfig
    environments = 1
    multi_agent = True
    takes_data = True
    replays_data = True
    adjusts = ("buffer_size",)

    def check_shared_replay(self, agent: Agent) -> None:
        if (exponent := agent.config.priority_exponent) != 0.0:
            raise ConfigError(
                f"shared_replay = True, but {type(agent).__name__} draws by priorities, which are errors of its own "
                f"networks: priority_exponent = {exponent}. Set it to 0, or leave shared_replay off."
            )
        if any(rule.hyperparameter in self.adjusts for rule in agent.config.adapt):
            raise ConfigError(
                f"shared_replay = True, but a rule of {type(agent).__name__} changes buffer_size, which would forget "
                "what the others learn from. Leave the rule out, or leave shared_replay off."
            )

    def replay(self, context: TrainingContext) -> Replay:
        return replay_for(context, context.agent.config.buffer_size, functools.partial(self.buffer, context))

    def buffer(self, context: TrainingContext, request: BufferRequest) -> Buffer:
        """One buffer of the replay."""
        setup, spaces = context.setup, context.engine.spaces
        stack = frame_stack_of(context.environment)
        ring = Ring(
            spaces,
            request.capacity,
            request.environments,
            self.extras(context),
            stack if has_stacks(zeros(spaces.observation), stack) else 1,
            reward_shape=context.team,
            folder=request.folder(setup.replay_folder),
        )
        view = self.goals(self.view(context), context, request.stream("hindsight"))
        selector, rng = self.selector(context.agent.config, ring), generator(setup.seed, request.stream("replay"))
        return Buffer(ring, selector, view, rng, request.recorded)

    def goals(self, view: View, context: TrainingContext, stream: str) -> View:
        """The view, with goals relabelled as the config says. stream: the name of the generator that draws them."""
        return with_hindsight(view, context, stream)

    def for_data(self, agent: Agent, data: Sources) -> LearningKind:
        return self if data.online else RecordedTransitionLearning(self)

    def extras(self, context: TrainingContext) -> Extras:
        """What the ring stores besides transitions: shapes and dtypes by name."""
        return {}

    def selector(self, config: Any, ring: Ring) -> Selector:
        """Chooses rows of the ring."""
        return Prioritised(ring.rows, config.priority_exponent) if config.priority_exponent else Uniform()

    def adapting(self, context: TrainingContext, replay: Replay) -> Adapting:
        config = context.agent.config
        least = max(values_reached(config, "batch_size")) * config.example_length
        window = min(values_reached(config, "buffer_size"))
        if window < least and any(rule.hyperparameter == "buffer_size" for rule in config.adapt):
            raise ConfigError(
                f"{type(config).__name__}: a rule of adapt may lower buffer_size to {window}, which is less than a "
                f"batch of {least} steps. Give the rule low={least} or more."
            )
        return super().adapting(context, replay)

    def priorities(self, replay: Replay) -> np.ndarray | None:
        if isinstance(replay, Buffer) and isinstance(replay.selector, Prioritised):
            return replay.selector.all_priorities(replay.ring)
        return None

    def view(self, context: TrainingContext) -> View:
        """Reads rows of the ring as a batch."""
        config = context.agent.config
        return MultiAgentTransitions(config.gamma, config.n_step) if context.team else transitions(config)

    def update_schedule(self, config: Any, count: int) -> UpdateSchedule:
        return OffPolicySchedule(config, count)

    def batch_examples(self, config: Any, count: int) -> int | None:
        return config.batch_size

    def explorer(self, agent: Agent, acts_by: ActsBy, action: Space, total: int, count: int) -> Explorer:
        config = agent.config
        alpha = config.exploration_exponent
        if acts_by == "values" and alpha:
            return PerActorEpsilonGreedy(config.epsilon, alpha, count, total)
        if acts_by == "actions" and alpha:
            return PerActorGaussianNoise(config.exploration_noise, alpha, count, total, config.random_steps)
        if acts_by == "distribution" and config.sample_correlation:
            return CorrelatedSample(config.sample_correlation, math.prod(action.shape or ()))
        return super().explorer(agent, acts_by, action, total, count)

    def check_exploration(self, agent: Agent) -> None:
        config = agent.config
        if agent.acts_by == "distribution" and config.exploration_exponent:
            raise ConfigError(
                f"{type(config).__name__}: exploration_exponent = {config.exploration_exponent}, but "
                f"{type(agent).__name__} samples its policy, in all environments alike. Leave it at 0."
            )
        super().check_exploration(agent)

    def actor_priorities(self, context: TrainingContext) -> bool:
        return context.engine.exportable and context.agent.config.actor_priorities

    def check_rewriting(self, context: TrainingContext) -> None:
        super().check_rewriting(context)
        if context.data is not None:
            raise ConfigError(
                "rewrite= changes collected steps, and the recorded ones in data= stay as they are: one batch would "
                "hold both. Wrap the environment, and record the data in it; or leave one of them out."
            )
        if (hindsight := context.agent.config.hindsight) != "none":
            raise ConfigError(
                f"rewrite= changes rewards that hindsight = {hindsight!r} computes again for other goals. Leave one of "
                "them off, or wrap compute_reward of the environment."
            )

    def acting_weights(self, context: TrainingContext) -> tuple[str, ...]:
        if self.actor_priorities(context):
            return tuple(context.engine.layout.initial)
        return super().acting_weights(context)

    def make_actor(self, context: TrainingContext) -> Callable[[], Any]:
        if self.actor_priorities(context):
            return functools.partial(PrioritisingActor, context.agent, context.engine.spaces)
        return super().make_actor(context)


class RecordedTransitionLearning(OfflineLearning):
    """Off-policy learning of another kind from recorded data alone. All steps are gradient steps.

    of: the kind of learning that the replay is from.
    """

    config = OffPolicyConfig

    def __init__(self, of: OffPolicyLearning):
        self.of = of

    def buffer(self, context: TrainingContext, request: BufferRequest) -> Buffer:
        return self.of.buffer(context, request)

    def update_schedule(self, config: Any, count: int) -> UpdateSchedule:
        return OfflineSchedule(PHASE, config.batch_size)

    def batch_examples(self, config: Any, count: int) -> int | None:
        return config.batch_size

    def for_data(self, agent: Agent, data: Sources) -> LearningKind:
        return self.of.for_data(agent, data)


class OffPolicySchedule:
    """A phase after every `train_every` environment steps, once `learning_starts` steps are collected."""

    def __init__(self, config: OffPolicyConfig, count: int):
        self.config, self.count = config, count

    def steps_until_update(self, step: int, stored: int) -> int:
        to_next_phase = self.config.train_every - step % self.config.train_every
        return -(-to_next_phase // self.count)

    def updates_due(self, progress: RunProgress, replay: Replay) -> UpdatesDue:
        phases = progress.step // self.config.train_every
        due, progress.phases = phases - progress.phases, phases
        return UpdatesDue(
            due * self.config.gradient_steps if progress.step >= self.config.learning_starts else 0,
            self.config.batch_size,
            due * self.config.train_every,
        )

    def after_updates(self, replay: Replay) -> None:
        """Transitions stay in the replay."""
