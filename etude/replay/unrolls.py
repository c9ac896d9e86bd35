"""Unrolls: the rollouts of environments as a whole, for losses that correct along time themselves."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from etude.base.data import Batch
from etude.base.errors import ConfigError
from etude.replay.ring import Ring
from etude.replay.ring_view import Stateless
from etude.replay.views import discounts, scaled


class Unrolls(Stateless):
    """Whole columns of the ring: every array of a batch is [k, B, T, ...], T the rows of a column, all of which hold as
    many. Rows [k, B] are the oldest of their columns, as `ColumnEpochs` selects them.

    Episodes may end anywhere in a column: there `goes_on` is 0, and else 1. The next observation of a row that ends an
    episode is the true last one of that.
    """

    def __init__(self, gamma: float, reward_scale: float = 1.0):
        self.gamma: float = gamma
        self.reward_scale: float = reward_scale

    def adjust(self, hyper: Mapping[str, float]) -> None:
        """Take over the present gamma."""
        self.gamma = hyper["gamma"]

    def __call__(self, ring: Ring, rows: np.ndarray, weight: np.ndarray) -> Batch:
        length = int(ring.filled.max())
        if ring.reward.ndim > 1 or length != ring.filled.min():
            raise ConfigError(
                f"Unrolls of columns that hold {ring.filled.min()} to {length} rows, with rewards of shape "
                f"{ring.reward.shape[1:]}; expected as many rows in each, and one reward for a step."
            )
        path = ring.ahead(rows[..., None], np.arange(length))
        observation, following = ring.pair(path)
        reward, kind = ring.outcome(path)
        return Batch(
            observation=observation,
            action=ring.actions(path),
            reward=scaled(reward, self.reward_scale),
            discount=discounts(self.gamma).take(kind),
            next_observation=following,
            weight=np.repeat(weight[..., None], length, -1),
            index=path,
            extras=ring.stored(path) | {"goes_on": (kind == 0).astype(np.float32)},
        )
