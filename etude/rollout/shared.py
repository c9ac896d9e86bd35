"""Rollouts of several processes: each collects from its part of the environments, or the chief from all, and all get
what was collected."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from etude.base.data import INITIAL_VERSION, CollectedSteps, PolicyVersion, Steps
from etude.base.errors import EtudeError
from etude.base.spaces import Spaces
from etude.protocols import ProcessGroup, Rollout, Weights
from etude.rollout.in_process import InProcess
from etude.rollout.pool.lockstep import LockstepPool
from etude.rollout.pool.pool import Pool
from etude.rollout.rows import joined
from etude.rollout.state import Ahead, answers, pack, unpack


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


def own_environments(environments: int, rank: int, size: int) -> range:
    """The numbers of the environments that a process steps."""
    return range(rank * environments // size, (rank + 1) * environments // size)


class SharedRollout:
    """A `protocols.Rollout` of all environments of a run. Every process calls each method, and gets what one process
    alone would collect, bit for bit. What fails in one of them is raised in all.

    own: steps the environments of this process, here or in workers of its own. environments: of all.
    """

    def __init__(self, own: InProcess | Pool | LockstepPool, environments: int, group: ProcessGroup):
        self.environments: int = environments
        self.spaces: Spaces = own.spaces
        self._own, self._group = own, group
        self._parts = [own_environments(environments, rank, group.size) for rank in range(group.size)]
        self._columns = self._parts[group.rank]
        self._warnings: list[str] = []
        self._ahead: Ahead | None = None  # what the rollout that was saved had collected ahead

    def collect(self, steps: int, step: int, environments: range | None = None, upcoming: int = 0) -> Steps:
        """`steps` time steps of these environments; see `protocols.Rollout`."""
        chosen = range(self.environments) if environments is None else environments
        ahead, self._ahead = self._ahead, None
        if answers(ahead, steps, chosen):
            return ahead
        if ahead is not None:
            self._own.cut()
        part = range(max(chosen.start, self._columns.start), min(chosen.stop, self._columns.stop))
        own = range(part.start - self._columns.start, part.stop - self._columns.start)
        found = self._gathered(
            "steps", lambda: self._own.collect(steps, step, own, stride=len(chosen)) if own else None
        )
        return joined([part for part in found if part is not None])

    def collect_episodes(self, step: int, ahead: bool = False) -> tuple[Steps, ...]:
        """One episode of each environment, to its end; see `protocols.Rollout`."""
        waiting, self._ahead = self._ahead, None
        if isinstance(waiting, tuple):
            return waiting
        if waiting is not None:
            self._own.cut()
        found = self._gathered("episodes", lambda: self._own.collect_episodes(step, stride=self.environments))
        return tuple(part for parts in found for part in parts)

    def _gathered(self, what: str, collect: Callable[[], Any]) -> list[Any]:
        """What every process collected. Raises the error of the first that failed."""
        try:
            found = self._group.in_all(what, lambda: (collect(), self._own.warnings()))
        except EtudeError as error:
            if error.in_all_processes:
                self._warnings += itertools.chain(*self._group.gather("warnings", self._own.warnings()))
            raise
        self._warnings += [warning for _, warnings in found for warning in warnings]
        return [part for part, _ in found]

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Act with these from the next step on."""
        self._own.load(weights, version)

    def set_task(self, task: Any) -> None:
        """Give this task to the episodes that begin from now on."""
        self._own.set_task(task)

    def warnings(self) -> list[str]:
        """Warnings of the environments of all processes since the last call."""
        warnings, self._warnings = self._warnings, []
        return warnings

    def state(self) -> dict[str, Any]:
        """The open episodes, counters and generators, by environment index; the same in every process."""
        found = self._group.in_all("rollout", lambda: self._own.state()["environments"])
        return pack([part[str(i)] for part in found for i in range(len(part))], self._ahead)

    def restore(self, state: dict[str, Any]) -> list[str]:
        """Continue from the state of any rollout; returns notes on episodes that could not be replayed."""
        columns, self._ahead = unpack(state, self.environments, self.spaces)
        own = pack([columns[i] for i in self._columns])
        return [note for notes in self._group.in_all("notes", lambda: self._own.restore(own)) for note in notes]

    def close(self) -> None:
        """Close the environments. May be called twice."""
        self._own.close()
