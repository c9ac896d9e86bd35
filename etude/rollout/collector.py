"""The state of N environments in a rollout, the same in one process and in every worker; and the arrays that collected
steps are written into, in private or in shared memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import numpy as np

from etude.base import trees
from etude.base.data import CLIPPED, LOG_PROB, RECURRENT_STATE, SAMPLED_ACTION, Choice, EpisodeEnd, Steps, info_extra
from etude.base.seeding import RunSeed, generator, generator_state, restore_generator
from etude.base.spaces import Box, clipped_to
from etude.base.trees import Tree
from etude.protocols import Environments, Explorer
from etude.rollout.actor import Actor, acted
from etude.workers.channel import ALIGNMENT, Carver

Allocate = Callable[[tuple[int, ...], np.dtype], np.ndarray]


class Template(NamedTuple):
    """Shapes and types of the row of one environment: arrays of shape [0, ...]."""

    observation: Tree
    action: np.ndarray
    extras: dict[str, np.ndarray]
    reward: np.ndarray  # [0] or [0, agents]

    @staticmethod
    def of(observation: Tree, choice: Choice, reward_shape: tuple[int, ...] = ()) -> Template:
        """The template of observations [N, ...] and an explorer's choice for them."""
        extras = {name: value[:0].copy() for name, value in choice.extras.items()}
        none = trees.map(lambda leaf: leaf[:0].copy(), observation)
        return Template(none, choice.action[:0].copy(), extras, np.zeros((0, *reward_shape), np.float32))


class EndedEpisode(NamedTuple):
    """An episode that ended: at time step t, in this column of the rows."""

    t: int
    column: int
    observation: Tree  # [...] the true last one
    episode: EpisodeEnd


class EndedEpisodes(TypedDict):
    """What `Steps` say of the E episodes that ended in a fragment."""

    final_index: np.ndarray  # [E, 2] int64: (t, n)
    final_observation: Tree  # [E, ...] the true last ones
    episodes: tuple[EpisodeEnd, ...]


def ended_episodes(ends: list[EndedEpisode], like: Tree) -> EndedEpisodes:
    """In the order of `ends`; `like` is a tree [0, ...] of their observations."""
    observation = trees.stack([end.observation for end in ends]) if ends else like
    index = np.array([(end.t, end.column) for end in ends], np.int64).reshape(-1, 2)
    return {"final_index": index, "final_observation": observation, "episodes": tuple(end.episode for end in ends)}


def ended_in(steps: Steps) -> EndedEpisodes:
    """Those of collected steps."""
    observation = steps.final_observation
    return {"final_index": steps.final_index, "final_observation": observation, "episodes": steps.episodes}


def joined_ends(parts: list[EndedEpisodes], places: list[tuple[int, int]]) -> EndedEpisodes:
    """Those of several fragments, whose first rows are at these places (t, n), sorted by t, then n."""
    index = np.concatenate([part["final_index"] + place for part, place in zip(parts, places, strict=True)])
    observation = trees.concatenate([part["final_observation"] for part in parts])
    episodes, order = [end for part in parts for end in part["episodes"]], np.lexsort((index[:, 1], index[:, 0]))
    return {
        "final_index": index[order],
        "final_observation": trees.rows(observation, order),
        "episodes": tuple(episodes[i] for i in order.tolist()),
    }


ROWS = ("observation", "action", "reward", "terminated", "truncated", "extras")  # fields of `Rows` and of `Steps`


