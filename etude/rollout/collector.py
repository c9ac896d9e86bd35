"""The inner loop: observe, act, explore, step. The same in one process and in every worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from etude import trees
from etude.data import EpisodeEnd, Steps
from etude.protocols import Environments, Explorer, Weights
from etude.rollout.rows import Ends, Rows, Template
from etude.seeding import generator, generator_state, restore_generator
from etude.trees import Tree


class Actor(Protocol):
    """What a rollout needs of an engine."""

    def act(self, observation: Tree) -> Any:
        """What the explorer turns into actions, for observations [N, ...]."""

    def load(self, weights: Weights) -> None:
        """Act with these from now on."""


MakeRows = Callable[[Template, int, int], Rows]


class Collector:
    """Steps N environments with one actor.

    counters: [1 + N] int64, the time steps taken so far and the number of each open episode: kept up to date, so that
        another process can tell slow from stuck. Given, it sets the first episodes' numbers.
    generation: how often these environments were replaced: their noise must not repeat itself.
    """

    def __init__(
        self,
        environments: Environments,
        actor: Actor,
        explorer: Explorer,
        run_seed: int,
        counters: np.ndarray | None = None,
        generation: int = 0,
    ):
        self.environments, self.actor, self._explorer = environments, actor, explorer
        self.columns = np.asarray(environments.columns, np.int64)
        n = len(self.columns)
        self._counters = np.zeros(1 + n, np.int64) if counters is None else counters
        self._episode = self._counters[1:]
        self._length, self._total = np.zeros(n, np.int64), np.zeros(n)
        again = (generation,) if generation else ()
        self._generators = [generator(run_seed, "explore", int(column), *again) for column in self.columns]
        self._observation: Tree = None
        self._restarted = np.zeros(n, bool)
        self._template: Template | None = None

    def collect(
        self,
        steps: int,
        step: int,
        n: int | None = None,
        stride: int | None = None,
        make_rows: MakeRows = Rows.allocate,
    ) -> Steps:
        """`steps` time steps of the first `n` environments (all where None).

        step: environment steps of the run so far. stride: by how much each time step advances them, which is the number
        of environments that the whole run steps; n where None. make_rows: where to write.
        """
        n = len(self.columns) if n is None else n
        # A native simulator cannot step a part: it steps everything, and the columns that were not asked for lose rows.
        width = len(self.columns) if self.environments.native else n
        rows = make_rows(self.template(), steps, width)
        ends = self._fill(rows, step, n if stride is None else stride)
        restarted = self._restarted[:n].copy()
        self._restarted[:n], self._restarted[n:width] = False, True
        return rows.to_steps(ends, self.columns[:n], restarted)

    def template(self) -> Template:
        """What a row looks like: found by acting once, with noise of its own."""
        if self._template is None:
            observation = self._first_observation()
            noise = self._explorer.draw(np.random.default_rng(0), len(self.columns), self.environments.spaces.action)
            self._template = Template.of(observation, self._explorer(self.actor.act(observation), noise, 0))
        return self._template

    def _first_observation(self) -> Tree:
        if self._observation is None:
            self._observation = self.environments.reset()
        return self._observation

    def _fill(self, rows: Rows, step: int, stride: int) -> Ends:
        act, explorer, take = self.actor.act, self._explorer, self.environments.step
        steps, n = rows.reward.shape
        noise = self._draw(steps, n)
        total, length, counters = self._total[:n], self._length[:n], self._counters
        observation = self._observation if n == len(self.columns) else trees.rows(self._observation, slice(n))
        index: list[tuple[int, int]] = []
        finals: list[Tree] = []
        episodes: list[EpisodeEnd] = []
        for t in range(steps):
            choice = explorer(act(observation), noise[t], step)
            trees.put(rows.observation, t, observation)
            rows.action[t] = choice.action
            for name, value in choice.extras.items():
                rows.extras[name][t] = value
            observation, reward, terminated, truncated, final = take(choice.action)
            rows.reward[t], rows.terminated[t], rows.truncated[t] = reward, terminated, truncated
            total += reward
            length += 1
            for i in sorted(final):
                index.append((t, i))
                finals.append(final[i])
                episodes.append(self._end_episode(i, not terminated[i]))
            counters[0] += 1
            step += stride
        trees.put(rows.observation, steps, observation)
        self._keep(observation, n)
        return Ends.of(index, finals, episodes, self.template().observation)

    def _draw(self, steps: int, n: int) -> np.ndarray:
        """Noise [steps, n, k]: each environment has a generator of its own, whichever worker it is in."""
        space = self.environments.spaces.action
        draws = [self._explorer.draw(rng, steps, space) for rng in self._generators[:n]]
        return np.stack(draws, axis=1)

    def _end_episode(self, i: int, truncated: bool) -> EpisodeEnd:
        number, episode, length = int(self.columns[i]), int(self._episode[i]), int(self._length[i])
        end = EpisodeEnd(number, episode, length, float(self._total[i]), bool(truncated))
        self._total[i], self._length[i] = 0.0, 0
        self._episode[i] += 1
        return end

    def _keep(self, observation: Tree, n: int) -> None:
        if n < len(self.columns):
            everything = trees.map(np.copy, self._observation)
            trees.put(everything, slice(n), observation)
            observation = everything
        self._observation = observation

    def cut(self) -> None:
        """What is collected next does not continue what was collected before."""
        self._restarted[:] = True

    def abandon(self, observation: Tree, episodes: np.ndarray) -> None:
        """Go on from `observation` [N, ...] of new episodes with these numbers; the open ones are lost."""
        self._observation = observation
        self._episode[:], self._length[:], self._total[:] = episodes, 0, 0.0
        self.cut()

    def state(self) -> list[dict[str, Any]]:
        """For each environment: its open episode, what it has earned in it so far, and its generator."""
        self._first_observation()
        return [
            {
                "open": opened,
                "episode": int(self._episode[i]),
                "length": int(self._length[i]),
                "total": float(self._total[i]),
                "restarted": bool(self._restarted[i]),
                "generator": generator_state(self._generators[i]),
            }
            for i, opened in enumerate(self.environments.state())
        ]

    def restore(self, state: list[dict[str, Any]]) -> list[int]:
        """Continue from `state`; returns the numbers of the environments that had to start a new episode."""
        self._observation, lost = self.environments.restore([column["open"] for column in state])
        for i, column in enumerate(state):
            restore_generator(self._generators[i], column["generator"])
            self._episode[i], self._length[i], self._total[i] = column["episode"], column["length"], column["total"]
            self._restarted[i] = column["restarted"]
        for i in lost:
            self._episode[i] += 1
            self._length[i], self._total[i], self._restarted[i] = 0, 0.0, True
        return [int(self.columns[i]) for i in lost]
