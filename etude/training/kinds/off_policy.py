"""Learning from recorded or replayed transitions, or sequences of them, whatever policy collected them. Recorded ones
may be all there is, be among the others, or come first (offline-to-online fine-tuning).

Hindsight experience replay (HER): Andrychowicz et al. 2017, arXiv:1707.01495. Initial priorities that actors compute
(Ape-X): Horgan et al. 2018, arXiv:1803.00933."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from etude.adapt.rules import values_reached
from etude.agent import Agent
from etude.base.data import INITIAL_VERSION, RECURRENT_STATE, PolicyVersion, Steps
from etude.base.errors import ConfigError
from etude.base.schedules import all_at
from etude.base.seeding import generator
from etude.base.spaces import Spaces, zeros
from etude.config import Config, OfflineConfig, OfflineToOnlineConfig, OffPolicyConfig, PairsConfig, SequenceConfig
from etude.engines.numpy import NumpyEngine
from etude.envs import GoalOutcome, frame_stack_of
from etude.multi_agent.joint import ACTING, ACTIVE, STATUS
from etude.protocols import Replay, Weights
from etude.replay import (
    BestEpisodes,
    Buffer,
    Hindsight,
    MultiAgentTransitions,
    NewFirst,
    NStep,
    OneStep,
    PreferencePairs,
    Prioritised,
    Ring,
    Selector,
    Sequences,
    TokenSequences,
    Uniform,
    View,
)
from etude.replay.hindsight import require_goals
from etude.replay.observations import has_stacks
from etude.replay.ring import Extras
from etude.training.description import Execution
from etude.training.kinds.kind import BufferRequest, LearningKind, TrainingContext, replay_for
from etude.training.schedule import RunProgress, UpdateSchedule, UpdatesDue
from etude.training.sources import SAMPLER, Sources


class OfflineLearning(LearningKind):
    """Recorded transitions. Environments are stepped for evaluation only.

    view: made with the discount factor, and, where examples are longer than a step, their length; it reads rows of the
        ring as a batch.
    """

    config: ClassVar[type[Config]] = OfflineConfig
    uses_data = True
    replays_data = True
    steps_environments = False
    collects_steps = False

    def __init__(self, name: str = "transitions", view: Callable[..., View] = OneStep):
        self.name: str = name
        self._view = view

    def replay(self, context: TrainingContext) -> Replay:
        return replay_for(context, 0, functools.partial(self.buffer, context))

    def buffer(self, context: TrainingContext, request: BufferRequest) -> Buffer:
        """One buffer of the replay."""
        execution = context.execution
        folder = request.folder(execution.replay_folder)
        ring = Ring(context.engine.spaces, request.capacity, extras=self.extras(context), folder=folder)
        view, rng = self.view(context), generator(execution.seed, request.stream("replay"))
        return Buffer(ring, self.selector(context.agent.config), view, rng, request.recorded)

    def selector(self, config: Any) -> Selector:
        """Chooses rows of the ring."""
        return BestEpisodes(config.best)

    def extras(self, context: TrainingContext) -> Extras:
        """What the ring stores besides transitions: shapes and dtypes by name."""
        return {}

    def view(self, context: TrainingContext) -> View:
        """Reads rows of the ring as a batch."""
        config = context.agent.config
        lengths = [config.example_length] * (config.example_length > 1)
        return self._view(config.gamma, *lengths)

    def update_schedule(self, config: Any, count: int) -> UpdateSchedule:
        return _OfflineSchedule(config.gradient_steps, config.batch_size)

    def check(self, agent: Agent, execution: Execution) -> None:
        if execution.workers or execution.overlap or execution.environments not in (None, 1):
            raise ConfigError(
                f"{agent} learns from recorded data and steps no environment: leave out workers, "
                "overlap and environments."
            )

    def for_data(self, agent: Agent, data: Sources) -> LearningKind:
        if data.online:
            raise ConfigError(
                f'{agent} learns from recorded data alone and cannot go online: leave "{SAMPLER}" out '
                "of data. awac, cal_ql, cql, iql and td3_bc learn from both."
            )
        return self


class TokenSequenceLearning(OfflineLearning):
    """Whole games of tokens; pairs: the better one of two that began alike, and the other one."""

    whole_games = True

    def __init__(self, pairs: bool = False) -> None:
        super().__init__("token_pairs" if pairs else "token_sequences", TokenSequences)
        self.config = PairsConfig if pairs else OfflineConfig  # type: ignore[misc]
        self._pairs = pairs

    def selector(self, config: Any) -> Selector:
        return PreferencePairs(config.best) if self._pairs else BestEpisodes(config.best, first=True)


class _OfflineSchedule:
    """A phase of so many gradient steps on batches of `examples` whenever one is asked for: nothing has to be
    collected, and gradient steps are the steps of the run."""

    forgets = False

    def __init__(self, gradient_steps: int, examples: int):
        self._gradient_steps, self.examples = gradient_steps, examples
        self._step = 0  # at which a phase was asked for last

    def steps_until_update(self, step: int, stored: int) -> int:
        return self._gradient_steps

    def updates_due(self, progress: RunProgress, replay: Replay) -> UpdatesDue:
        steps, self._step = progress.step - self._step, progress.step
        return UpdatesDue(steps, self.examples, steps)


PHASE = 100  # gradient steps of a learning phase on recorded data alone, as `OfflineConfig` has them


class OffPolicyLearning(LearningKind):
    """Transitions: of one step, or of `n_step`; drawn uniformly, or by priorities."""

    name = "transitions"
    config: ClassVar[type[Config]] = OffPolicyConfig
    environments = 1
    multi_agent = True
    takes_data = True
    replays_data = True
    shares_replay = True
    compiles = True
    adjusts: ClassVar[tuple[str, ...]] = ("buffer_size",)

    def replay(self, context: TrainingContext) -> Replay:
        return replay_for(context, context.agent.config.buffer_size, functools.partial(self.buffer, context))

    def buffer(self, context: TrainingContext, request: BufferRequest) -> Buffer:
        """One buffer of the replay."""
        execution, spaces = context.execution, context.engine.spaces
        stack = frame_stack_of(context.environment)
        ring = Ring(
            spaces, request.capacity, request.environments, self.extras(context),
            stack if has_stacks(zeros(spaces.observation), stack) else 1, reward_shape=context.team,
            folder=request.folder(execution.replay_folder),
        )  # fmt: skip
        view = self.goals(self.view(context), context, request.stream("hindsight"))
        selector, rng = self.selector(context.agent.config, ring), generator(execution.seed, request.stream("replay"))
        return Buffer(ring, selector, view, rng, request.recorded)

    def goals(self, view: Any, context: TrainingContext, stream: str) -> View:
        """The view, with the share of relabelled goals that the config asks for. ConfigError where the environment has
        no goals, several agents, or stacked frames. stream: the name of the generator that goals are drawn with."""
        config, name = context.agent.config, str(context.agent)
        if config.hindsight == "none":
            return view
        if context.team:
            raise ConfigError(
                f"{name}: hindsight = {config.hindsight!r}, but this environment has several agents; goals are "
                "relabelled for one. Leave hindsight off."
            )
        if (stack := frame_stack_of(context.environment)) > 1:
            raise ConfigError(
                f"{name}: hindsight = {config.hindsight!r}, but frame_stack = {stack} stacks goals, too, and "
                "compute_reward takes single ones. Leave one of them off."
            )
        require_goals(context.engine.spaces.observation)
        share = config.hindsight_goals / (config.hindsight_goals + 1)
        rng = generator(context.execution.seed, stream)
        outcome = GoalOutcome(context.environment)
        return Hindsight(view, outcome, rng, config.hindsight, share, functools.partial(_warn, outcome.name))

    def for_data(self, agent: Agent, data: Sources) -> LearningKind:
        return self if data.online else _RecordedTransitionLearning(self)

    def extras(self, context: TrainingContext) -> Extras:
        """What the ring stores besides transitions: shapes and dtypes by name."""
        return {}

    def selector(self, config: Any, ring: Ring) -> Selector:
        """Chooses rows of the ring."""
        return Prioritised(ring.rows, config.priority_exponent) if config.priority_exponent else Uniform()

    def view(self, context: TrainingContext) -> View:
        """Reads rows of the ring as a batch."""
        config = context.agent.config
        return MultiAgentTransitions(config.gamma, config.n_step) if context.team else transitions(config)

    def update_schedule(self, config: Any, count: int) -> UpdateSchedule:
        return _OffPolicySchedule(config, count)

    def check(self, agent: Agent, execution: Execution) -> None:
        config = agent.config
        least = max(values_reached(config, "batch_size")) * config.example_length
        window = min(values_reached(config, "buffer_size"))
        if window < least and any(rule.hyperparameter == "buffer_size" for rule in config.adapt):
            raise ConfigError(
                f"{type(config).__name__}: a rule of adapt may lower buffer_size to {window}, which is less than a "
                f"batch of {least} steps. Give the rule low={least} or more."
            )

    def actor(self, context: TrainingContext, collecting: bool = True) -> Callable[[], Any]:
        if collecting and context.actor_priorities:
            return functools.partial(PrioritisingActor, context.agent, context.engine.spaces, self.view(context))
        return super().actor(context)


class NewTransitionLearning(OffPolicyLearning):
    """Transitions, of which each is learned from once: the first `new_steps` of a batch are those that came since the
    last one, with weight 1, and the others, with weight 0, are drawn from all."""

    name = "new_transitions"
    multi_agent = False
    shares_replay = False

    def selector(self, config: Any, ring: Ring) -> Selector:
        return NewFirst(ring.rows, config.new_steps)

    def for_data(self, agent: Agent, data: Sources) -> LearningKind:
        if data.single is None:
            raise ConfigError(
                f"{agent} learns from each step once, in order: give data= one source of recorded "
                "episodes, or leave it out."
            )
        return super().for_data(agent, data)

    def check(self, agent: Agent, execution: Execution) -> None:
        super().check(agent, execution)
        if execution.strategy is not None or execution.devices not in (None, 1):
            raise ConfigError(
                f"{agent} learns from one step after the other, on one device. Leave devices and "
                "strategy out; workers= collects in several processes."
            )


class _RecordedTransitionLearning(OfflineLearning):
    """Off-policy learning of another kind from recorded data alone. All steps are gradient steps.

    of: the kind of learning that the replay is from.
    """

    config: ClassVar[type[Any]] = OffPolicyConfig

    def __init__(self, of: OffPolicyLearning):
        self.of = of

    def buffer(self, context: TrainingContext, request: BufferRequest) -> Buffer:
        return self.of.buffer(context, request)

    def update_schedule(self, config: Any, count: int) -> UpdateSchedule:
        return _OfflineSchedule(PHASE, config.batch_size)

    def for_data(self, agent: Agent, data: Sources) -> LearningKind:
        return self.of.for_data(agent, data)


class _OffPolicySchedule:
    """A phase after every `train_every` environment steps, once `learning_starts` steps are collected."""

    forgets = False

    def __init__(self, config: OffPolicyConfig, count: int):
        self.config: OffPolicyConfig = config
        self.count: int = count
        self.examples: int = config.batch_size

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


class PrioritisingActor:
    """Acts as `NumpyEngine` does, and evaluates the agent's loss on collected steps with the weights that were loaded
    last and the hyperparameters of their version."""

    state_size = 0

    def __init__(self, agent: Agent, spaces: Spaces, view: View):
        self._engine, self._config = NumpyEngine(agent, spaces), agent.config
        self._hyper = all_at(agent.config, self._engine.layout.hyper, 0, 1)
        self._view = view
        self.weights, self.act = self._engine.weights, self._engine.act

    def read_by_acting(self) -> tuple[str, ...]:
        """The names of the weights that acting and errors read: all."""
        return tuple(self._engine.layout.initial)

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Act and evaluate with these from now on."""
        self._engine.load(weights)
        self._hyper |= version.hyper

    def errors(self, steps: Steps) -> np.ndarray:
        """Temporal-difference errors [T, N] float32; NaN where the n-step target lies beyond these steps."""
        times, n = steps.shape
        ring = Ring(self._engine.spaces, times * n, n, reward_shape=steps.reward.shape[2:])
        ring.add(dataclasses.replace(steps, columns=np.arange(n)))
        rows = np.arange(times * n)
        batch = self._view(ring, rows, np.ones(len(rows), np.float32))
        errors = self._engine.td_error(batch, self._hyper).reshape(times, n)
        ended = steps.terminated | steps.truncated
        complete = np.logical_or.accumulate(ended[::-1])[::-1]
        complete[: max(0, times - self._config.n_step + 1)] = True
        if ACTIVE in batch.extras:  # the next turn of each agent is among these steps
            known = (batch.extras[ACTIVE] > 0) | (batch.observation[STATUS] != ACTING)
            complete &= known.all(-1).reshape(times, n)
        return np.where(complete, errors, np.nan).astype(np.float32)