@dataclass(frozen=True, slots=True)
class Rows:
    """Arrays for T time steps of N environments, and for the observation after the last."""

    observation: Tree  # [T + 1, N, ...]
    action: np.ndarray  # [T, N, ...]
    reward: np.ndarray  # [T, N] float32
    terminated: np.ndarray  # [T, N] bool
    truncated: np.ndarray  # [T, N] bool
    extras: dict[str, np.ndarray]  # [T, N, ...]

    @staticmethod
    def allocate(template: Template, steps: int, environments: int, new: Allocate = np.empty) -> Rows:
        """Rows for `steps` time steps; `new(shape, dtype)` allocates an array."""
        observed, flat = (steps + 1, environments), (steps, environments)
        action, reward = template.action, template.reward
        return Rows(
            trees.map(lambda leaf: new((*observed, *leaf.shape[1:]), leaf.dtype), template.observation),
            new((*flat, *action.shape[1:]), action.dtype),
            new((*flat, *reward.shape[1:]), reward.dtype),
            new(flat, np.dtype(bool)),
            new(flat, np.dtype(bool)),
            {name: new((*flat, *value.shape[1:]), value.dtype) for name, value in template.extras.items()},
        )

    @staticmethod
    def over(buffer: Any, template: Template, steps: int, environments: int) -> Rows:
        """Rows in a buffer. The same arguments give the same layout in every process."""
        return Rows.allocate(template, steps, environments, Carver(buffer))

    def place(self, other: Rows, start: int, columns: slice) -> None:
        """Copy the time steps of `other` to these columns, from time step `start` on."""
        steps, n = len(other.reward), columns.stop - columns.start
        here, there = (slice(start, start + steps), columns), (slice(0, steps), slice(0, n))
        one_more = (slice(start, start + steps + 1), columns)
        trees.put(self.observation, one_more, trees.rows(other.observation, (slice(0, steps + 1), there[1])))
        for name in ROWS[1:]:
            trees.put(getattr(self, name), here, trees.rows(getattr(other, name), there))

    def between(self, columns: slice | list[int], times: slice = slice(None)) -> Rows:
        """Some columns, and some time steps of them; the arrays of slices are shared, not copied."""
        return Rows(**{name: trees.rows(getattr(self, name), (times, columns)) for name in ROWS})

    def to_steps(self, ends: EndedEpisodes, columns: np.ndarray, restarted: np.ndarray) -> Steps:
        """These rows as `Steps`; the arrays are shared, not copied.

        ends: sorted by t, then n. columns: the numbers of the environments.
        """
        rows = {name: getattr(self, name) for name in ROWS}
        rows |= {"observation": trees.rows(self.observation, slice(0, len(self.reward))), "extras": dict(self.extras)}
        following = trees.rows(self.observation, len(self.reward))
        return Steps(**rows, **ends, next_observation=following, columns=columns, restarted=restarted)


def joined(parts: Sequence[Steps]) -> Steps:
    """Steps of environments that stand side by side, or of the same ones that follow one another. All environments have
    as many in the end; what `restarted` says of later parts of an environment is left out."""
    if len(parts) == 1:
        return parts[0]
    columns = np.unique(np.concatenate([part.columns for part in parts]))
    taken, places = np.zeros(len(columns), np.int64), []
    restarted = np.zeros(len(columns), bool)
    for part in parts:
        at = np.searchsorted(columns, part.columns)
        places.append((int(taken[at[0]]), int(at[0])))
        restarted[at] |= part.restarted & (taken[at] == 0)
        taken[at] += part.shape[0]
    ends = joined_ends([ended_in(part) for part in parts], places)

    def placed(*arrays: np.ndarray) -> np.ndarray:
        found = np.empty((int(taken[0]), len(columns), *arrays[0].shape[2:]), arrays[0].dtype)
        for (t, n), array in zip(places, arrays, strict=True):
            found[t : t + array.shape[0], n : n + array.shape[1]] = array
        return found

    def newest(*arrays: np.ndarray) -> np.ndarray:
        found = np.empty((len(columns), *arrays[0].shape[1:]), arrays[0].dtype)
        for (_, n), array in zip(places, arrays, strict=True):
            found[n : n + len(array)] = array
        return found

    rows = {name: trees.map(placed, *(getattr(part, name) for part in parts)) for name in ROWS}
    following = trees.map(newest, *(part.next_observation for part in parts))
    return Steps(**rows, **ends, next_observation=following, columns=columns, restarted=restarted)


def row_bytes(template: Template) -> int:
    """Bytes of one time step of one environment."""
    leaves = [*trees.leaves(template.observation), template.action, template.reward, *template.extras.values()]
    return sum(leaf.dtype.itemsize * int(np.prod(leaf.shape[1:], dtype=int)) for leaf in leaves) + 2


def capacity(template: Template, environments: int, size: int) -> int:
    """How many time steps fit into a buffer of `size` bytes; may be 0."""
    arrays = len(trees.leaves(template.observation)) + len(template.extras) + 4
    return (size - arrays * ALIGNMENT) // (row_bytes(template) * environments) - 1


SHORTEST = 64  # time steps


