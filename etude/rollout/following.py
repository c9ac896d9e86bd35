"""Actors that let explorers follow the version of the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from etude.base.data import INITIAL_VERSION, PolicyVersion, Steps
from etude.protocols import Weights


class FollowingActor:
    """Acts as `actor`, and calls `follow` with the version of the weights whenever it loads some.

    follow: of an explorer in the same process: a worker unpickles both together.
    """

    def __init__(self, actor: Any, follow: Callable[[PolicyVersion], None]):
        self._actor, self._follow = actor, follow
        self.act: Any = actor.act
        self.state_size: int = actor.state_size

    @classmethod
    def made(cls, make_actor: Callable[[], Any], follow: Callable[[PolicyVersion], None]) -> FollowingActor:
        """The same, around what `make_actor` makes."""
        return cls(make_actor(), follow)

    def weights(self) -> Weights:
        """Those of the actor."""
        return self._actor.weights()

    def errors(self, steps: Steps) -> Any:
        """Of actors that compute initial priorities: see `Collector`."""
        return self._actor.errors(steps)

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Act with these weights, and explore as belongs to their version."""
        self._actor.load(weights, version)
        self._follow(version)
