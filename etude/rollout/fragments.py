"""Rollout fragments: the time steps of some environments while they are being collected; and the rollout that collects
them in this process.

    while not fragment.complete:
        fragment.record(environments.step(*fragment.act()))

Fragments do not step environments themselves, so that a pool can interleave several of them.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from etude.base import trees
from etude.base.data import INITIAL_VERSION, RECURRENT_STATE, SAMPLED_ACTION, PolicyVersion, Steps, info_extra
from etude.base.seeding import RunSeed
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.protocols import Environments, Explorer, Weights
from etude.rollout.actor import Actor
from etude.rollout.collector import ROWS, SHORTEST, Collector, EndedEpisode, Rows, Template, ended_episodes
from etude.rollout.state import Ahead, answers, notes, pack, unpack

MakeRows = Callable[[Template, int, int], Rows]
LONG = 10_000  # steps of an episode, after which a user is told what waits for its end
Outcome = tuple[Tree, np.ndarray, np.ndarray, np.ndarray, dict[int, Any]]  # what `Environments.step` returns


Collected = TypeVar("Collected", bound="Fragment | WholeEpisodes")


def collect(fragment: Collected, environments: Environments) -> Collected:
    """Act, step and record until the fragment is complete; returns it."""
    while not fragment.complete:
        action, positions = fragment.act()
        fragment.record(environments.step(action, positions))
    return fragment


class Fragment:
    """Time steps of the environments at some positions of a collector, or of all in a native simulator, which cannot
    step a part of them. Each environment has a column of the rows.

    step: environment steps of the run so far; each time step advances it by `stride`, the number of environments that
    the whole run steps. make_rows: allocates the rows.
    """

    complete: bool
    _t: int  # time steps so far
    _at: Any  # index of the next time step in the rows
    _state: np.ndarray  # the recurrent states to act on next, [n, M]

    def __init__(
        self,
        collector: Collector,
        positions: tuple[int, ...],
        steps: int,
        step: int,
        stride: int,
        make_rows: MakeRows = Rows.allocate,
    ):
        self._collector, self._environments, self._counters = collector, collector.environments, collector.counters
        self._act, self._recurrent = collector.actor.act, collector.actor.state_size > 0
        self._requested, self._statistics = positions, collector.statistics
        self._positions = collector.everyone if collector.environments.native else positions
        self._steps, self._step, self._stride = steps, step, stride
        self.rows: Rows = make_rows(collector.template, steps, len(self._positions))
        self._recurrent_states = self.rows.extras.get(RECURRENT_STATE)
        self._info = [self.rows.extras[info_extra(name)] for name in self._environments.info_names]
        self._noise = collector.draw(steps, self._positions)
        self.complete, self._t = steps == 0, 0
        self._ends: list[EndedEpisode] = []
        self._lost: list[int] = []  # positions
        self._follow(self._positions)

    def act(self) -> tuple[np.ndarray, tuple[int, ...] | None]:
        """Actions of the environments that go on, and their positions if they are not the first ones."""
        rows, at, observation, t = self.rows, self._at, self._observation, self._t
        if self._recurrent_states is not None:
            self._recurrent_states[at] = self._state
        if self._recurrent:
            output, self._state = self._act(observation, self._state)
        else:
            output = self._act(observation)
        now = self._step + t * self._stride
        action, extras = self._explorer(output, self._noise_left[t], now, self._explorer_state)
        trees.put(rows.observation, at, observation)
        rows.action[at] = action
        for name, value in extras.items():
            rows.extras[name][at] = value
        return action, self._stepped

    def record(self, outcome: Outcome) -> bool:
        """Write the outcome of a step into the rows; whether they are complete."""
        rows, at = self.rows, self._at
        self._observation, reward, terminated, truncated, final = outcome
        rows.reward[at], rows.terminated[at], rows.truncated[at] = reward, terminated, truncated
        if self._recurrent:
            actor = self._collector.actor
            self._state = actor.rewarded(actor.acted(self._state, rows.action[at]), reward)
        for k, kept in enumerate(self._info):
            kept[at] = self._environments.info[:, k]
        self._statistics.add(self._environments.scores, reward, self._who)
        self._counters[0] += 1
        self._t = t = self._t + 1
        self._at = t if self._columns is None else (t, self._columns)
        if final:
            for i in sorted(final):
                position = self._following[i]
                if final[i] is LOST:
                    self._lost.append(position)
                else:
                    episode = self._collector.end_episode(position, not terminated[i])
                    self._ends.append(EndedEpisode(self._t - 1, self._positions.index(position), final[i], episode))
                self._explorer_state[i], self._state[i] = np.nan, 0.0
                self._statistics.reset(position)
            self._after_ends()
        self.complete |= self._t == self._steps
        if self.complete:
            self._write_back()
            if SAMPLED_ACTION in rows.extras:
                rows.extras[SAMPLED_ACTION][...] = rows.action
            if (bounds := self._collector.bounds) is not None:  # what is learned from is what the environment executed
                np.clip(rows.action, *bounds, out=rows.action)
        return self.complete

    def _after_ends(self) -> None:
        """Called after a step in which episodes ended or were lost."""

    def _follow(self, positions: tuple[int, ...]) -> None:
        """Act for these environments from now on."""
        collector = self._collector
        whole, first = positions == self._positions, positions == collector.everyone[: len(positions)]
        self._following, self._stepped = positions, None if first else positions
        self._columns = None if whole else np.array([self._positions.index(i) for i in positions])
        self._noise_left = self._noise if whole else self._noise[:, self._columns]
        self._at = self._t if whole else (self._t, self._columns)
        self._who = who = slice(len(positions)) if first else np.array(positions)
        self._explorer = collector.explorer if first else collector.explorer_of_run.of(collector.columns[who])
        # Of a slice these share the collector's arrays.
        self._explorer_state, self._state = collector.explorer_state[who], collector.recurrent_state[who]
        self._observation = collector.observations(positions)

    def _write_back(self) -> None:
        """Keep in the collector what the environments have come to."""
        collector, who, observation = self._collector, self._who, self._observation
        collector.explorer_state[who], collector.recurrent_state[who] = self._explorer_state, self._state
        if len(self._following) < len(collector.everyone):
            observation = trees.map(np.copy, collector.observation)
            trees.put(observation, list(self._following), self._observation)
        collector.observation = observation


class StepsFragment(Fragment):
    """A fixed number of time steps of every environment. After the loss of an episode it starts over, because all
    columns have the same number of rows. Rows of a native simulator that were not requested are dropped."""

    def to_steps(self) -> Steps:
        """The rows of the environments asked for; they share the arrays."""
        collector, rows, ended = self._collector, self.rows, self._ends
        trees.put(rows.observation, self._steps, collector.observations(self._positions))
        restarted = collector.take_restarted(self._requested)
        if self._requested != self._positions:  # of a native simulator
            places = {position: i for i, position in enumerate(self._requested)}
            rows = rows.between(list(places))
            ended = [end._replace(column=places[end.column]) for end in ended if end.column in places]
            collector.cut(tuple(i for i in self._positions if i not in places))
        ends = ended_episodes(ended, collector.template.observation)
        collected = rows.to_steps(ends, collector.columns[list(self._requested)], restarted)
        if collector.actor_priorities:
            collected.extras["priority"][...] = collector.actor.errors(collected)  # type: ignore[attr-defined]
        return collected

    def _after_ends(self) -> None:
        if self._lost:
            self._write_back()
            self._collector.cut()
            self._t, self._ends, self._lost = 0, [], []
            self._follow(self._positions)


class EpisodesFragment(Fragment):
    """Time steps of environments that each stop at the end of an episode, at most `steps` of them, and only up to the
    loss of an episode. Those of a native simulator go on until all that were requested have ended one.

    unfinished: positions that have not ended an episode yet.
    """

    unfinished: tuple[int, ...]

    def __init__(self, collector: Collector, positions: tuple[int, ...], *more: Any):
        self.unfinished, self._native = positions, collector.environments.native
        stepped = collector.everyone if self._native else positions
        self._restarted = collector.take_restarted(stepped)
        self._generators = collector.generators(stepped)
        self._lengths = np.zeros(len(stepped), np.int64)
        super().__init__(collector, positions, *more)
        if collector.actor_priorities:  # they are unknown
            self.rows.extras["priority"].fill(np.nan)

    def played(self) -> EpisodeRows:
        """What was collected. To be asked for once, right after the last step."""
        for i, state, length in zip(self._positions, self._generators, self._lengths.tolist(), strict=True):
            if length < self._steps:
                self._collector.rewind(i, state, length)
        if self._native and self._lost:
            self._collector.cut()
        following = self._collector.observations(self._positions)
        ends, lost = tuple(self._ends), tuple(self._lost)
        return EpisodeRows(
            self.rows, self._lengths, ends, self._positions, following, self._restarted, lost, self.unfinished
        )

    def _after_ends(self) -> None:
        ended = {self._positions[end.column] for end in self._ends}
        self.unfinished = tuple(i for i in self.unfinished if i not in ended)
        if self._lost or not self.unfinished:
            self.complete = True
        elif not self._native:
            self._write_back()
            self._follow(self.unfinished)

    def _write_back(self) -> None:
        super()._write_back()
        self._lengths[slice(None) if self._columns is None else self._columns] = self._t


LOST: Any = object()
"""Replaces a final observation: the episode was lost with its worker, and another has begun."""


class EpisodeRows(NamedTuple):
    """Time steps of environments, each of which stops where it ends an episode. One column for each."""

    rows: Rows | None  # None on the way through a pipe: they are in shared memory
    lengths: np.ndarray  # [n] int64: rows of each column
    ends: tuple[EndedEpisode, ...]
    positions: tuple[int, ...]  # of the environments, by column
    next_observation: Tree  # [n, ...]
    restarted: np.ndarray  # [n] bool
    lost: tuple[int, ...]  # positions whose episode was lost with its worker; another has begun
    unfinished: tuple[int, ...]  # positions that have not ended an episode yet


class EpisodeAssembly:
    """One episode of each of N environments, put together from fragments.

    The environments of a native simulator stay together in one `Steps`, since they cannot be stepped one by one: it
    holds all episodes until the last of them has ended its first.
    """

    def __init__(self, environments: int, native: bool):
        everyone = range(environments)
        self._groups = [_Group(everyone)] if native else [_Group(range(i, i + 1)) for i in everyone]
        self.unfinished: tuple[int, ...] = tuple(everyone)  # positions that have not ended an episode yet
        self.time: int = 0  # time steps of the fragments so far

    def add(self, played: EpisodeRows) -> None:
        """Copy the rows of a fragment. What precedes a lost episode of an environment is dropped."""
        for group in self._groups_at(played.positions):
            group.add(played)
        before, self.time = self.time, self.time + int(played.lengths.max())
        self.unfinished = played.unfinished
        if self.unfinished and before < LONG <= self.time:
            warnings.warn(
                f"An episode has not ended in {self.time:,} steps, and whole episodes are collected here. Where none "
                "ends, give the environment a time limit: gymnasium.wrappers.TimeLimit(env, 1_000).",
                stacklevel=2,
            )
        self.drop(played.lost)

    def drop(self, positions: tuple[int, ...]) -> None:
        """Drop the rows of these environments, which are to end another episode."""
        for group in self._groups_at(positions):
            group.clear()
            self.unfinished = tuple(sorted({*self.unfinished, *group.positions}))

    def to_steps(self, columns: np.ndarray) -> tuple[Steps, ...]:
        """One `Steps` for each environment, or one for all of a native simulator; `columns` [N] are their indices."""
        return tuple(group.to_steps(columns[group.positions.start : group.positions.stop]) for group in self._groups)

    def _groups_at(self, positions: tuple[int, ...]) -> Iterator[_Group]:
        if len(self._groups) == 1:
            return iter(self._groups if positions else ())
        return (self._groups[i] for i in positions)


class _Group:
    """Environments that end together."""

    def __init__(self, positions: range):
        self.positions = positions
        self.clear()

    def clear(self) -> None:
        self._blocks: list[dict[str, Any]] = []
        self._ends: list[EndedEpisode] = []
        self._length = 0
        self._restarted = np.zeros(0, bool)
        self._next_observation: Tree = None

    def add(self, played: EpisodeRows) -> None:
        assert played.rows is not None
        first = played.positions.index(self.positions.start)
        columns, length, begun = slice(first, first + len(self.positions)), int(played.lengths[first]), self._length
        rows = played.rows.between(columns, slice(0, length))
        self._blocks.append({name: trees.map(lambda leaf: leaf.copy(), getattr(rows, name)) for name in ROWS})
        self._length += length
        own = [end for end in played.ends if columns.start <= end.column < columns.stop]
        self._ends += [end._replace(t=begun + end.t, column=end.column - first) for end in own]
        self._next_observation = trees.rows(played.next_observation, columns)
        if not begun:
            self._restarted = played.restarted[columns]

    def to_steps(self, columns: np.ndarray) -> Steps:
        rows = self._blocks[0] if len(self._blocks) == 1 else trees.concatenate(self._blocks)
        ends = ended_episodes(self._ends, None)
        following, restarted = self._next_observation, self._restarted
        return Steps(**rows, **ends, next_observation=following, columns=columns, restarted=restarted)


class WholeEpisodes:
    """One episode of every environment, in as many fragments as it takes. An environment that has ended its episode
    waits for the others, unless it is in a native simulator. A time step advances `step` by `stride` even if only some
    environments take it."""

    def __init__(self, collector: Collector, step: int, stride: int):
        self._collector, self._step, self._stride = collector, step, stride
        self._episodes = EpisodeAssembly(len(collector.columns), collector.environments.native)
        self.complete: bool = False
        self._begin()

    def act(self) -> tuple[np.ndarray, tuple[int, ...] | None]:
        """The next arguments of `Environments.step`."""
        return self._fragment.act()

    def record(self, outcome: Outcome) -> bool:
        """Take in what that step returned; whether more of the episodes are whole now."""
        before = len(self._fragment.unfinished)
        if self._fragment.record(outcome):
            self._episodes.add(self._fragment.played())
            self.complete = not self._episodes.unfinished
            if not self.complete:
                self._begin()
        return self.complete or len(self._fragment.unfinished) < before

    def to_steps(self) -> tuple[Steps, ...]:
        """One `Steps` for each environment, or one for all of a native simulator."""
        self._collector.expected = max(SHORTEST, self._episodes.time)
        return self._episodes.to_steps(self._collector.columns)

    def _begin(self) -> None:
        time = self._episodes.time
        steps, step = time or self._collector.expected, self._step + time * self._stride  # rows grow by doubling
        self._fragment = EpisodesFragment(self._collector, self._episodes.unfinished, steps, step, self._stride)


class NobodyPlays(Exception):
    """Raised by rollouts whose run is to stop, where they wait for clients and there are none."""


class StepsRollout(ABC):
    """A `protocols.Rollout` that returns steps. What was collected ahead, by its workers or by the rollout that was
    saved, is returned by the call that it answers; another call drops it.

    columns: the indices of the environments, by position.
    """

    def __init__(self, spaces: Spaces, columns: Sequence[int]):
        self.spaces: Spaces = spaces
        self.environments: int = len(columns)
        self._columns, self._everyone = columns, tuple(range(len(columns)))
        self._ahead: Ahead | None = None
        self.stopping: Callable[[], bool] = lambda: False  # whether the run is to stop

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
        positions = self._everyone if environments is None else tuple(environments)
        found = self._take_ahead()
        if found is None or not answers(found, steps, [self._columns[i] for i in positions]):
            if found is not None:
                self._drop(found)
            found = self._collect(positions, steps, step, stride or len(positions))
        if upcoming:
            self._begin_steps(upcoming, step + len(found))
        return found

    def collect_episodes(self, step: int, ahead: bool = False, stride: int | None = None) -> tuple[Steps, ...]:
        """One episode of each environment, to its end; see `protocols.Rollout`. stride: see `collect`."""
        found = self._take_ahead()
        if not isinstance(found, tuple):
            if found is not None:
                self._drop(found)
            found = self._collect_episodes(step, stride or self.environments)
        if ahead:
            self._begin_episodes(step + sum(map(len, found)))
        return found

    def state(self) -> dict[str, Any]:
        """The open episodes, counters and generators, by environment index, and what was collected ahead."""
        return pack(self._column_states(), self._ahead)

    def restore(self, state: dict[str, Any]) -> list[str]:
        """Continue from the state of any rollout; returns notes on episodes that could not be replayed."""
        columns, self._ahead = unpack(state, self.environments, self.spaces)
        return self._restore_columns(columns)

    def settle(self) -> None:  # noqa: B027
        """Take back what was learned ahead, where something was."""

    def learn_together(self, due: Sequence[Any]) -> None:  # noqa: B027
        """Carry out what loops are to collect and learn next, where their rollouts, as this one, learn, too. Each has
        the numbers that it has alone. due: what `loop.CollectionDue` says of each."""

    @abstractmethod
    def cut(self) -> None:
        """The next steps do not continue the last ones."""

    @abstractmethod
    def _collect(self, positions: tuple[int, ...], steps: int, step: int, stride: int) -> Steps: ...

    @abstractmethod
    def _collect_episodes(self, step: int, stride: int) -> tuple[Steps, ...]: ...

    @abstractmethod
    def _column_states(self) -> list[dict[str, Any]]:
        """The state of every environment."""

    @abstractmethod
    def _restore_columns(self, columns: list[dict[str, Any]]) -> list[str]:
        """Continue from `_column_states`; returns notes on episodes that could not be replayed."""

    def _begin_steps(self, steps: int, step: int) -> None:  # noqa: B027
        """Start on the next call, where something can run ahead."""

    def _begin_episodes(self, step: int) -> None:  # noqa: B027
        """The same of whole episodes."""

    def _take_ahead(self) -> Ahead | None:
        ahead, self._ahead = self._ahead, None
        return ahead

    def _drop(self, ahead: Ahead) -> None:
        self.cut()


class InProcess(StepsRollout):
    """The simplest rollout: environments, actor and explorer in this process.

    Whole episodes are held in memory twice while they are put together: 20 GB for 10 million steps of 1 KB each.
    """

    def __init__(
        self,
        environments: Environments,
        actor: Actor,
        explorer: Explorer,
        run_seed: RunSeed,
        actor_priorities: bool = False,
        state_recorded: bool = True,
    ):
        self._collector = Collector(
            environments, actor, explorer, run_seed, actor_priorities=actor_priorities, state_recorded=state_recorded
        )
        super().__init__(environments.spaces, self._collector.columns.tolist())
        self._stepped = environments
        self.warnings: Callable[[], list[str]] = environments.warnings  # of the environments, since the last call

    def _collect(self, positions: tuple[int, ...], steps: int, step: int, stride: int) -> Steps:
        return collect(StepsFragment(self._collector, positions, steps, step, stride), self._stepped).to_steps()

    def _collect_episodes(self, step: int, stride: int) -> tuple[Steps, ...]:
        return collect(WholeEpisodes(self._collector, step, stride), self._stepped).to_steps()

    def _column_states(self) -> list[dict[str, Any]]:
        return self._collector.state()

    def _restore_columns(self, columns: list[dict[str, Any]]) -> list[str]:
        return notes(self._collector.restore(columns))

    def cut(self) -> None:
        """The next steps do not continue the last ones."""
        self._collector.cut()

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Act with these from the next step on."""
        self._collector.actor.load(weights, version)

    def set_task(self, task: Any) -> None:
        """Give this task to the episodes that begin from now on."""
        self._stepped.set_task(task)

    def close(self) -> None:
        """Close the environments. May be called twice."""
        self._stepped.close()
