"""Learning from gradients that actor-learners compute, each in an environment of its own, and that are applied as they
come. Mnih et al. 2016, arXiv:1602.01783."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

import etude.engines as engines
from etude.agent import Agent
from etude.base.cores import Busy, usable_cores
from etude.base.data import INITIAL_VERSION, PolicyVersion, Steps, WorkerGradients
from etude.base.errors import ConfigError
from etude.base.spaces import Spaces
from etude.config import GradientsConfig
from etude.engines.numpy import NumpyEngine
from etude.engines.updates import FromRollouts, GradientSource
from etude.protocols import Engine, Explorer, Replay, Rollout, Weights
from etude.replay import Advantages, GradientQueue, Ring
from etude.rollout import LocalActorLearners, PoolOptions, RemoteActorLearners
from etude.training.adapting import refuse_rules
from etude.training.description import Execution
from etude.training.kinds.kind import LearningKind, TrainingContext, backend_for, environment_maker
from etude.training.kinds.on_policy import sampled
from etude.training.schedule import RunProgress, UpdateSchedule, UpdatesDue


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

    def check(self, agent: Agent, setup: Execution) -> None:
        refuse_rules(agent.config)

    def replay(self, context: TrainingContext) -> Replay:
        return GradientQueue()

    def update_schedule(self, config: Any, count: int) -> UpdateSchedule:
        return AsyncGradientsSchedule(config)

    def gradients(self, context: TrainingContext) -> GradientSource:
        return FromRollouts(context.engine)

    def rollout(self, context: TrainingContext, explorer: Explorer) -> Rollout:
        make, agent, engine, setup = environment_maker(self, context), context.agent, context.engine, context.setup
        _check(agent, engine, setup)
        make_actor, count = MakeActorLearner(agent, engine.spaces, engine.name, setup.compiled), context.count
        seed, length = setup.seed, agent.config.rollout_length
        found: Any  # a rollout that collects no episodes
        if setup.workers == 0:
            found = LocalActorLearners(make(np.arange(count)), make_actor(), explorer, seed, length)
        else:
            weights, options = engine.weights(), PoolOptions(backend=backend_for(setup))
            found = RemoteActorLearners(
                make, make_actor.in_worker, explorer, seed, length, weights, count, setup.workers, options
            )
        return found


class AsyncGradientsSchedule:
    """A phase of one gradient step for every gradient that arrives: one after `rollout_length` steps of one
    environment."""

    examples = None

    def __init__(self, config: GradientsConfig):
        self.config = config

    def steps_until_update(self, step: int, stored: int) -> int:
        return self.config.rollout_length  # or as many as are left of the rollout that has begun: the rollout knows

    def updates_due(self, progress: RunProgress, replay: Replay) -> UpdatesDue:
        return UpdatesDue(len(replay), 1, len(replay) * self.config.rollout_length)

    def after_updates(self, replay: Replay) -> None:
        replay.clear()


def _check(agent: Agent, engine: Engine, setup: Execution) -> None:
    """Raise ConfigError where gradients cannot be computed in the rollouts of single environments."""
    name, built = type(agent).__name__, engine.layout.agent
    if setup.overlap:
        raise ConfigError(
            f"{name}'s environments are always at their next rollouts while gradients are applied. Leave overlap off."
        )
    if frozen := engine.layout.untrained:
        raise ConfigError(
            f"{name} learns from gradients alone, and no gradient moves {', '.join(sorted(frozen))}. Use a network "
            "without running statistics, such as an Mlp or a Conv."
        )
    if built.noise or built.batch_noise or built.trained_every:
        raise ConfigError(
            f"{name} has losses with noise of their own, or that are not due at every gradient step; each environment "
            "differentiates all losses by itself. Use an agent without `noise`, `batch_noise` and `trained_every`."
        )


class EngineActorLearner:
    """Acts as `NumpyEngine` does where that can, else with the engine that it differentiates with."""

    state_size = 0

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
        self._ring.add(dataclasses.replace(steps, columns=np.zeros(1, np.int64)))
        hyper = self._version.hyper
        self._view.adjust(hyper)
        batch = self._view(self._ring, np.arange(len(steps)), np.ones(len(steps), np.float32))
        gradients, update = self._engine.gradients(batch, hyper)
        self._ring.clear()
        at = self._version.gradient_steps
        return WorkerGradients(len(steps), steps.episodes, gradients, update.losses, update.metrics, at)


@dataclasses.dataclass(frozen=True)
class MakeActorLearner:
    """Makes an actor-learner with an engine of its own, with the framework that the run learns with."""

    agent: Agent
    spaces: Spaces
    engine: str
    compiled: bool

    def __call__(self) -> EngineActorLearner:
        """On the CPU and with one thread, so that rollouts give the same gradients wherever they are differentiated."""
        alone = Busy(usable_cores(), usable_cores())
        engine = engines.create(self.engine, self.agent, self.spaces, device="cpu", compiled=self.compiled, busy=alone)
        return EngineActorLearner(engine, self.agent)

    def in_worker(self) -> EngineActorLearner:
        """In a process of its own, which leaves the GPUs and their memory to the learner."""
        os.environ.update(JAX_PLATFORMS="cpu", CUDA_VISIBLE_DEVICES="")
        return self()
