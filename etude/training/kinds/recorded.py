"""Recorded transitions as a replay: what a run learns from, imitates, or regularises itself with."""

from __future__ import annotations

from etude.base.seeding import generator
from etude.offline.loading import RecordedData
from etude.replay import Buffer, OneStep, RecordedTerms, Ring, Uniform, View
from etude.replay.sizes import Extras
from etude.training.kinds.context import TrainingContext


def recorded_buffer(
    context: TrainingContext,
    data: RecordedData,
    folder: str | None,
    stream: str,
    view: View | None = None,
    extras: Extras | None = None,
) -> Buffer:
    """A replay with room for recorded data. view: None takes single transitions. stream: the name of the generator
    that samples are drawn with. extras: shape and dtype of those that losses read."""
    # One row more than there are: a ring that is full forgets where its oldest episode began.
    ring = Ring(context.engine.spaces, len(data) + 1, extras=extras, folder=folder)
    view = OneStep(context.agent.config.gamma) if view is None else view
    return Buffer(ring, Uniform(), view, generator(context.setup.seed, stream))


def terms_of(context: TrainingContext) -> RecordedTerms:
    """The recorded transitions of the terms of an agent's losses."""
    buffers = {}
    for name, data in context.terms.items():
        buffers[name] = recorded_buffer(context, data, None, f"recorded {name}")
        if (steps := data.steps()) is not None:
            buffers[name].add(steps)
    return RecordedTerms(buffers, {name: context.agent.recorded[name].batch_size for name in buffers})
