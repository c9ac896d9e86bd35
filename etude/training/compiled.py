"""The rollout whose time steps are one compiled program; see `engines.scanned`."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from etude.base import trees
from etude.base.data import INITIAL_VERSION, EpisodeEnd, PolicyVersion, Steps
from etude.base.errors import ConfigError
from etude.base.seeding import RunSeed, generator
from etude.base.trees import Tree
from etude.engines.functional import FunctionalEngine
from etude.engines.scanned import Carry, Scan, arrays_of, merged, some_of, with_arrays
from etude.envs.actions import Actions
from etude.envs.functional import FunctionalEnvironment
from etude.envs.observations import Observations
from etude.protocols import Explorer, Weights
from etude.rollout.fragments import InProcess

LATEST = 2**31 - 1  # the last environment step that schedules of exploration tell from later ones


class CompiledEnvironments:
    """The environments of a program, as a collector keeps them: see `protocols.Environments`."""

    native, reward_shape = False, ()

    def __init__(
        self, engine: FunctionalEngine, functional: FunctionalEnvironment, explorer: Explorer, run_seed: RunSeed,
        columns: range, info: tuple[str, ...], recorded: bool,
    ):  # fmt: skip
        self.spaces, self.columns, self.info_names, count = engine.spaces, np.array(columns), info, len(columns)
        observations, actions = Observations(functional.observation_space), Actions(functional.action_space)
        self.make_scan: Any = functools.partial(Scan, functional, observations, actions, explorer, info, recorded)
        self.scan: Scan = engine.program(self.make_scan)
        seeds = np.array([generator(run_seed, "functional", c).integers(2**32) for c in columns], np.uint32)
        none = np.zeros(count, np.int32)
        self.carry: Carry = Carry(None, np.zeros((count, engine.state_size), np.float32), seeds, none, none)

    def reset(self) -> Tree:
        """The observations that the present episodes begin with."""
        self.carry = self.scan.reset(self.carry._replace(begun=None))
        return trees.map(np.asarray, self.carry.begun[0])

    def set_task(self, task: Any) -> None:
        """Raises ConfigError."""
        raise ConfigError(
            f"task = {task!r}: episodes begin within a compiled program, which takes no tasks. Use "
            "vectorization='loop'."
        )

    def state(self) -> list[dict[str, Any]]:
        """The number of each open episode, and where it is."""
        arrays, episodes = arrays_of(self.carry), np.asarray(self.carry.episode).tolist()
        return [{"episode": each, "state": [leaf[i] for leaf in arrays]} for i, each in enumerate(episodes)]

    def restore(self, state: list[dict[str, Any]]) -> tuple[Tree, list[int]]:
        """Go on from there; those that were saved by another rollout, or of another environment, begin anew."""
        self.reset()
        kinds = [(leaf.shape[1:], leaf.dtype) for leaf in arrays_of(self.carry)]
        held = [[(np.shape(leaf), leaf.dtype) for leaf in each.get("state", [])] == kinds for each in state]
        lost = [i for i, each in enumerate(state) if each["episode"] >= 0 and not held[i]]
        episodes = np.array([each["episode"] for each in state], np.int32) + ~np.array(held)
        self.carry = self.carry._replace(episode=episodes)
        self.reset()
        arrays = arrays_of(self.carry)
        for i in np.flatnonzero(held):
            for leaf, kept in zip(arrays, state[i]["state"], strict=True):
                leaf[i] = kept
        self.carry = with_arrays(self.carry, arrays)
        return trees.map(np.asarray, self.carry.begun[0]), lost

    def warnings(self) -> list[str]:
        """None."""
        return []

    def close(self) -> None:
        """Nothing is held."""


class CompiledRollout(InProcess):
    """Collects with one program of the engine for all time steps. Explorers draw what they draw in every rollout; first
    states, and what environments draw, come from keys of JAX, by the run's seed, environment and episode."""

    def __init__(
        self, engine: FunctionalEngine, environments: CompiledEnvironments, explorer: Explorer, run_seed: RunSeed
    ):
        held: Any = environments
        super().__init__(held, engine, explorer, run_seed)
        self._engine, self.compiled, self._noise = engine, environments, dict[str, Any]()

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """The engine itself acts; with these numbers in the noise of its layers."""
        self._noise = {name: weights[name] for name in self._engine.layout.noisy if name in weights}

    def opened(self, at: np.ndarray) -> Carry:
        """Where the environments at these positions are."""
        collector = self._collector
        collector.first_observation()
        held = self.compiled.carry
        begun = held.begun if len(at) == self.environments else some_of(held.begun, at)
        episode, time = collector.counters[1:][at], collector.statistics.length[at]
        recurrent = collector.recurrent_state[at]
        return Carry(begun, recurrent, held.seed[at], episode.astype(np.int32), time.astype(np.int32))

    def counted(self, at: np.ndarray, rows: dict[str, Any]) -> tuple[EpisodeEnd, ...]:
        """Count rows [T, n] of the environments at these positions; the episodes that ended in them."""
        collector, found, reward = self._collector, [], rows["reward"]
        sums, begun, before = np.cumsum(reward, 0, np.float64), np.zeros(len(at), int), np.zeros(len(at))
        statistics = collector.statistics
        for t, n in np.argwhere(rows["terminated"] | rows["truncated"]).tolist():
            statistics.total[at[n]] += sums[t, n] - before[n]
            statistics.length[at[n]] += t + 1 - begun[n]
            found.append(collector.end_episode(int(at[n]), not rows["terminated"][t, n]))
            statistics.reset(at[n])
            begun[n], before[n] = t + 1, sums[t, n]
        statistics.total[at] += sums[-1] - before
        statistics.length[at] += len(reward) - begun
        return tuple(found)

    def closed(self, at: np.ndarray, after: Carry) -> Tree:
        """Keep where these environments have come to; returns what is acted on next."""
        collector, whole = self._collector, len(at) == self.environments
        self.compiled.carry = after if whole else merged(self.compiled.carry, after, at)
        collector.recurrent_state[at] = after.recurrent
        collector.observation = trees.map(np.asarray, self.compiled.carry.begun[0])
        return trees.rows(collector.observation, at)

    def _collect(self, positions: tuple[int, ...], steps: int, step: int, stride: int) -> Steps:
        collector, at, values = self._collector, np.array(positions), self._engine.values() | self._noise
        now = np.minimum(step + stride * np.arange(steps), LATEST).astype(np.int32)
        carry, noise = self.opened(at), collector.draw(steps, positions)
        after, found = self.compiled.scan.collect(values, carry, noise, now)
        rows = self._engine.backend.numpy(found)
        episodes, index = self.counted(at, rows), np.argwhere(rows["terminated"] | rows["truncated"])
        final = trees.rows(rows.pop("last"), tuple(index.T))
        rows["action"] = rows["action"].astype(self.spaces.action.dtype, copy=False)
        following, restarted = self.closed(at, after), collector.take_restarted(positions)
        return Steps(
            **rows, next_observation=following, final_observation=final, final_index=index,
            columns=collector.columns[at], restarted=restarted, episodes=episodes,
        )  # fmt: skip

    def _collect_episodes(self, step: int, stride: int) -> tuple[Steps, ...]:
        raise ConfigError("vectorization = 'compiled' collects time steps, no whole episodes. Leave it on auto.")
