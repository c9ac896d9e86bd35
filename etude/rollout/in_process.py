"""The simplest rollout: environments, actor and explorer in this process."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.data import Steps
from etude.protocols import Environments, Explorer, Weights
from etude.rollout.collector import Actor, Collector
from etude.rollout.saved import notes, pack, unpack
from etude.trees import Tree


class InProcess:
    """Collects steps in the calling process. A `protocols.Rollout`."""

    def __init__(self, environments: Environments, actor: Actor, explorer: Explorer, run_seed: int):
        self.spaces = environments.spaces
        self.environments = len(environments.columns)
        self._collector = Collector(environments, actor, explorer, run_seed)
        self._ahead: Steps | None = None

    def collect(self, steps: int, step: int, environments: int | None = None, upcoming: int = 0) -> Steps:
        """`steps` time steps of the first `environments` environments; see `protocols.Rollout`."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            if ahead.shape == (steps, environments or self.environments):
                return ahead
            self._collector.cut()
        return self._collector.collect(steps, step, environments)

    def abandon(self, observation: Tree, episodes: np.ndarray) -> None:
        """The environments were reset from outside: see `Collector.abandon`."""
        self._collector.abandon(observation, episodes)

    def load(self, weights: Weights) -> None:
        """Act with these from the next step on."""
        self._collector.actor.load(weights)

    def warnings(self) -> list[str]:
        """Nothing: there are no workers to lose."""
        return []

    def state(self) -> dict[str, Any]:
        """The open episodes, counters and generators, by environment number."""
        return pack(self._collector.state(), self._ahead)

    def restore(self, state: dict[str, Any]) -> list[str]:
        """Continue from the state of any rollout; returns notes on episodes that could not be replayed."""
        columns, self._ahead = unpack(state, self.environments, self.spaces)
        return notes(self._collector.restore(columns))

    def close(self) -> None:
        """Close the environments. May be called twice."""
        self._collector.environments.close()
