"""The rollout of a run: made when the first step is asked for, given up where it fails, saved and gone on from."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude import assembly
from etude.agent import Agent
from etude.assembly import Setup
from etude.data import Steps
from etude.errors import EtudeError
from etude.protocols import Engine, Explorer, Rollout, Weights
from etude.rollout.saved import given_up, open_episodes


class Collection:
    """Collects for one run, with one rollout after the other where there has to be a new one."""

    def __init__(self, environment: Any, agent: Agent, engine: Engine, setup: Setup):
        assert setup.environments is not None
        self._environment, self._agent, self._engine, self._setup = environment, agent, engine, setup
        self._rollout: Rollout | None = None
        self._explorer: Explorer | None = None
        self._left: dict | None = None  # the state that the next rollout is to continue from
        self._episodes = np.zeros(setup.environments, np.int64)  # the number of each environment's open episode
        self._step = 0
        self._notes: list[str] = []

    def open(self, total: int, weights: Weights) -> None:
        """Be ready to collect in a run of `total` environment steps."""
        explorer = assembly.explorer_for(self._agent, self._engine.spaces, total)
        if explorer != self._explorer:  # its schedule is stretched over another number of steps
            self.close()
        if self._rollout is None:
            self._explorer = explorer
            self._rollout = assembly.rollout_for(self._environment, self._agent, self._engine, self._setup, explorer)
            self._rollout.load(weights)
            if self._left is not None:
                self._notes += self._rollout.restore(self._left)
                self._left = None

    def collect(self, steps: int, step: int, environments: int | None, upcoming: int) -> Steps:
        """See `protocols.Rollout`. Where that fails, what was being collected is lost and where the environments are is
        unknown: the next call begins new episodes."""
        assert self._rollout is not None
        self._step = step
        try:
            collected = self._rollout.collect(steps, step, environments, upcoming)
        except BaseException:
            self._give_up()
            raise
        for end in collected.episodes:
            self._episodes[end.environment] = end.episode + 1
        self._notes += self._rollout.warnings()
        return collected

    def load(self, weights: Weights) -> None:
        """Act with these from the next collected step on."""
        assert self._rollout is not None
        self._rollout.load(weights)

    def notes(self) -> list[str]:
        """What happened since the last call that a user should know."""
        told, self._notes = self._notes, []
        return told

    def state(self) -> dict[str, Any] | None:
        """What `restore` goes on from; None before the first step."""
        return self._left if self._rollout is None else self._rollout.state()

    def restore(self, state: dict[str, Any] | None) -> None:
        """Continue from `state`."""
        self.close()
        self._left, self._explorer = state, None
        if state is not None:
            self._episodes = open_episodes(state)

    def close(self) -> None:
        """End workers and close environments; to collect again, `open` it. May be called twice."""
        if self._rollout is None:
            return
        try:
            self._left = self._rollout.state()
        except EtudeError:
            self._give_up()
        else:
            self._rollout.close()
            self._rollout = None

    def _give_up(self) -> None:
        rollout, self._rollout = self._rollout, None
        assert rollout is not None
        self._left = given_up(self._episodes, self._setup.seed, self._step, self._engine.spaces)
        rollout.close()
