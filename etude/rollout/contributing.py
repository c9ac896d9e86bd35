"""Collecting the rollouts of single environments and differentiating them there: in this process or in a worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from etude.base.data import Steps, WorkerGradients
from etude.protocols import Environments, Explorer, Weights
from etude.rollout.acting import Restore, weights_in
from etude.rollout.collector import Collector
from etude.rollout.plans import alone, carry_out
from etude.rollout.recall import Actor
from etude.rollout.worker import Channel, Memory, counters_of

_SHARED = np.empty(0, np.float32)  # what is sent in the place of an array that lies in shared memory


class ActorLearner(Actor, Protocol):
    """Acts, and says how its weights should change."""

    def contribution(self, steps: Steps) -> WorkerGradients:
        """Gradients at the steps [T, 1] of one environment, with the weights that were loaded last."""


class Order(NamedTuple):
    """`steps` time steps of the environment at this position; see `plans.alone`."""

    position: int
    steps: int
    step: int
    stride: int


def contribute(collector: Collector, actor: ActorLearner, order: Order, weights: Weights) -> WorkerGradients:
    """Carry out an order with these weights."""
    actor.load(weights)
    plan = alone(collector, order.position, order.steps, order.step, order.stride)
    return actor.contribution(carry_out(plan, collector.environments))


@dataclass(frozen=True)
class MakeContributing:
    """Makes the server of one worker. like: what is loaded, by name."""

    make_actor: Callable[[], ActorLearner]
    explorer: Explorer
    run_seed: int
    generation: int
    like: dict[str, tuple[tuple[int, ...], np.dtype]]

    def __call__(self, environments: Environments, memory: Memory) -> Contributing:
        actor = self.make_actor()
        counters = counters_of(memory)
        collector = Collector(environments, actor, self.explorer, self.run_seed, counters, self.generation)
        like = {name: np.empty(shape, dtype) for name, (shape, dtype) in self.like.items()}
        return Contributing(collector, actor, [weights_in(buffer, like) for buffer in memory.buffers])


class Contributing:
    """Contributes what is ordered. For each environment, weights are read from the same arrays that the gradients are
    then written to."""

    def __init__(self, collector: Collector, actor: ActorLearner, shared: list[Weights]):
        self._collector, self._actor, self._shared = collector, actor, shared

    def serve(self, request: Any, channel: Channel) -> None:
        """Do what was asked and send the answer."""
        if isinstance(request, Order):
            channel.send(self._contribute(request))
        elif isinstance(request, Restore):
            channel.send(self._collector.restore(request.state))
        else:
            channel.send(self._collector.state())

    def _contribute(self, order: Order) -> tuple[int, WorkerGradients]:
        shared = self._shared[order.position]
        weights = {name: value.copy() for name, value in shared.items()}
        found = contribute(self._collector, self._actor, order, weights)
        for name, gradient in found.gradients.items():
            shared[name][...] = gradient
        return order.position, dataclasses.replace(found, gradients=dict.fromkeys(found.gradients, _SHARED))
