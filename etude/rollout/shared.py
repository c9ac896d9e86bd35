"""Rollouts that share environments: of several processes, each of which collects from its part of them, or the chief
from all, and all get what was collected; and of several runs, whose environments are stepped together."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from etude.base import trees
from etude.base.data import INITIAL_VERSION, CollectedSteps, PolicyVersion, Steps
from etude.base.errors import ConfigError, EtudeError
from etude.base.spaces import Spaces
from etude.protocols import Explorer, ProcessGroup, Rollout, Weights
from etude.rollout.collector import ROWS, joined
from etude.rollout.fragments import InProcess, StepsRollout
from etude.rollout.state import pack


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
        self.acted: Any = actor.acted if actor.state_size else None
        self.rewarded: Any = actor.rewarded if actor.state_size else None
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


class SharedRollout(StepsRollout):
    """A `protocols.Rollout` of all environments of a run. Every process calls each method, and gets what one process
    alone would collect, bit for bit. What fails in one of them is raised in all.

    own: steps the environments of this process, here or in workers of its own. environments: of all.
    """

    def __init__(self, own: StepsRollout, environments: int, group: ProcessGroup):
        super().__init__(own.spaces, range(environments))
        self._own: Any = own
        self._group, self._part = group, own_environments(environments, group.rank, group.size)
        self._warnings: list[str] = []

    def _collect(self, positions: tuple[int, ...], steps: int, step: int, stride: int) -> Steps:
        part = [i - self._part.start for i in positions if i in self._part]
        found = self._gathered("steps", lambda: self._own.collect(steps, step, part, stride=stride) if part else None)
        return joined([part for part in found if part is not None])

    def _collect_episodes(self, step: int, stride: int) -> tuple[Steps, ...]:
        found = self._gathered("episodes", lambda: self._own.collect_episodes(step, stride=stride))
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

    def cut(self) -> None:
        """The next steps do not continue the last ones."""
        self._own.cut()

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

    def _column_states(self) -> list[dict[str, Any]]:
        """The same in every process."""
        found = self._group.in_all("rollout", lambda: self._own.state()["environments"])
        return [part[str(i)] for part in found for i in range(len(part))]

    def _restore_columns(self, columns: list[dict[str, Any]]) -> list[str]:
        own = pack([columns[i] for i in self._part])
        return [note for notes in self._group.in_all("notes", lambda: self._own.restore(own)) for note in notes]

    def close(self) -> None:
        """Close the environments. May be called twice."""
        self._own.close()


class JointRollout:
    """Steps `members` runs of `environments` environments each; those of a run follow those of the run before.

    All runs are at the same step whenever one of them collects, and ask for the same time steps: the first that asks
    collects for all, with the weights that each has loaded. make: from the explorer of one run, the rollout of all
    environments. actor: acts for all of them, and loads the weights of one run by `load_member`.
    """

    def __init__(self, make: Callable[[Explorer], InProcess], actor: Any, members: int, environments: int):
        self.environments: int = environments
        self.actor: Any = actor
        self._make, self._members = make, members
        self.open: set[int] = set()
        self.collected: dict[int, Steps | EtudeError] = {}  # by run, what it has not asked for yet
        self.restored: dict[int, dict[str, Any]] = {}  # by run, what to go on from
        self.notes: list[str] = []
        self._rollout: InProcess | None = None
        self._columns: list[dict[str, Any]] | None = None  # the states of all, until something is collected

    @property
    def rollout(self) -> InProcess:
        """That of all environments."""
        assert self._rollout is not None
        return self._rollout

    def member(self, number: int, explorer: Explorer) -> _MemberRollout:
        """The rollout of one run."""
        if self._rollout is None:
            self._rollout = self._make(explorer)
        self.open.add(number)
        return _MemberRollout(self, number, self._rollout.spaces)

    def collect(self, steps: int, step: int, environments: range) -> None:
        """The next `steps` time steps of all runs, or the error that they end in, for each of them."""
        self._columns = None
        found: Steps | EtudeError
        try:
            if self.restored:
                columns = [column for i in range(self._members) for column in _columns(self.restored[i])]
                self.restored = {}
                lost = self.rollout.restore(pack(columns))
                self.notes += [f"Of the environments of all runs: {note}" for note in lost]
            firsts = range(0, self._members * self.environments, self.environments)
            positions = [first + i for first in firsts for i in environments]
            found = self.rollout.collect(steps, step * self._members, positions)
        except EtudeError as error:
            found = error
        self.collected = dict.fromkeys(self.open, found)

    def columns(self) -> list[dict[str, Any]]:
        """The state of every environment."""
        if self._columns is None:
            self._columns = _columns(self.rollout.state())
        return self._columns

    def restore(self, number: int, state: dict[str, Any]) -> None:
        """Let a run's environments go on from `state`, once all others do, too."""
        self.restored[number], self._columns = state, None

    def close(self, number: int) -> None:
        """Close the environments, where no other run is open."""
        self.open.discard(number)
        if self._rollout is not None and not self.open:
            self._rollout.close()
            self._rollout, self._columns = None, None


