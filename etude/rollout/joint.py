"""One rollout for several runs: their environments are stepped together, and each run gets its part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from etude.base import trees
from etude.base.data import INITIAL_VERSION, PolicyVersion, Steps
from etude.base.errors import ConfigError, EtudeError
from etude.base.spaces import Spaces
from etude.protocols import Explorer, Weights
from etude.rollout.in_process import InProcess
from etude.rollout.state import pack


class MemberWeights(Protocol):
    """The actor of a joint rollout."""

    def load_member(self, member: int, weights: Weights) -> None:
        """Act for this run with these weights from now on."""


class JointRollout:
    """Steps `members` runs of `environments` environments each; those of a run follow those of the run before.

    All runs are at the same step whenever one of them collects, and ask for the same time steps: the first that asks
    collects for all, with the weights that each has loaded. make: from the explorer of one run, the rollout of all
    environments.
    """

    def __init__(self, make: Callable[[Explorer], InProcess], actor: MemberWeights, members: int, environments: int):
        self.environments: int = environments
        self._make, self._actor, self._members = make, actor, members
        self._rollout: InProcess | None = None
        self._open: set[int] = set()
        self._collected: dict[int, Steps | EtudeError] = {}  # by run, what it has not asked for yet
        self._restored: dict[int, dict[str, Any]] = {}  # by run, what to go on from
        self._state: dict[str, Any] | None = None  # of all, until something is collected
        self._notes: list[str] = []

    def member(self, number: int, explorer: Explorer) -> MemberRollout:
        """The rollout of one run."""
        if self._rollout is None:
            self._rollout = self._make(explorer)
        self._open.add(number)
        return MemberRollout(self, number, self._rollout.spaces)

    def load(self, number: int, weights: Weights) -> None:
        """Act for a run with these weights from the next collected step on."""
        self._actor.load_member(number, weights)

    def collect(self, number: int, steps: int, step: int, environments: range) -> Steps:
        """A run's part of the next `steps` time steps. Raises in every run what was raised when they were collected."""
        assert self._rollout is not None
        if number not in self._collected:
            found = self._collect(self._rollout, steps, step, environments)
            self._collected = dict.fromkeys(self._open, found)
        found = self._collected.pop(number)
        if isinstance(found, EtudeError):
            raise found
        return part(found, number, self.environments)

    def _collect(self, rollout: InProcess, steps: int, step: int, environments: range) -> Steps | EtudeError:
        self._state = None
        try:
            if self._restored:
                self._restore(rollout)
            firsts = range(0, self._members * self.environments, self.environments)
            return rollout.collect(steps, step * self._members, [first + i for first in firsts for i in environments])
        except EtudeError as error:
            return error

    def _restore(self, rollout: InProcess) -> None:
        columns = [column for i in range(self._members) for column in _columns(self._restored[i])]
        self._restored = {}
        self._notes += [f"Of the environments of all runs: {note}" for note in rollout.restore(pack(columns))]

    def warnings(self) -> list[str]:
        """What happened to any environment since the last call."""
        notes, self._notes = self._notes, []
        return notes if self._rollout is None else notes + self._rollout.warnings()

    def state(self, number: int) -> dict[str, Any]:
        """The open episodes, counters and generators of a run's environments."""
        if number in self._restored:
            return self._restored[number]
        if self._state is None:
            assert self._rollout is not None
            self._state = self._rollout.state()
        first = number * self.environments
        return pack(_columns(self._state)[first : first + self.environments])

    def restore(self, number: int, state: dict[str, Any]) -> None:
        """Let a run's environments go on from `state`, once all others do, too."""
        self._restored[number], self._state = state, None

    def close(self, number: int) -> None:
        """Close the environments, where no other run is open."""
        self._open.discard(number)
        if self._rollout is not None and not self._open:
            self._rollout.close()
            self._rollout, self._state = None, None


class MemberRollout:
    """A run's part of a joint rollout. A `protocols.Rollout`."""

    def __init__(self, joint: JointRollout, number: int, spaces: Spaces):
        self.spaces: Spaces = spaces
        self._joint, self._number = joint, number
        self.environments: int = joint.environments

    def collect(self, steps: int, step: int, environments: range | None = None, upcoming: int = 0) -> Steps:
        """`steps` time steps of these environments of the run; see `protocols.Rollout`."""
        return self._joint.collect(self._number, steps, step, environments or range(self.environments))

    def collect_episodes(self, step: int, ahead: bool = False) -> tuple[Steps, ...]:
        """Raises ConfigError: episodes end at different times."""
        raise ConfigError("Runs that learn from whole episodes are not stepped together.")

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Act with these from the next step on."""
        self._joint.load(self._number, weights)

    def set_task(self, task: Any) -> None:
        """Raises ConfigError: environments of other runs are stepped with these."""
        raise ConfigError(f"task = {task!r}; runs whose environments are stepped together take no tasks.")

    def warnings(self) -> list[str]:
        """Warnings of the environments of all runs since the last call, of any run."""
        return self._joint.warnings()

    def state(self) -> dict[str, Any]:
        """The open episodes, counters and generators, by environment index."""
        return self._joint.state(self._number)

    def restore(self, state: dict[str, Any]) -> list[str]:
        """Continue from the state of any rollout."""
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
    return Steps(
        observation=trees.rows(steps.observation, (slice(None), own)),
        action=steps.action[:, own],
        reward=steps.reward[:, own],
        terminated=steps.terminated[:, own],
        truncated=steps.truncated[:, own],
        next_observation=trees.rows(steps.next_observation, own),
        final_observation=trees.rows(steps.final_observation, ended),
        final_index=steps.final_index[ended] - (0, own.start),
        columns=steps.columns[own] - first,
        restarted=steps.restarted[own],
        extras={name: values[:, own] for name, values in steps.extras.items()},
        episodes=tuple(
            end._replace(environment=end.environment - first)
            for end in steps.episodes
            if first <= end.environment < first + count
        ),
    )
