"""Rollouts with rewards by the agent, beside recorded steps of an expert."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from etude.base.checks import Stored
from etude.base.data import Batch
from etude.replay.buffer import Buffer
from etude.replay.ring import Ring
from etude.replay.views import Advantages, discounts


class Demonstrations:
    """Advantages of learned rewards, with next observations, and as the extra `expert` as many steps of an expert: a
    dict of `observation`, `action`, `next_observation` and `discount`. The rewards in the ring are not read.

    expert: the recorded steps; sampled at every call.
    reward: `reward(observations, actions, next observations, discounts) -> [M]`, called once for all rows, and again
        only after the ring or gamma changed, so that one learning phase has the rewards of one model.
    """

    def __init__(self, advantages: Advantages, expert: Buffer, reward: Callable[..., np.ndarray]):
        self._advantages, self._expert, self._reward = advantages, expert, reward
        self._basis: tuple[object, ...] = ()
        self._ring: Any = None  # the ring with learned rewards

    @property
    def reward_scale(self) -> float:
        """The factor of learned rewards."""
        return self._advantages.reward_scale

    @reward_scale.setter
    def reward_scale(self, scale: float) -> None:
        self._advantages.reward_scale = scale

    def adjust(self, hyper: Mapping[str, float]) -> None:
        """Take over the present gamma and lambda."""
        self._advantages.adjust(hyper)
        self._expert.adjust(hyper)

    def __call__(self, ring: Ring, rows: np.ndarray, weight: np.ndarray) -> Batch:
        basis = (ring, ring.version, self._advantages.gamma)
        if basis != self._basis:
            self._ring, self._basis = self._relabelled(ring), basis
        batch, expert = self._advantages(self._ring, rows, weight), self._expert.sample(*rows.shape)
        names = ("observation", "action", "next_observation", "discount")
        return dataclasses.replace(
            batch,
            next_observation=ring.following(rows),
            extras=batch.extras | {"expert": {name: getattr(expert, name) for name in names}},
        )

    def _relabelled(self, ring: Ring) -> Ring:
        """The same arrays with another array of rewards; the collected rewards stay as they are."""
        rows = ring.locate(np.arange(len(ring)))
        discount = discounts(self._advantages.gamma).take(ring.kind.take(rows))
        relabelled = copy.copy(ring)
        relabelled.reward = np.zeros(ring.rows, np.float32)
        relabelled.reward[rows] = self._reward(
            ring.observation(rows), ring.actions(rows), ring.following(rows), discount
        )
        return relabelled

    def state(self) -> dict[str, Any]:
        """The expert's steps, and the generator that they are drawn with."""
        return {"expert": self._expert.state()}

    def check_state(self, saved: Stored) -> None:
        """Raise CheckpointError where `restore` cannot continue from this."""
        self._expert.check_state(saved.fields(("expert",))["expert"])

    def restore(self, state: dict[str, Any]) -> None:
        self._expert.restore(state["expert"])
