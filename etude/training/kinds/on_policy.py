"""Learning from rollouts of the present policy, which are forgotten afterwards; of one that may be a few updates old,
corrected by importance ratios; with rewards that compare its steps with those of an expert; and from gradients that
actor-learners compute, each in an environment of its own, and that are applied as they come.

Asynchronous gradients: Mnih et al. 2016, arXiv:1602.01783."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

import etude.engines as engines
from etude.adapt.rules import values_reached
from etude.agent import Agent
from etude.base.cores import Busy, usable_cores
from etude.base.data import (
    INITIAL_VERSION,
    LOG_PROB,
    RECURRENT_STATE,
    SAMPLED_ACTION,
    Batch,
    PolicyVersion,
    Steps,
    Update,
    WorkerGradients,
)
from etude.base.errors import ConfigError
from etude.base.seeding import generator
from etude.base.spaces import Box, Spaces
from etude.config import GradientsConfig, OnPolicyConfig, OnPolicySequenceConfig, RolloutConfig, UnrollsConfig
from etude.engines.numpy import NumpyEngine
from etude.protocols import Engine, Explorer, Replay, Rollout, Weights
from etude.replay import (
    Advantages,
    AdvantageSequences,
    Buffer,
    ColumnEpochs,
    Demonstrations,
    Epochs,
    GradientQueue,
    MultiAgentAdvantages,
    Ring,
    Selector,
    UnrolledAdvantages,
    Unrolls,
    View,
)
from etude.replay.ring import Extras
from etude.rewrite import Rewriters
from etude.rollout import LocalActorLearners, PoolOptions, RemoteActorLearners
from etude.training.description import Execution
from etude.training.kinds.kind import LearningKind, TrainingContext, backend_for, environment_maker, recorded_buffer
from etude.training.learner import FromRollouts, GradientSource, explained_variance, refuse_rules
from etude.training.loop import RunLearning
from etude.training.schedule import RunProgress, UpdateSchedule, UpdatesDue
from etude.training.sources import Sources


class OnPolicyLearning(LearningKind):
    """Steps with estimated advantages, in shuffled epochs."""

    name = "advantages"
    config: ClassVar[type[RolloutConfig]] = OnPolicyConfig
    multi_agent = True
    log_prob = True
    whole_rollouts = True
    compiles = True
    adjusts: ClassVar[tuple[str, ...]] = ("rollout_length",)

    def replay(self, context: TrainingContext) -> Replay:
        view, selector = self.view(context), self.selector(context.agent.config)
        return Buffer(self._ring(context), selector, view, generator(context.execution.seed, "replay"))

    def _ring(self, context: TrainingContext) -> Ring:
        """Holds one rollout, the longest that rules make of it."""
        engine, count = context.engine, context.count
        extras = sampled(engine.spaces, context.team) if self.log_prob else {}
        if engine.state_size and context.agent.state_recorded:
            extras = {**extras, RECURRENT_STATE: ((engine.state_size,), np.dtype(np.float32))}
        longest, folder = max(values_reached(context.agent.config, "rollout_length")), context.execution.replay_folder
        return Ring(engine.spaces, longest * count, count, extras, reward_shape=context.team, folder=folder)

    def selector(self, config: Any) -> Selector:
        """Chooses rows of the ring."""
        return Epochs()

    def view(self, context: TrainingContext) -> View:
        """Reads rows of the ring as a batch."""
        estimate = MultiAgentAdvantages if context.team else Advantages
        config = context.agent.config
        return estimate(config.gamma, config.gae_lambda, context.engine.value)

    def gradients(self, context: TrainingContext) -> GradientSource:
        def learned(batches: Batch, hyper: dict[str, float], gradient_steps: int) -> Update:
            update = context.engine.learn(batches, hyper)
            return replace(update, metrics=update.metrics | explained_variance(batches.extras))

        return learned

    def check(self, agent: Agent, execution: Execution) -> None:
        config = agent.config
        lengths = values_reached(config, "rollout_length")
        if len(lengths) > 1 and execution.overlap:
            raise ConfigError(
                f"{type(config).__name__}: adapt changes rollout_length, and overlap = True collects the next rollout "
                "before its length is known. Leave one of them out."
            )
        for length in lengths:
            try:
                replace(config, rollout_length=length)
            except ConfigError as error:
                raise ConfigError(f"A rule of adapt may change rollout_length to {length}: {error}") from error

    def update_schedule(self, config: Any, count: int) -> UpdateSchedule:
        return _OnPolicySchedule(config, count)


def sampled(spaces: Spaces, team: tuple[int, ...] = ()) -> Extras:
    """What a ring stores of the policy's samples, for importance ratios. team: (agents,) of several agents."""
    extras: Extras = {LOG_PROB: (team, np.dtype(np.float32))}
    if isinstance(spaces.action, Box):
        extras[SAMPLED_ACTION] = (spaces.action.shape, np.dtype(np.float32))
    return extras


