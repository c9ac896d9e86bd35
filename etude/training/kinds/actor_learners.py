"""Actor-learners: what acts in one environment at a time and differentiates the agent's losses at what it collected.
Mnih et al. 2016, arXiv:1602.01783."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np

import etude.engines as engines
from etude.agent import Agent
from etude.base.cores import Busy, usable_cores
from etude.base.data import INITIAL_VERSION, PolicyVersion, Steps, WorkerGradients
from etude.base.spaces import Spaces
from etude.engines.numpy import NumpyEngine
from etude.protocols import Engine, Weights
from etude.replay import Advantages, Ring
from etude.training.kinds.on_policy import sampled


class EngineActorLearner:
    """Acts as `NumpyEngine` does where that can, else with the engine that it differentiates with."""

    state_size = 0

    def __init__(self, engine: Engine, agent: Agent):
        self._engine = engine
        self._actor: Any = NumpyEngine(agent, engine.spaces) if engine.exportable else engine
        self._ring = Ring(engine.spaces, agent.config.rollout_length, 1, sampled(engine.spaces))
        self._view = Advantages(agent.config.gamma, agent.config.gae_lambda, engine.value)
        self._version = INITIAL_VERSION
        self.act = self._actor.act

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
