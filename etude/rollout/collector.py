"""The inner loop: observe, act, explore, step. The same in one process and in every worker."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

import numpy as np

from etude.base import trees
from etude.base.data import MEMORY, Choice, EpisodeEnd, Steps
from etude.base.seeding import generator, generator_state, restore_generator
from etude.base.trees import Tree
from etude.protocols import Environments, Explorer
from etude.rollout.recall import Actor, recall_of
from etude.rollout.returns import Returns
from etude.rollout.rows import Rows, Template

SHORTEST = 64  # time steps

Result = TypeVar("Result")
# Asks for steps of environments, with the arguments of `Environments.step`, and is sent what that returns.
Plan = Generator[tuple[np.ndarray, tuple[int, ...] | None], Any, Result]


class End(NamedTuple):
    """An episode that ended: in time step t, of the environment at this position."""

    t: int
    position: int
    observation: Tree  # [...] the true last one
    episode: EpisodeEnd


class Lost(NamedTuple):
    """In the place of a final observation: the episode was lost with its process, and another has begun."""


class Clock(NamedTuple):
    """Time steps `start` to `stop` of some rows; time step 0 is environment step `step` of the run, and each advances
    it by `stride`."""

    start: int
    stop: int
    step: int
    stride: int


class Collector:
    """Where N environments are, and what is done in them with one actor.

    counters: [1 + N] int64, the time steps taken so far and the number of each open episode: kept up to date, so that
        another process can tell slow from stuck. Given, it sets the first episodes' numbers.
    generation: how often these environments were replaced: their noise must not repeat itself.
    judged: whether the actor tells errors of what was collected, which become the extra `priority`.
    """

    def __init__(
        self,
        environments: Environments,
        actor: Actor,
        explorer: Explorer,
        run_seed: int,
        counters: np.ndarray | None = None,
        generation: int = 0,
        judged: bool = False,
    ):
        self._judged = judged
        self.environments, self.actor = environments, actor
        self.columns = np.asarray(environments.columns, np.int64)
        n = len(self.columns)
        self.everyone = tuple(range(n))  # all positions
        self._of_all = explorer
        self._explorer = explorer.of(self.columns)  # for these environments, in this order
        self._memory = np.full((n, self._explorer.memory), np.nan)  # the explorer's
        self._recalled = np.zeros((n, actor.memory), np.float32)  # the agent's
        self._counters = np.zeros(1 + n, np.int64) if counters is None else counters
        self._episode = self._counters[1:]
        self._returns = Returns(n, environments.spaces.agents)
        again = (generation,) if generation else ()
        self._generators = [generator(run_seed, "explore", int(column), *again) for column in self.columns]
        self._draws = [explorer.of(self.columns[i : i + 1]).draw for i in range(n)]
        self._observation: Tree = None
        self._restarted = np.zeros(n, bool)
        self._template: Template | None = None
        self.expected = SHORTEST  # time steps that a round of episodes makes room for: those of the last one

    def template(self) -> Template:
        """What a row looks like: found by acting once, with noise of its own."""
        if self._template is None:
            observation = self._first_observation()
            # The explorer of the whole run draws: where its parts differ in what they draw, every worker says so.
            noise = self._of_all.draw(np.random.default_rng(0), len(self.columns), self.environments.spaces.action)
            memory = np.full_like(self._memory, np.nan)
            output = recall_of(self.actor, np.zeros_like(self._recalled)).act(observation)
            choice = self._explorer(output, noise, 0, memory)
            if self.actor.memory:
                choice = Choice(choice.action, {**choice.extras, MEMORY: self._recalled})
            if self._judged:
                choice.extras["priority"] = np.full(len(self.columns), np.nan, np.float32)
            self._template = Template.of(observation, choice, self.environments.reward_shape)
        return self._template

    def _first_observation(self) -> Tree:
        if self._observation is None:
            self._observation = self.environments.reset()
        return self._observation

    def stretch(
        self,
        rows: Rows,
        noise: np.ndarray,
        clock: Clock,
        positions: tuple[int, ...],
        ends: list[End],
        halt: Callable[[list[End]], bool],
    ) -> Plan[tuple[int, list[int]]]:
        """Time steps of the environments at these positions, one in each column of `rows` and `noise` [T, n, k].

        ends: what ended is added. halt: told of all ends whenever there is a new one, says whether to stop there.
        Returns the time step after the last, and the positions whose episodes were lost, where it stops, too.
        """
        first = positions == self.everyone[: len(positions)]
        who: Any = slice(len(positions)) if first else np.array(positions)
        at = None if first else positions
        explorer = self._explorer if first else self._of_all.of(self.columns[who])
        recall = recall_of(self.actor, self._recalled[who], rows.extras.get(MEMORY), clock.start)
        returns, memory, counters = self._returns.rows(who), self._memory[who], self._counters
        observation, step, t = trees.rows(self._observation, who), clock.step + clock.start * clock.stride, clock.start
        lost, act = list[int](), recall.act
        while t < clock.stop and not lost:
            choice = explorer(act(observation), noise[t], step, memory)
            trees.put(rows.observation, t, observation)
            rows.action[t] = choice.action
            for name, value in choice.extras.items():
                rows.extras[name][t] = value
            observation, reward, terminated, truncated, final = yield choice.action, at
            rows.reward[t], rows.terminated[t], rows.truncated[t] = reward, terminated, truncated
            returns.add(self.environments.scores, reward)
            counters[0] += 1
            t += 1
            step += clock.stride
            if final:
                for i in sorted(final):
                    if isinstance(final[i], Lost):
                        lost.append(positions[i])
                    else:
                        episode = self._end_episode(positions[i], returns, i, not terminated[i])
                        ends.append(End(t - 1, positions[i], final[i], episode))
                    memory[i] = np.nan
                    returns.forget(i)
                    recall.forget(i)
                if halt(ends):
                    break
        self._memory[who] = memory
        self._returns.put(who, returns)
        self._recalled[who] = recall.memory
        self._keep(observation, positions)
        return t, lost

    def judge(self, steps: Steps) -> None:
        """Write the actor's errors of what was collected into it."""
        if self._judged:
            steps.extras["priority"][...] = self.actor.errors(steps)  # type: ignore[attr-defined]

    def leave_unjudged(self, rows: Rows) -> None:
        """Say that nothing is known of the errors of these rows."""
        if self._judged:
            rows.extras["priority"].fill(np.nan)

    def _end_episode(self, position: int, returns: Returns, i: int, truncated: bool) -> EpisodeEnd:
        self._episode[position] += 1
        return returns.end(i, int(self.columns[position]), int(self._episode[position]) - 1, bool(truncated))

    def _keep(self, observation: Tree, positions: tuple[int, ...]) -> None:
        if len(positions) < len(self.everyone):
            everything = trees.map(np.copy, self._observation)
            trees.put(everything, list(positions), observation)
            observation = everything
        self._observation = observation

    def observations(self, positions: tuple[int, ...]) -> Tree:
        """What the environments at these positions are to act on next, [n, ...]."""
        if positions == self.everyone:
            return self._observation
        return trees.rows(self._observation, list(positions))

    def draw(self, steps: int, positions: tuple[int, ...]) -> np.ndarray:
        """Noise [steps, n, k]: each environment has a generator of its own, whichever worker it is in."""
        space = self.environments.spaces.action
        return np.stack([self._draws[i](self._generators[i], steps, space) for i in positions], axis=1)

    def generators(self, positions: tuple[int, ...]) -> list[Any]:
        """Where the generators are: before noise is drawn of which not all may be used."""
        return [self._generators[i].bit_generator.state for i in positions]

    def rewind(self, i: int, state: Any, steps: int) -> None:
        """Put the generator of the environment at position i where it would be, had `steps` been drawn from `state`."""
        self._generators[i].bit_generator.state = state
        self._draws[i](self._generators[i], steps, self.environments.spaces.action)

    def take_restarted(self, positions: tuple[int, ...]) -> np.ndarray:
        """Whether the next row of each does not continue what was collected before, [n] bool; told once."""
        told = self._restarted[list(positions)]
        self._restarted[list(positions)] = False
        return told

    def cut(self, positions: tuple[int, ...] | slice = slice(None)) -> None:
        """What is collected next does not continue what was collected before. The agent, whose episodes go on, forgets
        nothing."""
        at = positions if isinstance(positions, slice) else list(positions)
        self._restarted[at], self._memory[at] = True, np.nan

    def lose(self, position: int, observation: Tree, episode: int) -> None:
        """The open episode is lost; the environment goes on from `observation` [...] of a new one with this number."""
        self._observation = trees.map(np.copy, self._observation)
        trees.put(self._observation, position, observation)
        self._episode[position], self._recalled[position] = episode, 0.0
        self._returns.forget(position)
        self.cut((position,))

    def state(self) -> list[dict[str, Any]]:
        """For each environment: its open episode, what it has earned in it so far, what the explorer and the agent
        remember of it, and its generator."""
        self._first_observation()
        return [
            {
                "open": opened,
                "episode": int(self._episode[i]),
                **self._returns.state(i),
                "restarted": bool(self._restarted[i]),
                "memory": self._memory[i].copy(),
                "recalled": self._recalled[i].copy(),
                "generator": generator_state(self._generators[i]),
            }
            for i, opened in enumerate(self.environments.state())
        ]

    def restore(self, state: list[dict[str, Any]]) -> list[int]:
        """Continue from `state`; returns the numbers of the environments that had to start a new episode.

        Where the state holds no memory, or that of another explorer or agent, it begins as at the start of an episode.
        """
        self._observation, lost = self.environments.restore([column["open"] for column in state])
        for i, column in enumerate(state):
            restore_generator(self._generators[i], column["generator"])
            self._returns.restore(i, column)
            self._episode[i], self._restarted[i] = column["episode"], column["restarted"]
            memory, recalled = column.get("memory"), column.get("recalled")
            self._memory[i] = memory if np.shape(memory) == self._memory[i].shape else np.nan
            self._recalled[i] = recalled if np.shape(recalled) == self._recalled[i].shape else 0.0
        for i in lost:
            self._episode[i] += 1
            self._returns.forget(i)
            self._restarted[i], self._memory[i], self._recalled[i] = True, np.nan, 0.0
        return [int(self.columns[i]) for i in lost]
