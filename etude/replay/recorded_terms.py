"""Recorded transitions for terms of a loss, beside the batches of a run's own replay."""

from __future__ import annotations

import dataclasses
from typing import Any

from etude.base.checks import Stored
from etude.base.data import RECORDED, Batch
from etude.replay.buffer import Buffer

FIELDS = ("observation", "action", "reward", "discount", "next_observation", "weight")


class RecordedTerms:
    """The recorded transitions of the terms of a loss, drawn for each gradient step.

    buffers: by term. sizes: how many transitions a gradient step gets of each.
    """

    def __init__(self, buffers: dict[str, Buffer], sizes: dict[str, int]):
        self._buffers, self._sizes = buffers, sizes

    def __bool__(self) -> bool:
        return bool(self._buffers)

    def added_to(self, batches: Batch, k: int, hyper: dict[str, float]) -> Batch:
        """k batches with as many of the recorded transitions of each term, in the extra that holds these."""
        drawn: dict[str, Any] = {}
        for name, buffer in self._buffers.items():
            buffer.adjust(hyper)
            sampled = buffer.sample(k, self._sizes[name])
            drawn[name] = {field: getattr(sampled, field) for field in FIELDS}
        return dataclasses.replace(batches, extras={**batches.extras, RECORDED: drawn})

    def state(self) -> dict[str, Any]:
        """The transitions, and the generators that they are drawn with."""
        return {name: buffer.state() for name, buffer in self._buffers.items()}

    def check_state(self, saved: Stored) -> None:
        """Raise CheckpointError where `restore` cannot continue from this."""
        held = saved.fields(self._buffers)
        for name, buffer in self._buffers.items():
            buffer.check_state(held[name])

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which `check_state` has passed."""
        for name, buffer in self._buffers.items():
            buffer.restore(state[name])