class _MemberRollout:
    """A run's part of a joint rollout. A `protocols.Rollout`."""

    def __init__(self, joint: JointRollout, number: int, spaces: Spaces):
        self.spaces: Spaces = spaces
        self._joint, self._number = joint, number
        self.environments: int = joint.environments

    def collect(self, steps: int, step: int, environments: range | None = None, upcoming: int = 0) -> Steps:
        """`steps` time steps of these environments of the run; see `protocols.Rollout`. Raises in every run what was
        raised when they were collected."""
        joint, number = self._joint, self._number
        if number not in joint.collected:
            joint.collect(steps, step, environments or range(self.environments))
        found = joint.collected.pop(number)
        if isinstance(found, EtudeError):
            raise found
        return part(found, number, self.environments)

    def collect_episodes(self, step: int, ahead: bool = False) -> tuple[Steps, ...]:
        """Raises ConfigError: episodes end at different times."""
        raise ConfigError("Runs that learn from whole episodes are not stepped together.")

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Act with these from the next step on."""
        self._joint.actor.load_member(self._number, weights)

    def set_task(self, task: Any) -> None:
        """Raises ConfigError: environments of other runs are stepped with these."""
        raise ConfigError(f"task = {task!r}; runs whose environments are stepped together take no tasks.")

    def warnings(self) -> list[str]:
        """Warnings of the environments of all runs since the last call, of any run."""
        joint, found = self._joint, self._joint.notes
        joint.notes = []
        return found if joint._rollout is None else found + joint.rollout.warnings()

    def state(self) -> dict[str, Any]:
        """The open episodes, counters and generators, by environment index."""
        if self._number in self._joint.restored:
            return self._joint.restored[self._number]
        first = self._number * self.environments
        return pack(self._joint.columns()[first : first + self.environments])

    def restore(self, state: dict[str, Any]) -> list[str]:
        """Continue from the state of any rollout, once all runs do."""
        self._joint.restore(self._number, state)
        return []

    def close(self) -> None:
        """Close the environments, where no other run needs them. May be called twice."""
        self._joint.close(self._number)


def _columns(state: dict[str, Any]) -> list[dict[str, Any]]:
    columns = state["environments"]
    return [columns[str(i)] for i in range(len(columns))]


def part(steps: Steps, member: int, count: int) -> Steps:
    """The steps of one of several runs that have `count` environments each, which are numbered from 0."""
    first = member * count
    own = slice(*np.searchsorted(steps.columns, (first, first + count)).tolist())
    ended = (steps.final_index[:, 1] >= own.start) & (steps.final_index[:, 1] < own.stop)
    rows = {name: trees.rows(getattr(steps, name), (slice(None), own)) for name in ROWS}
    return Steps(
        **rows,
        next_observation=trees.rows(steps.next_observation, own),
        final_observation=trees.rows(steps.final_observation, ended),
        final_index=steps.final_index[ended] - (0, own.start),
        columns=steps.columns[own] - first,
        restarted=steps.restarted[own],
        episodes=tuple(
            end._replace(environment=end.environment - first)
            for end in steps.episodes
            if first <= end.environment < first + count
        ),
    )
