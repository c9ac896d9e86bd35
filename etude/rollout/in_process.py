"""The simplest rollout: environments, actor and explorer in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from etude.base.data import INITIAL_VERSION, PolicyVersion, Steps
from etude.base.seeding import RunSeed
from etude.base.spaces import Spaces
from etude.protocols import Environments, Explorer, Weights
from etude.rollout.actor import Actor
from etude.rollout.collector import Collector
from etude.rollout.fragments import StepsFragment, WholeEpisodes, collect
from etude.rollout.state import Ahead, answers, notes, pack, unpack


class InProcess:
    """Collects steps in the calling process. A `protocols.Rollout`."""

    def __init__(
        self,
        environments: Environments,
        actor: Actor,
        explorer: Explorer,
        run_seed: RunSeed,
        actor_priorities: bool = False,
        state_recorded: bool = True,
    ):
        self.spaces: Spaces = environments.spaces
        self.environments: int = len(environments.columns)
        self._stepped = environments
        self._collector = Collector(
            environments, actor, explorer, run_seed, actor_priorities=actor_priorities, state_recorded=state_recorded
        )
        self._ahead: Ahead | None = None  # what the rollout that was saved had collected ahead

    def collect(
        self,
        steps: int,
        step: int,
        environments: Sequence[int] | None = None,
        upcoming: int = 0,
        stride: int | None = None,
    ) -> Steps:
        """`steps` time steps of the environments at these positions; see `protocols.Rollout`.

        stride: environment steps that the run takes in a time step, where other processes collect, too.
        """
        positions = self._collector.everyone if environments is None else tuple(environments)
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            if answers(ahead, steps, self._collector.columns[list(positions)].tolist()):
                return ahead
            self.cut()
        fragment = StepsFragment(self._collector, positions, steps, step, stride or len(positions))
        return collect(fragment, self._stepped).to_steps()

    def collect_episodes(self, step: int, ahead: bool = False, stride: int | None = None) -> tuple[Steps, ...]:
        """One episode of each environment, to its end; see `protocols.Rollout`. stride: see `collect`.

        Episodes are held in memory twice while they are put together: 20 GB for 10 million steps of 1 KB each.
        """
        waiting, self._ahead = self._ahead, None
        if isinstance(waiting, tuple):
            return waiting
        if waiting is not None:
            self.cut()
        return collect(WholeEpisodes(self._collector, step, stride or self.environments), self._stepped).to_steps()

    def cut(self) -> None:
        """The next steps do not continue the last ones."""
        self._collector.cut()

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Act with these from the next step on."""
        self._collector.actor.load(weights, version)

    def set_task(self, task: Any) -> None:
        """Give this task to the episodes that begin from now on."""
        self._stepped.set_task(task)

    def warnings(self) -> list[str]:
        """Warnings of the environments since the last call."""
        return self._stepped.warnings()

    def state(self) -> dict[str, Any]:
        """The open episodes, counters and generators, by environment index."""
        return pack(self._collector.state(), self._ahead)

    def restore(self, state: dict[str, Any]) -> list[str]:
        """Continue from the state of any rollout; returns notes on episodes that could not be replayed."""
        columns, self._ahead = unpack(state, self.environments, self.spaces)
        return notes(self._collector.restore(columns))

    def close(self) -> None:
        """Close the environments. May be called twice."""
        self._stepped.close()
