"""Environments in turn: each collects a rollout with weights of its own and contributes gradients, while the others are
at theirs."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

from etude.base.data import WorkerGradients
from etude.base.spaces import Spaces
from etude.protocols import Weights
from etude.rollout.contributing import Order
from etude.rollout.saved import ends_of, notes, pack, plain_ends, unpack


class Hands(Protocol):
    """Who carries out orders: see `hands`."""

    spaces: Spaces

    def begin(self, column: int, order: Order, weights: Weights) -> None:
        """Let the environment with this number start. The order's position is filled in here."""

    def finish(self, column: int) -> WorkerGradients:
        """What it contributes, once it is through."""

    def warnings(self) -> list[str]:
        """See `protocols.Rollout`."""

    def state(self) -> list[dict[str, Any]]:
        """Of every environment; only while none is at work."""

    def restore(self, columns: list[dict[str, Any]]) -> list[int]:
        """Continue from `state`; returns the numbers of environments that could not."""

    def close(self) -> None:
        """End it. May be called twice."""


class Turns:
    """The contributions of N environments, always in the order of their numbers. A `protocols.Rollout` that returns
    `WorkerGradients`s.

    An environment starts on its next rollout, with the weights that were loaded last, when its contribution has been
    taken and learned from. So all of them are at work all the time, and each contribution but the first N is N - 1
    updates old, whoever carries it out and however quick they are: any hands contribute the same.

    length: time steps of a rollout. A call that asks for fewer is told of some of the steps of a rollout; its gradients
    come with the last of them.
    """

    def __init__(self, hands: Hands, environments: int, length: int):
        self.spaces, self.environments = hands.spaces, environments
        self._hands, self._length = hands, length
        self._weights: Weights = {}
        self._begun: set[int] = set()
        self._through: dict[int, WorkerGradients] = {}  # those of `_begun` that have been waited for already

    def collect(self, steps: int, step: int, environments: int | None = None, upcoming: int = 0) -> WorkerGradients:
        """The next `steps` environment steps, all of one environment; see `protocols.Rollout`."""
        for column in range(self.environments):
            if column not in self._begun:
                order = Order(column, self._length, step, self.environments)
                self._hands.begin(column, order, self._weights)
                self._begun.add(column)
        if (step + steps) % self._length:
            return WorkerGradients(steps)
        column = step // self._length % self.environments
        found = self._wait_for(column)
        del self._through[column]
        self._begun.discard(column)
        return dataclasses.replace(found, steps=steps)

    def load(self, weights: Weights) -> None:
        """Let rollouts start with these from now on."""
        self._weights = {**self._weights, **weights}

    def warnings(self) -> list[str]:
        """Workers that were replaced since the last call, and why."""
        return self._hands.warnings()

    def state(self) -> dict[str, Any]:
        """The open episodes, counters and generators, by environment number, and the contributions that wait for their
        turn: all that are at work are waited for."""
        waiting = {str(column): _plain(self._wait_for(column)) for column in sorted(self._begun)}
        return pack(self._hands.state()) | {"contributions": waiting}

    def restore(self, state: dict[str, Any]) -> list[str]:
        """Continue from `state`; returns notes on episodes that could not be replayed."""
        for column in sorted(self._begun):
            self._wait_for(column)
        columns, _ = unpack(state, self.environments, self.spaces)
        waiting = state.get("contributions", {})  # none where a rollout was given up
        self._through = {int(column): _contribution(plain) for column, plain in waiting.items()}
        self._begun = set(self._through)
        return notes(self._hands.restore(columns))

    def close(self) -> None:
        """End workers and close environments. May be called twice."""
        self._hands.close()

    def _wait_for(self, column: int) -> WorkerGradients:
        if column not in self._through:
            self._through[column] = self._hands.finish(column)
        return self._through[column]


def _plain(found: WorkerGradients) -> dict[str, Any]:
    return {**dataclasses.asdict(found), "episodes": plain_ends(found.episodes)}


def _contribution(plain: dict[str, Any]) -> WorkerGradients:
    return WorkerGradients(**{**plain, "episodes": ends_of(plain["episodes"])})
