"""Recorded transitions as a replay: what a run learns from, imitates, or regularises itself with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from etude.base.seeding import generator
from etude.offline.loading import RecordedData
from etude.protocols import Replay
from etude.replay import Buffer, MixedReplay, OneStep, RecordedTerms, Ring, Uniform, View
from etude.training.kinds.context import TrainingContext
from etude.training.learner import Learner
from etude.training.sources import SAMPLER


@dataclasses.dataclass(frozen=True)
class BufferRequest:
    """What a buffer of a replay is for.

    capacity: rows of all environments. environments: that its rows come from; recorded episodes follow each other as
    those of one. source: the number of the recorded data in a mixture; None: the only buffer, or what is collected.
    recorded: whether its rows are recorded ones.
    """

    capacity: int
    environments: int
    source: int | None
    recorded: bool

    def stream(self, name: str) -> str:
        """The name of a generator of this buffer."""
        return name if self.source is None else f"{name} {self.source}"

    def folder(self, parent: str | None) -> str | None:
        """Where its ring is memory-mapped."""
        return parent if parent is None or self.source is None else str(Path(parent) / f"recorded_{self.source}")


def replay_for(context: TrainingContext, capacity: int, make: Callable[[BufferRequest], Buffer]) -> Replay:
    """The replay of a run: one buffer, or a `MixedReplay` of several sources. capacity: for what is collected."""
    collected = BufferRequest(capacity, context.count, None, recorded=False)
    if context.data is None:
        return make(collected)
    data, shares = context.data, dict(context.data.shares)
    alone = data.single is not None
    # One row more than there are: a ring that is full forgets where its oldest episode began.
    buffers = {
        name: make(BufferRequest(len(recorded) + 1, 1, None if alone else i, recorded=True))
        for i, (name, recorded) in enumerate(data.recorded.items())
    }
    if data.online:
        buffers[SAMPLER], shares[SAMPLER] = make(collected), data.online
    if len(buffers) == 1:
        return next(iter(buffers.values()))
    return MixedReplay(buffers, shares, generator(context.setup.seed, "mixture"), SAMPLER if data.online else None)


def store_recorded(learner: Learner, context: TrainingContext) -> None:
    """Put the recorded data of a new run into its replay, and into its normalisers. What a checkpoint holds is restored
    with it."""
    for name, recorded in (context.data.recorded if context.data is not None else {}).items():
        if (steps := recorded.steps()) is not None:
            replay = learner.replay
            buffer: Any = replay.buffers[name] if isinstance(replay, MixedReplay) else replay
            read = {name: values for name, values in steps.extras.items() if name in buffer.ring.extras}
            learner.store(dataclasses.replace(steps, extras=read), buffer)
            learner.follow_moments(steps)


def recorded_buffer(
    context: TrainingContext, data: RecordedData, folder: str | None, stream: str, view: View | None = None
) -> Buffer:
    """A replay with room for recorded data. view: None takes single transitions. stream: the name of the generator
    that samples are drawn with."""
    # One row more than there are: a ring that is full forgets where its oldest episode began.
    ring = Ring(context.engine.spaces, len(data) + 1, folder=folder)
    view = OneStep(context.agent.config.gamma) if view is None else view
    return Buffer(ring, Uniform(), view, generator(context.setup.seed, stream), fixed=True)


def terms_of(context: TrainingContext) -> RecordedTerms:
    """The recorded transitions of the terms of an agent's losses."""
    buffers = {}
    for name, data in context.terms.items():
        buffers[name] = recorded_buffer(context, data, None, f"recorded {name}")
        if (steps := data.steps()) is not None:
            buffers[name].add(steps)
    return RecordedTerms(buffers, {name: context.agent.recorded[name].batch_size for name in buffers})
