"""Actor-learners: what acts in one environment at a time and differentiates the agent's losses at what it collected.
Mnih et al. 2016, arXiv:1602.01783."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from etude import engines
from etude.agent import Agent
from etude.base.cores import Busy, usable_cores
from etude.base.data import Steps, WorkerGradients
from etude.base.errors import ConfigError
from etude.base.spaces import Spaces
from etude.engines.gradients import FromRollouts, split_marks
from etude.engines.numpy import NumpyEngine
from etude.protocols import Engine, Environments, Explorer, Weights
from etude.replay import Advantages, Ring
from etude.rollout import AsyncGradients, LocalActorLearners, RemoteActorLearners, split_environments
from etude.training.build.setup import Setup

LOG_PROB = {"log_prob": ((), np.dtype(np.float32))}


class EngineActorLearner:
    """Acts as `NumpyEngine` does where that can, else with the engine that it differentiates with."""

    memory = 0

    def __init__(self, engine: Engine, agent: Agent):
        self._engine = engine
        self._actor: Any = NumpyEngine(agent, engine.spaces) if engine.exportable else engine
        self._ring = Ring(engine.spaces, agent.config.rollout_length, 1, LOG_PROB)
        self._view = Advantages(agent.config.gamma, agent.config.gae_lambda, engine.value)
        self._hyper: dict[str, float] = {}
        self._updates = 0
        self.act = self._actor.act

    def load(self, weights: Weights) -> None:
        """Take over weights, and the hyperparameters and the number of updates that belong to them."""
        weights, self._hyper, self._updates = split_marks(weights)
        self._engine.load(weights)
        if self._actor is not self._engine:
            self._actor.load(weights)

    def gradients(self, steps: Steps) -> WorkerGradients:
        """Gradients at all steps [T, 1] of a rollout at once."""
        self._ring.add(dataclasses.replace(steps, columns=np.zeros(1, np.int64)))
        self._view.adjust(self._hyper)
        batch = self._view(self._ring, np.arange(len(steps)), np.ones(len(steps), np.float32))
        gradients, told = self._engine.gradients(batch, self._hyper)
        self._ring.clear()
        return WorkerGradients(len(steps), steps.episodes, gradients, told.losses, told.metrics, self._updates)


@dataclasses.dataclass(frozen=True)
class MakeActorLearner:
    """Makes an actor-learner with an engine of its own, of the kind that the run learns with."""

    agent: Agent
    spaces: Spaces
    engine: str
    compiled: bool

    def __call__(self) -> EngineActorLearner:
        """On the CPU and with one thread, so that rollouts give the same gradients wherever they are differentiated."""
        alone = Busy(usable_cores(), usable_cores())
        more = {"device": "cpu", "compiled": self.compiled, "busy": alone}
        return EngineActorLearner(engines.create(self.engine, self.agent, self.spaces, **more), self.agent)

    def in_worker(self) -> EngineActorLearner:
        """In a process of its own, which leaves the GPUs and their memory to the learner."""
        os.environ.update(JAX_PLATFORMS="cpu", CUDA_VISIBLE_DEVICES="")
        return self()


def async_gradients_for(
    make_environments: Callable[[Any], Environments],
    agent: Agent,
    engine: Engine,
    explorer: Explorer,
    setup: Setup,
    vectorization: str,
) -> AsyncGradients:
    """The rollout of an agent that learns from gradients. engine: the learner's."""
    _check(agent, engine, vectorization, setup.overlap)
    make, count = MakeActorLearner(agent, engine.spaces, engine.name, setup.compiled), setup.environments
    if setup.workers == 0:
        learners: Any = LocalActorLearners(make_environments(np.arange(count)), make(), explorer, setup.seed)
    else:
        hyper = dict.fromkeys(engine.structure.hyper, 0.0)
        like = engine.weights() | FromRollouts(engine).marks(0, hyper)
        parts = split_environments(count, setup.workers)
        learners = RemoteActorLearners(make_environments, make.in_worker, explorer, setup.seed, like, parts)
    return AsyncGradients(learners, count, agent.config.rollout_length)


def _check(agent: Agent, engine: Engine, vectorization: str, overlap: bool) -> None:
    """Raise ConfigError where gradients cannot be computed in the rollouts of single environments."""
    name, built = type(agent).__name__, engine.structure.agent
    if vectorization == "native":
        raise ConfigError(
            f"{name} steps one environment at a time, which a native simulator cannot. Leave vectorization on auto, or "
            "use loop."
        )
    if overlap:
        raise ConfigError(
            f"{name}'s environments are always at their next rollouts while gradients are applied. Leave overlap off."
        )
    parts = engine.structure.parts.items()
    if frozen := [f"{part}.{v}" for part, own in parts if own.target_of is None for v in own.frozen]:
        raise ConfigError(
            f"{name} learns from gradients alone, and no gradient moves {', '.join(sorted(frozen))}. Use a network "
            "without running statistics, such as an Mlp or a Conv."
        )
    if built.noise or built.batch_noise or built.trained_every:
        raise ConfigError(
            f"{name} has losses with noise of their own, or that are not due at every gradient step; each environment "
            "differentiates all losses by itself. Use an agent without `noise`, `batch_noise` and `trained_every`."
        )
