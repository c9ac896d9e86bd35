"""Go-Explore: return to a state that was reached before, then explore from there. What was found is recorded data.

Ecoffet, Huizinga, Lehman, Stanley & Clune 2021, First return, then explore, Nature 590, doi:10.1038/s41586-020-03157-9:
the archive and its search, without a policy; the way back is replayed, or a state of the environment is put back.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.base import checks, trees
from etude.base.errors import ConfigError, EnvironmentFault
from etude.base.spaces import Spaces
from etude.envs.faults import FaultLocation
from etude.envs.make import RandomActions, declared_limit, examine, make_single
from etude.envs.observations import Mismatch
from etude.envs.registry import resolve
from etude.offline import Builder, Dataset
from etude.training.description import environment_source


@dataclass
class _Kept:
    """The best way to a cell. way: (the way before, the last action), None at the first step. state: of the environment
    there, with observation and info, where it can be put back. chosen: how often it was returned to."""

    score: float
    length: int
    way: Any
    state: Any = None
    chosen: int = 0


class GoExplore:
    """An archive of the best ways to all that was reached, and the search that fills it.

        search = GoExplore("MountainCar-v0", lambda x: tuple(np.floor(x / [0.1, 0.005])), seed=1)
        search.explore(100_000)
        run = etude.Run("bc", "MountainCar-v0", data=search.demonstrations())

    env: as for `Run`, with one agent. Its episodes all begin with `reset(seed=seed)`, and are to be functions of that
        seed and their actions.
    cell: from an observation to what tells states apart, such as rounded coordinates. Something hashable.
    explore_for: random actions after each return. repeat: the probability that one is the action before it.
    states: (take, put), where the environment can be put back into a state: `take(env)` returns a state that
        `put(env, state)` goes back to. None: actions are replayed.
    """

    def __init__(
        self, env: Any, cell: Callable[[Any], Hashable], *, seed: int = 0, explore_for: int = 100, repeat: float = 0.95,
        states: tuple[Callable[[Any], Any], Callable[[Any, Any], None]] | None = None,
    ):  # fmt: skip
        checks.whole_number("GoExplore: seed", seed, 0)
        checks.whole_number("GoExplore: explore_for", explore_for)
        if not 0.0 <= repeat < 1.0:
            raise ConfigError(f"GoExplore: repeat = {repeat}; expected a probability below 1.")
        examined = examine(environment_source(env))
        if examined.spaces.agents is not None:
            raise ConfigError("GoExplore searches with one agent; this environment has several.")
        source = resolve(examined.environment)
        self._env, self._name, self._id = make_single(source, {}), source.name, env if isinstance(env, str) else None
        self._spaces = Spaces(examined.spaces.observation, self._env.action_space)
        translation: Any = examined.translation  # of one agent
        self._observations = translation.conversions[""].observations
        self._cell, self._seed, self._explore_for, self._repeat = cell, seed, explore_for, repeat
        self._states, self._limit = states, declared_limit(self._env)
        self._rng = np.random.default_rng(seed)
        self._random = RandomActions(self._env.action_space, seed)
        self._archive: dict[Hashable, _Kept] = {}
        self._ended: dict[Hashable, _Kept] = {}  # by the cell of the final observation
        self.steps: int = 0  # of the environment, those of returning included

    @property
    def cells(self) -> tuple[Hashable, ...]:
        """What was reached, in the order of the first time."""
        return tuple(self._archive)

    @property
    def best_return(self) -> float | None:
        """The highest return of an episode that ended; None before there is one."""
        return max((kept.score for kept in self._ended.values()), default=None)

    def explore(self, steps: int) -> None:
        """Search for so many environment steps more, or a few more to the end of an exploration. May be called again.

        EnvironmentFault where the same actions lead elsewhere."""
        checks.whole_number("GoExplore.explore: steps", steps)
        until = self.steps + steps
        while self.steps < until:
            if not self._archive:
                observation, info = self._env.reset(seed=self._seed)
                self._archive[self._cell_of(observation)] = _Kept(0.0, 0, None, self._taken(observation, info))
            weight = 1.0 / np.sqrt([kept.chosen + 1.0 for kept in self._archive.values()])
            cell = self.cells[int(self._rng.choice(len(weight), p=weight / weight.sum()))]
            self._archive[cell].chosen += 1
            self._explore_from(cell, self._archive[cell])

    def _explore_from(self, cell: Hashable, start: _Kept) -> None:
        observation, info = self._return_to(cell, start)
        score, length, way, action = start.score, start.length, start.way, None
        for _ in range(self._explore_for):
            if action is None or self._rng.random() >= self._repeat:
                action = self._random(observation, info)
            observation, reward, terminated, truncated, info = self._env.step(action)
            score, length, way, self.steps = score + float(reward), length + 1, (way, action), self.steps + 1
            found = self._cell_of(observation)
            over = terminated or truncated or length == self._limit  # which a state that was put back may not know of
            place = self._ended if over else self._archive
            known = place.get(found)
            if known is None or (score, -length) > (known.score, -known.length):
                place[found] = _Kept(score, length, way, None if over else self._taken(observation, info))
            if over:
                return

    def _return_to(self, cell: Hashable, kept: _Kept) -> tuple[Any, dict[str, Any]]:
        observation, info = self._env.reset(seed=self._seed)
        if self._states is not None:
            state, observation, info = kept.state
            self._states[1](self._env, state)
            return observation, info
        for action in self._actions(kept):
            observation, _, _, _, info = self._env.step(action)
            self.steps += 1
        if self._cell_of(observation) != cell:
            raise EnvironmentFault(
                f"The actions that had led to the cell {cell!r} led to {self._cell_of(observation)!r}: chance that "
                "reset(seed=) does not determine. Seed it there, or give states=(take, put)."
            )
        return observation, info

    def demonstrations(self, count: int = 1) -> Dataset:
        """The episodes of the highest returns, each to another cell: of those that ended, where any did, else the ways
        to cells, truncated there. Fewer where fewer were found."""
        checks.whole_number("GoExplore.demonstrations: count", count)
        found = self._ended or {cell: kept for cell, kept in self._archive.items() if kept.way is not None}
        if not found:
            raise ConfigError("GoExplore has found no way yet. Call explore(steps) first.")
        best = sorted(found.values(), key=lambda kept: (-kept.score, kept.length))[:count]
        seen, builder = self._observations, Builder(self._spaces, self._id)
        for kept in best:
            observation, info = self._env.reset(seed=self._seed)
            done = 0
            try:
                for action in self._actions(kept):
                    before = trees.rows(seen.gather([observation], [info]), 0)  # a copy, as what is seen may be changed
                    observation, reward, terminated, _, info = self._env.step(action)
                    builder.add(before, action, reward)
                    done += 1
                final = seen.gather_final(observation, info)
            except Mismatch as problem:
                raise FaultLocation(self._name, 0, 0, done, self._seed).mismatch(problem) from None
            builder.end(final, terminated=bool(terminated), truncated=not terminated)
        return builder.dataset()

    def _actions(self, kept: _Kept) -> list[Any]:
        actions, way = [], kept.way
        while way is not None:
            way, action = way
            actions.append(action)
        return actions[::-1]

    def _taken(self, observation: Any, info: dict[str, Any]) -> Any:
        return None if self._states is None else (self._states[0](self._env), *copy.deepcopy((observation, info)))

    def _cell_of(self, observation: Any) -> Hashable:
        found = self._cell(observation)
        try:
            hash(found)
        except TypeError as problem:
            raise ConfigError(f"GoExplore: cell returned {found!r}: {problem}; expected a tuple, or such.") from None
        return found