def transitions(config: Any) -> OneStep | NStep:
    """The view of a config that learns from transitions."""
    return OneStep(config.gamma) if config.n_step == 1 else NStep(config.gamma, config.n_step)


def _warn(name: str, stored: float, found: float) -> None:
    warnings.warn(
        f"{name}: a step was rewarded with {stored:g}, and compute_reward gives {found:g} for its goals. Hindsight "
        "mixes both, so that goals count by where their rewards come from. Where a wrapper changes rewards, give it a "
        "compute_reward that changes them likewise: wrappers are asked first.",
        stacklevel=2,
    )


class OffPolicySequenceLearning(OffPolicyLearning):
    """Sequences of transitions, with the recurrent state that they were acted with where the config stores it."""

    name = "sequences"
    config: ClassVar[type[Any]] = SequenceConfig
    multi_agent = False
    shares_replay = False

    def extras(self, context: TrainingContext) -> Extras:
        stored = context.agent.config.stored_state
        if stored and context.data is not None:
            raise ConfigError(
                f"{context.agent}: stored_state = True, but recorded episodes hold no recurrent states. "
                "Give stored_state=False: sequences then start from zeros, and burn_in warms the state up."
            )
        return {RECURRENT_STATE: ((context.engine.state_size,), np.dtype(np.float32))} if stored else {}

    def view(self, context: TrainingContext) -> View:
        config = context.agent.config
        return Sequences(config.gamma, config.sequence_length, config.burn_in)


class OfflineToOnlineLearning(OfflineLearning):
    """Recorded transitions, which collected ones may join."""

    config: ClassVar[type[Any]] = OfflineToOnlineConfig

    def for_data(self, agent: Agent, data: Sources) -> LearningKind:
        return _FineTuning(self) if data.online else self


class _FineTuning(OffPolicyLearning):
    """Collected transitions, and recorded ones in fixed shares, for an agent that learned from the latter alone.

    offline: how it learned from them.
    """

    config: ClassVar[type[Any]] = OfflineToOnlineConfig
    multi_agent = False
    shares_replay = False

    def __init__(self, offline: OfflineToOnlineLearning):
        self.offline = offline

    def buffer(self, context: TrainingContext, request: BufferRequest) -> Buffer:
        return (self.offline.buffer if request.recorded else super().buffer)(context, request)

    def selector(self, config: Any, ring: Ring) -> Selector:
        return Uniform()

    def view(self, context: TrainingContext) -> View:
        return self.offline.view(context)

    def goals(self, view: View, context: TrainingContext, stream: str) -> View:
        return view

    def for_data(self, agent: Agent, data: Sources) -> LearningKind:
        return self.offline.for_data(agent, data)