class EpisodeStatistics:
    """Undiscounted returns and lengths of the open episodes of N environments; with several agents also the return of
    each agent.

    agents: their names, in the order of their rewards; None for a single agent.
    """

    def __init__(self, environments: int, agents: Iterable[str] | None):
        self.agents: tuple[str, ...] = tuple(agents or ())
        self.length: np.ndarray = np.zeros(environments, np.int64)
        self.total: np.ndarray = np.zeros(environments)
        self.by_agent: np.ndarray = np.zeros((environments, len(self.agents)))  # NaN where a checkpoint did not hold it

    def add(self, scores: np.ndarray, reward: np.ndarray, at: Any = ...) -> None:
        """Add one step of the n environments at these positions (...: all). scores: what it adds to the return [n];
        reward: [n] or [n, agents]."""
        self.total[at] += scores
        self.length[at] += 1
        if self.agents:
            self.by_agent[at] += reward

    def reset(self, i: int) -> None:
        """A new episode begins in environment i."""
        self.total[i], self.length[i], self.by_agent[i] = 0.0, 0, 0.0

    def end(self, i: int, environment: int, episode: int, truncated: bool) -> EpisodeEnd:
        """The episode of environment i, which ended. environment, episode: their numbers in the run."""
        each = self.by_agent[i].tolist()
        by_agent = dict(zip(self.agents, each, strict=True)) if each and not np.isnan(each[0]) else None
        return EpisodeEnd(environment, episode, int(self.length[i]), float(self.total[i]), truncated, by_agent)

    def state(self, i: int) -> dict[str, Any]:
        """Those of environment i as plain data."""
        by_agent = {"total_by_agent": self.by_agent[i].copy()} if self.agents else {}
        return {"length": int(self.length[i]), "total": float(self.total[i]), **by_agent}

    def restore(self, i: int, state: dict[str, Any]) -> None:
        """Continue environment i from `state`. Early checkpoints lack the returns by agent."""
        self.length[i], self.total[i] = state["length"], state["total"]
        self.by_agent[i] = state.get("total_by_agent", np.nan if state["length"] else 0.0)


