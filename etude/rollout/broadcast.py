"""What the chief of several processes collects, in all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from etude.base.data import INITIAL_VERSION, CollectedSteps, PolicyVersion, Steps
from etude.base.errors import EnvironmentFault
from etude.base.spaces import Spaces
from etude.protocols import Rollout, Weights


class BroadcastRollout:
    """Collects in one process and hands what was collected to all. A `protocols.Rollout`.

    own: the chief's rollout; None in the other processes. broadcast: returns the chief's value in all processes.
    """

    def __init__(self, own: Rollout | None, broadcast: Callable[[Any], Any], spaces: Spaces, environments: int):
        self.spaces, self.environments, self._own, self._broadcast = spaces, environments, own, broadcast

    def collect(self, steps: int, step: int, environments: range | None = None, upcoming: int = 0) -> CollectedSteps:
        """See `protocols.Rollout`. Where an environment fails, all processes raise EnvironmentFault."""
        return self._shared(lambda own: own.collect(steps, step, environments, upcoming))

    def collect_episodes(self, step: int, ahead: bool = False) -> tuple[Steps, ...]:
        """See `protocols.Rollout`. Where an environment fails, all processes raise EnvironmentFault."""
        return self._shared(lambda own: own.collect_episodes(step, ahead))

    def _shared(self, collect: Callable[[Rollout], Any]) -> Any:
        if self._own is None:
            collected, fault = self._broadcast(None)
            if fault is not None:
                raise EnvironmentFault(f"In the chief: {fault}")
            return collected
        try:
            collected = collect(self._own)
        except EnvironmentFault as error:
            self._broadcast((None, str(error)))
            raise
        self._broadcast((collected, None))
        return collected

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
