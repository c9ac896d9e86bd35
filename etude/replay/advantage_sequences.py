"""Parts of rollouts with advantages, for recurrent networks that learn on-policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from etude.base.data import RECURRENT_STATE, Batch
from etude.replay.ring import Ring
from etude.replay.ring_view import Stateless
from etude.replay.views import Advantages


class AdvantageSequences(Stateless):
    """`length` rows in a row with what `advantages` estimates for each: every array of a batch is [k, B, L, ...], but
    for two extras, float32, about the recurrent state:

    recurrent_state: [k, B, M] at the first row; zeros where an episode begins there.
    first: [k, B, L] 1 where an episode begins after that, however the one before it ended; else 0.

    Rows [k, B] are the first ones of their parts, as `ColumnEpochs(length)` selects them; none goes beyond the newest
    row of its column.
    """

    def __init__(self, length: int, advantages: Advantages):
        self.length, self.advantages = length, advantages

    @property
    def reward_scale(self) -> float:
        """What rewards are multiplied by."""
        return self.advantages.reward_scale

    @reward_scale.setter
    def reward_scale(self, scale: float) -> None:
        self.advantages.reward_scale = scale

    def adjust(self, hyper: Mapping[str, float]) -> None:
        """Take over the present gamma and lambda."""
        self.advantages.adjust(hyper)

    def __call__(self, ring: Ring, rows: np.ndarray, weight: np.ndarray) -> Batch:
        path = ring.ahead(rows[..., None], np.arange(self.length))
        batch = self.advantages(ring, path, np.repeat(weight[..., None], self.length, -1))
        first = np.zeros(path.shape, np.float32)
        first[..., 1:] = ring.kind.take(path[..., :-1]) != 0
        state = batch.extras[RECURRENT_STATE][..., 0, :]
        return dataclasses.replace(batch, extras=batch.extras | {RECURRENT_STATE: state, "first": first})