class Collector:
    """Where N environments are, and what the actor, the explorer and the statistics keep of them. Fragments of a
    rollout advance it: see `fragments`.

    counters: [1 + N] int64, the time steps taken so far and the number of each open episode: kept up to date, so that
        another process can tell slow from stuck. If given, it sets the numbers of the first episodes.
    generation: how often these environments were replaced, which seeds their noise.
    actor_priorities: whether `actor.errors(steps)` becomes the extra `priority` of what is collected.
    state_recorded: whether the recurrent state of each step becomes the extra `recurrent_state`, of actors with one.
    """

    def __init__(
        self,
        environments: Environments,
        actor: Actor,
        explorer: Explorer,
        run_seed: RunSeed,
        counters: np.ndarray | None = None,
        generation: int = 0,
        actor_priorities: bool = False,
        state_recorded: bool = True,
    ):
        self.actor_priorities: bool = actor_priorities
        self._state_recorded = state_recorded
        self.environments: Environments = environments
        self.actor: Actor = actor
        self.columns: np.ndarray = np.asarray(environments.columns, np.int64)
        n = len(self.columns)
        self.everyone: tuple[int, ...] = tuple(range(n))  # all positions
        self.explorer_of_run: Explorer = explorer
        self.explorer: Explorer = explorer.of(self.columns)  # for these environments, in this order
        self.explorer_state: np.ndarray = np.full((n, self.explorer.state_size), np.nan)
        self.recurrent_state: np.ndarray = np.zeros((n, actor.state_size), np.float32)
        self.counters: np.ndarray = np.zeros(1 + n, np.int64) if counters is None else counters
        self._episode = self.counters[1:]
        self.statistics: EpisodeStatistics = EpisodeStatistics(n, environments.spaces.agents)
        again = (generation,) if generation else ()
        self._generators = [generator(run_seed, "explore", int(column), *again) for column in self.columns]
        self._draws = [explorer.of(self.columns[i : i + 1]).draw for i in range(n)]
        self.observation: Tree = None  # to act on next, [N, ...]
        self._restarted = np.zeros(n, bool)
        # Of actions; None: nothing is clipped
        self.bounds: tuple[np.ndarray, np.ndarray] | None = clipped_to(environments.spaces.action)
        self.expected = SHORTEST  # time steps of the longest of the last whole episodes

    @functools.cached_property
    def template(self) -> Template:
        """The shapes and types of a row: found by acting once, with noise of its own."""
        observation, space = self.first_observation(), self.environments.spaces.action
        # The explorer of the whole run draws: if its parts differ in what they draw, every worker raises that.
        noise = self.explorer_of_run.draw(np.random.default_rng(0), len(self.columns), space)
        state = np.full_like(self.explorer_state, np.nan)
        output, _ = acted(self.actor, observation, np.zeros_like(self.recurrent_state))
        choice = self.explorer(output, noise, 0, state)
        sampled = any(name.rpartition(".")[2] == LOG_PROB for name in choice.extras)
        if isinstance(space, Box) and sampled and CLIPPED not in choice.extras:
            choice.extras[SAMPLED_ACTION] = choice.action
        if self.actor.state_size and self._state_recorded:
            choice = Choice(choice.action, {**choice.extras, RECURRENT_STATE: self.recurrent_state})
        for name in self.environments.info_names:
            choice.extras[info_extra(name)] = np.full(len(self.columns), np.nan, np.float32)
        if self.actor_priorities:
            choice.extras["priority"] = np.full(len(self.columns), np.nan, np.float32)
        return Template.of(observation, choice, self.environments.reward_shape)

    def first_observation(self) -> Tree:
        """What was observed at first, which begins the episodes; what is acted on next, once there is some."""
        if self.observation is None:
            self.observation = self.environments.reset()
        return self.observation

    def end_episode(self, position: int, truncated: bool) -> EpisodeEnd:
        """Count the episode of the environment at a position."""
        number = int(self._episode[position])
        self._episode[position] += 1
        return self.statistics.end(position, int(self.columns[position]), number, truncated)

    def observations(self, positions: tuple[int, ...]) -> Tree:
        """What the environments at these positions are to act on next, [n, ...]."""
        if positions == self.everyone:
            return self.observation
        return trees.rows(self.observation, list(positions))

    def draw(self, steps: int, positions: tuple[int, ...]) -> np.ndarray:
        """Noise [steps, n, k]. Each environment has its own generator, so that results do not depend on the number of
        workers."""
        space = self.environments.spaces.action
        return np.stack([self._draws[i](self._generators[i], steps, space) for i in positions], axis=1)

    def generators(self, positions: tuple[int, ...]) -> list[Any]:
        """The states of generators before noise is drawn of which not all may be used; see `rewind`."""
        return [self._generators[i].bit_generator.state for i in positions]

    def rewind(self, i: int, state: Any, steps: int) -> None:
        """Put the generator of the environment at position i where drawing `steps` from `state` would leave it."""
        self._generators[i].bit_generator.state = state
        self._draws[i](self._generators[i], steps, self.environments.spaces.action)

    def take_restarted(self, positions: tuple[int, ...]) -> np.ndarray:
        """Whether the next row of each does not continue the last one, [n] bool; cleared by the call."""
        restarted = self._restarted[list(positions)]
        self._restarted[list(positions)] = False
        return restarted

    def cut(self, positions: tuple[int, ...] | slice = slice(None)) -> None:
        """The next rows do not continue the last ones. Episodes, and the recurrent states of the agent, go on."""
        at = positions if isinstance(positions, slice) else list(positions)
        self._restarted[at], self.explorer_state[at] = True, np.nan

    def lose(self, position: int, observation: Tree, episode: int) -> None:
        """Replace a lost episode by a new one with this number, which begins with `observation` [...]."""
        self.observation = trees.map(np.copy, self.observation)
        trees.put(self.observation, position, observation)
        self._episode[position], self.recurrent_state[position] = episode, 0.0
        self.statistics.reset(position)
        self.cut((position,))

    def state(self) -> list[dict[str, Any]]:
        """For each environment: its open episode with its statistics, the states of explorer and agent, and its
        generator."""
        self.first_observation()
        return [
            {
                "open": opened,
                "episode": int(self._episode[i]),
                **self.statistics.state(i),
                "restarted": bool(self._restarted[i]),
                "explorer_state": self.explorer_state[i].copy(),
                "recurrent_state": self.recurrent_state[i].copy(),
                "generator": generator_state(self._generators[i]),
            }
            for i, opened in enumerate(self.environments.state())
        ]

    def restore(self, state: list[dict[str, Any]]) -> list[int]:
        """Continue from `state`; returns the indices of the environments that had to start a new episode.

        States of an explorer or agent that are missing, or of another size, begin as at the start of an episode.
        """
        self.observation, lost = self.environments.restore([column["open"] for column in state])
        for i, column in enumerate(state):
            restore_generator(self._generators[i], column["generator"])
            self.statistics.restore(i, column)
            self._episode[i], self._restarted[i] = column["episode"], column["restarted"]
            explorer: Any = column.get("explorer_state")
            recurrent: Any = column.get("recurrent_state")
            self.explorer_state[i] = explorer if np.shape(explorer) == self.explorer_state[i].shape else np.nan
            self.recurrent_state[i] = recurrent if np.shape(recurrent) == self.recurrent_state[i].shape else 0.0
        for i in lost:
            self._episode[i] += 1
            self.statistics.reset(i)
            self._restarted[i], self.explorer_state[i], self.recurrent_state[i] = True, np.nan, 0.0
        return [int(self.columns[i]) for i in lost]
