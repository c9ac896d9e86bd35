"""Actor-side initial priorities (Ape-X): the TD errors that new rows of a prioritised replay begin with. Horgan et al.
2018, arXiv:1803.00933."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from etude.agent import Agent
from etude.base.data import INITIAL_VERSION, PolicyVersion, Steps
from etude.base.schedules import all_at
from etude.base.spaces import Spaces
from etude.engines.numpy import NumpyEngine
from etude.protocols import Weights
from etude.replay import NStep, OneStep, Ring


class PrioritisingActor:
    """Acts as `NumpyEngine` does, and evaluates the agent's loss on collected steps with the weights that were loaded
    last and the hyperparameters of their version."""

    state_size = 0

    def __init__(self, agent: Agent, spaces: Spaces):
        self._engine, self._config = NumpyEngine(agent, spaces), agent.config
        self._hyper = all_at(agent.config, self._engine.layout.hyper, 0, 1)
        self._view = transitions(agent.config)
        self.weights, self.act = self._engine.weights, self._engine.act

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Act and evaluate with these from now on."""
        self._engine.load(weights)
        self._hyper |= version.hyper

    def errors(self, steps: Steps) -> np.ndarray:
        """Temporal-difference errors [T, N] float32; NaN where the n-step target lies beyond these steps."""
        times, n = steps.shape
        ring = Ring(self._engine.spaces, times * n, n)
        ring.add(dataclasses.replace(steps, columns=np.arange(n)))
        rows = np.arange(times * n)
        batch = self._view(ring, rows, np.ones(len(rows), np.float32))
        errors = self._engine.td_error(batch, self._hyper).reshape(times, n)
        ended = steps.terminated | steps.truncated
        complete = np.logical_or.accumulate(ended[::-1])[::-1]
        complete[: max(0, times - self._config.n_step + 1)] = True
        return np.where(complete, errors, np.nan).astype(np.float32)


def transitions(config: Any) -> OneStep | NStep:
    """The view of a config that learns from transitions."""
    return OneStep(config.gamma) if config.n_step == 1 else NStep(config.gamma, config.n_step)
