"""A rollout of asynchronous gradients: every environment collects with its own copy of the weights."""

from __future__ import annotations

import dataclasses
from typing import Any

from etude.base.data import INITIAL_VERSION, PolicyVersion, WorkerGradients
from etude.protocols import Weights
from etude.rollout.async_gradients.actor_learners import ActorLearners, RolloutRequest
from etude.rollout.state import ends_of, notes, pack, plain_ends, unpack


class AsyncGradients:
    """The gradients of N environments, always in their order. A `protocols.Rollout` that returns `WorkerGradients`.

    An environment starts its next rollout, with the weights that were loaded last, when its gradients have been taken
    and applied. So all of them collect all the time, and all gradients but the first N are N - 1 updates old, whether
    the actor-learners are local or remote, and however fast they are.

    length: time steps of a rollout. A call for fewer steps counts some of the steps of a rollout; the gradients come
    with the last of them.
    """

    def __init__(self, actor_learners: ActorLearners, environments: int, length: int):
        self.spaces, self.environments = actor_learners.spaces, environments
        self._actor_learners, self._length = actor_learners, length
        self._weights: Weights = {}
        self._version = INITIAL_VERSION
        self._begun: set[int] = set()
        self._finished: dict[int, WorkerGradients] = {}  # those of `_begun` that were waited for already

    def collect(self, steps: int, step: int, environments: int | None = None, upcoming: int = 0) -> WorkerGradients:
        """The next `steps` environment steps, all of one environment; see `protocols.Rollout`."""
        for environment in range(self.environments):
            if environment not in self._begun:
                request = RolloutRequest(environment, self._length, step, self.environments, self._version)
                self._actor_learners.begin(request, self._weights)
                self._begun.add(environment)
        if (step + steps) % self._length:
            return WorkerGradients(steps)
        environment = step // self._length % self.environments
        found = self._finish(environment)
        del self._finished[environment]
        self._begun.discard(environment)
        return dataclasses.replace(found, steps=steps)

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Let rollouts start with these weights, of this version, from now on."""
        self._weights, self._version = {**self._weights, **weights}, version

    def warnings(self) -> list[str]:
        """Workers that were replaced since the last call, and why."""
        return self._actor_learners.warnings()

    def state(self) -> dict[str, Any]:
        """The open episodes, counters and generators, by environment index, and the gradients that are not applied yet.
        Waits for all rollouts that have begun."""
        waiting = {str(i): _plain(self._finish(i)) for i in sorted(self._begun)}
        return pack(self._actor_learners.state()) | {"worker_gradients": waiting}

    def restore(self, state: dict[str, Any]) -> list[str]:
        """Continue from `state`; returns notes on episodes that could not be replayed."""
        for environment in sorted(self._begun):
            self._finish(environment)
        columns, _ = unpack(state, self.environments, self.spaces)
        waiting = state.get("worker_gradients", {})  # none if a rollout was given up
        self._finished = {int(i): _worker_gradients(plain) for i, plain in waiting.items()}
        self._begun = set(self._finished)
        return notes(self._actor_learners.restore(columns))

    def close(self) -> None:
        """End workers and close environments. May be called twice."""
        self._actor_learners.close()

    def _finish(self, environment: int) -> WorkerGradients:
        if environment not in self._finished:
            self._finished[environment] = self._actor_learners.finish(environment)
        return self._finished[environment]


def _plain(found: WorkerGradients) -> dict[str, Any]:
    return {**dataclasses.asdict(found), "episodes": plain_ends(found.episodes)}


def _worker_gradients(plain: dict[str, Any]) -> WorkerGradients:
    return WorkerGradients(**{**plain, "episodes": ends_of(plain["episodes"])})
