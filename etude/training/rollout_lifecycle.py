"""The rollout of a run: made when the first step is asked for, given up where it fails, saved and gone on from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from etude.base.checks import Stored
from etude.base.data import CollectedSteps, CollectRequest, PolicyVersion, Steps
from etude.base.errors import EtudeError
from etude.base.spaces import Spaces
from etude.protocols import Explorer, Rollout, Weights
from etude.rollout.state import check_rollout, given_up, open_episodes, with_ahead


class RolloutLifecycle:
    """Collects for one run, with one rollout after the other where there has to be a new one.

    make_explorer: from the environment steps that schedules are stretched over. count: environments.
    """

    def __init__(
        self,
        make_explorer: Callable[[int], Explorer],
        make_rollout: Callable[[Explorer], Rollout],
        spaces: Spaces,
        count: int,
        seed: int,
    ):
        self._make_explorer, self._make_rollout, self._spaces, self._seed = make_explorer, make_rollout, spaces, seed
        self._rollout: Rollout | None = None
        self._explorer: Explorer | None = None
        self._left: dict[str, Any] | None = None  # the state that the next rollout is to continue from
        self._episodes = np.zeros(count, np.int64)  # the number of each environment's open episode
        self._task: Any = None
        self._step, self._whole_episodes = 0, False  # of the last call of `collect`
        self._notes: list[str] = []

    def collect_with(self, make_rollout: Callable[[Explorer], Rollout]) -> None:
        """Collect with rollouts made like this from now on."""
        self.close()
        self._make_rollout, self._explorer = make_rollout, None

    def open(self, total: int, weights: Weights, version: PolicyVersion) -> None:
        """Be ready to collect in a run of `total` environment steps."""
        explorer = self._make_explorer(total)
        if explorer != self._explorer:  # its schedule is stretched over another number of steps
            self.close()
        if self._rollout is None:
            self._explorer = explorer
            self._rollout = self._make_rollout(explorer)
            self._rollout.load(weights, version)
            if self._task is not None:
                self._rollout.set_task(self._task)
            if self._left is not None:
                self._notes += self._rollout.restore(self._left)
                self._left = None

    def collect(self, request: CollectRequest, step: int, upcoming: int) -> tuple[CollectedSteps, ...]:
        """The requested steps, in parts that name their environments. Where that fails, what was being collected is
        lost and where the environments are is unknown: the next call begins new episodes.

        step, upcoming: see `protocols.Rollout`; for whole episodes, any `upcoming` but 0 starts on the next ones.
        """
        assert self._rollout is not None
        self._step, self._whole_episodes = step, request.steps is None
        try:
            parts: tuple[CollectedSteps, ...]
            if request.steps is None:
                parts = self._rollout.collect_episodes(step, bool(upcoming))
            else:
                begun = 0 if request.environments is None else request.environments.start  # have taken the time step
                parts = (self._rollout.collect(request.steps, step - begun, request.environments, upcoming),)
        except BaseException:
            self.give_up()
            raise
        for end in (end for part in parts for end in part.episodes):
            self._episodes[end.environment] = end.episode + 1
        self._notes += self._rollout.warnings()
        return parts

    def put_back(self, parts: tuple[CollectedSteps, ...]) -> None:
        """Return what `collect` returned last from its next call again. Ends the rollout: `open` goes on from there.
        Steps that were collected ahead of the next call are lost; nothing is put back after `give_up`."""
        if self._rollout is None:
            return
        steps = tuple(part.copied() for part in parts if isinstance(part, Steps))  # workers may share their memory
        self.close()
        assert self._left is not None
        self._left = with_ahead(self._left, steps if self._whole_episodes else steps[0])

    def load(self, weights: Weights, version: PolicyVersion) -> None:
        """Act with these weights, of this version, from the next collected step on."""
        assert self._rollout is not None
        self._rollout.load(weights, version)

    @property
    def task(self) -> Any:
        """What environments are given when an episode begins; None: nothing was set."""
        return self._task

    def set_task(self, task: Any) -> None:
        """Give this task, from `task_data`, to the episodes that begin in what is collected from now on. If workers
        collect ahead, after what they have been asked for."""
        self._task = task
        if self._rollout is not None:
            self._rollout.set_task(task)

    def notes(self) -> list[str]:
        """What happened since the last call that a user should know."""
        notes, self._notes = self._notes, []
        return notes

    def state(self) -> dict[str, Any] | None:
        """What `restore` goes on from; None before the first step."""
        if self._rollout is None:
            return self._left
        state = self._rollout.state()
        self._notes += self._rollout.warnings()
        return state

    def check_state(self, saved: Stored, gradients: Weights) -> None:
        """Raise CheckpointError where `restore` cannot continue from this; nothing is changed. gradients: those of
        this run's workers, by name."""
        if saved.value is not None:
            check_rollout(saved, len(self._episodes), self._spaces, gradients)

    def restore(self, state: dict[str, Any] | None) -> None:
        """Continue from `state`, which `check_state` has passed."""
        self.close()
        self._left, self._explorer = state, None
        if state is not None:
            self._episodes = open_episodes(state)

    def close(self) -> None:
        """End workers and close environments; to collect again, `open` it. May be called twice."""
        if self._rollout is None:
            return
        try:
            self._left = self.state()
        except EtudeError:
            self.give_up()
        except BaseException:  # Ctrl-C, while a worker that hangs is waited for
            self.give_up()
            raise
        else:
            self._rollout.close()
            self._rollout = None

    def give_up(self) -> None:
        """End at once: what is being collected is lost, and no worker is waited for. The next call of `open` begins new
        episodes."""
        if self._rollout is None:
            return
        rollout, self._rollout = self._rollout, None
        self._notes += rollout.warnings()
        self._left = given_up(self._episodes, self._seed, self._step, self._spaces)
        rollout.close()
