"""What the open episodes of environments have earned so far."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from etude.base.data import EpisodeEnd


class Returns:
    """Undiscounted returns and lengths of the open episodes of N environments; with several agents also the returns of
    each, whose sum says nothing in a zero-sum game.

    agents: their names, in the order of their rewards; None where there is one.
    """

    def __init__(self, environments: int, agents: Iterable[str] | None):
        self.agents = tuple(agents or ())
        self.length, self.total = np.zeros(environments, np.int64), np.zeros(environments)
        self.by_agent = np.zeros((environments, len(self.agents)))  # NaN where a checkpoint did not hold it

    def add(self, scores: np.ndarray, reward: np.ndarray) -> None:
        """A step of every environment: what it counts for [N], and its rewards [N] or [N, agents]."""
        self.total += scores
        self.length += 1
        if self.agents:
            self.by_agent += reward

    def forget(self, i: int) -> None:
        """A new episode begins in environment i."""
        self.total[i], self.length[i], self.by_agent[i] = 0.0, 0, 0.0

    def end(self, i: int, environment: int, episode: int, truncated: bool) -> EpisodeEnd:
        """The episode of environment i, which ended; environment, episode: their numbers in the run."""
        each = self.by_agent[i].tolist()
        by_agent = dict(zip(self.agents, each, strict=True)) if each and not np.isnan(each[0]) else None
        return EpisodeEnd(environment, episode, int(self.length[i]), float(self.total[i]), truncated, by_agent)

    def rows(self, who: Any) -> Returns:
        """Those of some environments; what a slice gives shares its arrays."""
        some = Returns(0, self.agents)
        some.total, some.length, some.by_agent = self.total[who], self.length[who], self.by_agent[who]
        return some

    def put(self, who: Any, some: Returns) -> None:
        """Write those of some environments back."""
        self.total[who], self.length[who], self.by_agent[who] = some.total, some.length, some.by_agent

    def state(self, i: int) -> dict[str, Any]:
        """Those of environment i as plain data."""
        by_agent = {"total_by_agent": self.by_agent[i].copy()} if self.agents else {}
        return {"length": int(self.length[i]), "total": float(self.total[i]), **by_agent}

    def restore(self, i: int, state: dict[str, Any]) -> None:
        """Continue environment i from `state`. Checkpoints of before may not say what each agent has earned."""
        self.length[i], self.total[i] = state["length"], state["total"]
        self.by_agent[i] = state.get("total_by_agent", np.nan if state["length"] else 0.0)