class LambdaReturnLearning(OnPolicyLearning):
    """The same for agents that act by values: of what they explored with, no probability is needed."""

    name = "lambda_returns"
    log_prob = False


class OnPolicySequenceLearning(OnPolicyLearning):
    """The same for agents with a recurrent state: the sequences that each environment's rollout is cut into."""

    name = "advantage_sequences"
    config: ClassVar[type[Any]] = OnPolicySequenceConfig
    multi_agent = False

    def selector(self, config: Any) -> Selector:
        return ColumnEpochs(config.sequence_length)

    def view(self, context: TrainingContext) -> View:
        config, engine, length = context.agent.config, context.engine, context.agent.config.sequence_length
        if context.agent.state_recorded:
            return AdvantageSequences(length, Advantages(config.gamma, config.gae_lambda, engine.value))
        size = (context.count, engine.state_size)
        return AdvantageSequences(
            length, UnrolledAdvantages(config.gamma, config.gae_lambda, engine.value, length, size)
        )


class _OnPolicySchedule:
    """A phase after `rollout_length` time steps of every environment, which are then forgotten. Examples are steps, or
    the whole rollouts of environments, or sequences that these are cut into.

    examples: in a batch.
    """

    forgets = True

    def __init__(self, config: OnPolicyConfig, count: int):
        self.config: OnPolicyConfig = config
        self.count: int = count
        self._rows = config.rollout_length * count
        self.examples: int = max(1, min(config.minibatch_size or self._rows, self._rows) // config.example_length)

    def steps_until_update(self, step: int, stored: int) -> int:
        return self.config.rollout_length - stored // self.count % self.config.rollout_length

    def updates_due(self, progress: RunProgress, replay: Replay) -> UpdatesDue:
        batches = self._rows // self.config.example_length // self.examples
        complete = len(replay) >= self._rows
        return UpdatesDue(self.config.epochs * batches * complete, self.examples, self._rows * complete)


class UnrollLearning(OnPolicyLearning):
    """The whole rollout of each environment."""

    name = "unrolls"
    config: ClassVar[type[Any]] = UnrollsConfig
    multi_agent = False

    def selector(self, config: Any) -> Selector:
        return ColumnEpochs()

    def view(self, context: TrainingContext) -> View:
        return Unrolls(context.agent.config.gamma)


class ImitationLearning(OnPolicyLearning):
    """Advantages of the rewards that `Agent.reward` computes, with as many recorded steps of the expert in each
    batch. The normaliser starts from the expert's observations."""

    name = "demonstrations"
    multi_agent = False
    uses_data = True
    refuses: ClassVar[Mapping[str, str]] = {
        "rewrite": "rewrite= changes the environment's rewards; {agent} learns from rewards of its own model. Leave it "
        "out."
    }

    def for_data(self, agent: Agent, data: Sources) -> LearningKind:
        if data.single is None:
            raise ConfigError(
                f"{agent} compares its steps with one expert's: give data= one file or Dataset, without shares."
            )
        return self

    def view(self, context: TrainingContext) -> View:
        config, engine = context.agent.config, context.engine
        expert = recorded_buffer(context, context.recorded(), "expert")
        return Demonstrations(Advantages(config.gamma, config.gae_lambda, engine.value), expert, engine.reward)

    def make_learner(self, context: TrainingContext, rewriters: Rewriters | None = None) -> RunLearning:
        learner: Any = super().make_learner(context, rewriters)
        if (steps := context.recorded().steps()) is not None:
            learner.follow_moments(steps)
        return learner


class AsyncGradientLearning(LearningKind):
    """Gradients of the rollouts of single environments."""

    name = "gradients"
    config: ClassVar[type[Any]] = GradientsConfig
    log_prob = True
    one_by_one = True
    collects_steps = False
    returns_gradients = True
    refuses: ClassVar[Mapping[str, str]] = {
        "native": "{agent} steps one environment at a time, which a native simulator cannot. Leave vectorization on "
        "auto, or use loop."
    }

    def check(self, agent: Agent, execution: Execution) -> None:
        refuse_rules(agent.config)

    def replay(self, context: TrainingContext) -> Replay:
        return GradientQueue()

    def update_schedule(self, config: Any, count: int) -> UpdateSchedule:
        return _AsyncGradientsSchedule(config)

    def gradients(self, context: TrainingContext) -> GradientSource:
        return FromRollouts(context.engine)

    def rollout(self, context: TrainingContext, explorer: Explorer) -> Rollout:
        agent, engine, execution = context.agent, context.engine, context.execution
        make, name, built = environment_maker(self, context), str(agent), engine.layout.agent
        if execution.overlap:
            raise ConfigError(
                f"{name}'s environments are always at their next rollouts while gradients are applied. Leave "
                "overlap off."
            )
        if frozen := engine.layout.untrained:
            raise ConfigError(
                f"{name} learns from gradients alone, and no gradient moves {', '.join(sorted(frozen))}. Use a network "
                "without running statistics, such as an Mlp or a Conv."
            )
        if built.noise or built.batch_noise or built.trained_every or built.trust_regions:
            raise ConfigError(
                f"{name} has losses with noise of their own, with a trust region, or that are not due at every "
                "gradient step; each environment differentiates all losses by itself. Use an agent without `noise`, "
                "`batch_noise`, `trust_regions` and `trained_every`."
            )
        make_actor, count = _MakeActorLearner(agent, engine.spaces, engine.name, execution.compiled), context.count
        seed, length = execution.seed, agent.config.rollout_length
        found: Any  # a rollout that collects no episodes
        if execution.workers == 0:
            found = LocalActorLearners(make(np.arange(count)), make_actor(), explorer, seed, length)
        else:
            weights, options = engine.weights(), PoolOptions(backend=backend_for(execution))
            found = RemoteActorLearners(
                make, make_actor.in_worker, explorer, seed, length, weights, count, execution.workers, options
            )
        return found


class _AsyncGradientsSchedule:
    """A phase of one gradient step for every gradient that arrives: one after `rollout_length` steps of one
    environment."""

    examples = None
    forgets = True

    def __init__(self, config: GradientsConfig):
        self.config = config

    def steps_until_update(self, step: int, stored: int) -> int:
        return self.config.rollout_length  # or as many as are left of the rollout that has begun: the rollout knows

    def updates_due(self, progress: RunProgress, replay: Replay) -> UpdatesDue:
        return UpdatesDue(len(replay), 1, len(replay) * self.config.rollout_length)


class _EngineActorLearner:
    """Acts as `NumpyEngine` does where that can, else with the engine that it differentiates with."""

    state_size = 0
    acted: Any = None
    rewarded: Any = None

    def __init__(self, engine: Engine, agent: Agent):
        self._engine = engine
        self._actor: Any = NumpyEngine(agent, engine.spaces) if engine.exportable else engine
        self._ring = Ring(engine.spaces, agent.config.rollout_length, 1, sampled(engine.spaces))
        self._view = Advantages(agent.config.gamma, agent.config.gae_lambda, engine.value)
        self._version = INITIAL_VERSION
        self.act: Any = self._actor.act

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Act and differentiate with these weights, and with the hyperparameters of their version."""
        self._version = version
        self._engine.load(weights)
        if self._actor is not self._engine:
            self._actor.load(weights)

    def gradients(self, steps: Steps) -> WorkerGradients:
        """Gradients at all steps [T, 1] of a rollout at once."""
        self._ring.add(replace(steps, columns=np.zeros(1, np.int64)))
        hyper = self._version.hyper
        self._view.adjust(hyper)
        batch = self._view(self._ring, np.arange(len(steps)), np.ones(len(steps), np.float32))
        gradients, update = self._engine.gradients(batch, hyper)
        self._ring.clear()
        at = self._version.gradient_steps
        return WorkerGradients(len(steps), steps.episodes, gradients, update.losses, update.metrics, at)


@dataclass(frozen=True)
class _MakeActorLearner:
    """Makes an actor-learner with an engine of its own, with the framework that the run learns with."""

    agent: Agent
    spaces: Spaces
    engine: str
    compiled: bool

    def __call__(self) -> _EngineActorLearner:
        """On the CPU and with one thread, so that rollouts give the same gradients wherever they are differentiated."""
        alone = Busy(usable_cores(), usable_cores())
        engine = engines.create(self.engine, self.agent, self.spaces, device="cpu", compiled=self.compiled, busy=alone)
        return _EngineActorLearner(engine, self.agent)

    def in_worker(self) -> _EngineActorLearner:
        """In a process of its own, which leaves the GPUs and their memory to the learner."""
        os.environ.update(JAX_PLATFORMS="cpu", CUDA_VISIBLE_DEVICES="")
        return self()
