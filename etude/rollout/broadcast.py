"""What the chief of several processes collects, in all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from etude.base.data import INITIAL_VERSION, CollectedSteps, PolicyVersion, Steps
from etude.base.spaces import Spaces
from etude.protocols import ProcessGroup, Rollout, Weights


class BroadcastRollout:
    """Collects in one process and hands what was collected to all. A `protocols.Rollout`.

    own: the chief's rollout; None in the other processes. What it raises is raised in all of them.
    """

    def __init__(self, own: Rollout | None, group: ProcessGroup, spaces: Spaces, environments: int):
        self.spaces: Spaces = spaces
        self.environments: int = environments
        self._own, self._group = own, group

    def collect(self, steps: int, step: int, environments: range | None = None, upcoming: int = 0) -> CollectedSteps:
        """See `protocols.Rollout`."""
        return self._shared(lambda own: own.collect(steps, step, environments, upcoming))

    def collect_episodes(self, step: int, ahead: bool = False) -> tuple[Steps, ...]:
        """See `protocols.Rollout`."""
        return self._shared(lambda own: own.collect_episodes(step, ahead))

    def _shared(self, collect: Callable[[Rollout], Any]) -> Any:
        own = self._own
        return self._group.in_all("steps", lambda: None if own is None else collect(own))[0]

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Act with these from the next step on."""
        if self._own is not None:
            self._own.load(weights, version)

    def set_task(self, task: Any) -> None:
        """Give this task to the episodes that begin from the next request on."""
        if self._own is not None:
            self._own.set_task(task)

    def warnings(self) -> list[str]:
        """The chief's warnings, in the chief."""
        return [] if self._own is None else self._own.warnings()

    def state(self) -> Any:
        """The state of the chief's rollout; None in the other processes."""
        return None if self._own is None else self._own.state()

    def restore(self, state: dict[str, Any]) -> list[str]:
        """Continue from the state of any rollout, in the chief."""
        return [] if self._own is None else self._own.restore(state)

    def close(self) -> None:
        """Close the chief's rollout. May be called twice."""
        if self._own is not None:
            self._own.close()
