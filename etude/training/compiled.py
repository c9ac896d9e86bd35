"""The rollout whose time steps are one compiled program; see `engines.scanned`."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from etude.base import trees
from etude.base.data import INITIAL_VERSION, EpisodeEnd, PolicyVersion, Steps, Update, power_of_two
from etude.base.errors import ConfigError
from etude.base.schedules import all_at
from etude.base.seeding import RunSeed, generator
from etude.base.trees import Tree
from etude.engines.functional import FunctionalEngine
from etude.engines.scanned import Carry, Phases, ReplayedPhases, Scan
from etude.envs.actions import Actions
from etude.envs.functional import FunctionalEnvironment, check_finite_rows, check_functional
from etude.envs.observations import Observations
from etude.protocols import Explorer, Weights
from etude.replay import Buffer
from etude.rollout.fragments import InProcess
from etude.training.learner import Learner, explained_variance

MOST, MOST_REPLAYED, MOST_STEPS = 16, 64, 2**16  # phases, those from a replay, and environment steps of one call
LATEST = 2**31 - 1  # the last environment step that schedules of exploration tell from later ones


class CompiledEnvironments:
    """The environments of a program, as a collector keeps them: see `protocols.Environments`."""

    native, reward_shape = False, ()

    def __init__(
        self, engine: FunctionalEngine, functional: FunctionalEnvironment, explorer: Explorer, run_seed: RunSeed,
        columns: range, info: tuple[str, ...], recorded: bool,
    ):  # fmt: skip
        check_functional(functional)
        self.functional = functional
        self.spaces, self.columns, self.info_names, count = engine.spaces, np.array(columns), info, len(columns)
        observations, actions = Observations(functional.observation_space), Actions(functional.action_space)
        self.parts: tuple[Any, ...] = (functional, observations, actions, explorer, info, recorded)
        self.scan: Scan = engine.program(functools.partial(Scan, *self.parts))
        seeds = np.array([generator(run_seed, "functional", c).integers(2**32) for c in columns], np.uint32)
        none = np.zeros(count, np.int32)
        self._put: Any = engine.backend.put
        self.carry: Carry = Carry(None, np.zeros((count, engine.state_size), np.float32), seeds, none, none)

    def reset(self) -> Tree:
        """The observations that the present episodes begin with."""
        self.carry = self.scan.reset(self._put(self.carry._replace(begun=None)))  # where the engine computes
        return trees.map(np.asarray, self.carry.begun[0])

    def set_task(self, task: Any) -> None:
        """Raises ConfigError."""
        raise ConfigError(
            f"task = {task!r}: episodes begin within a compiled program, which takes no tasks. Use "
            "vectorization='loop'."
        )

    def state(self) -> list[dict[str, Any]]:
        """The number of each open episode, and where it is."""
        arrays = [np.array(leaf) for leaf in trees.leaves(self.carry.begun)]
        episodes = np.asarray(self.carry.episode).tolist()
        return [{"episode": each, "state": [leaf[i] for leaf in arrays]} for i, each in enumerate(episodes)]

    def restore(self, state: list[dict[str, Any]]) -> tuple[Tree, list[int]]:
        """Go on from there; those that were saved by another rollout, or of another environment, begin anew."""
        self.reset()
        kinds = [(leaf.shape[1:], leaf.dtype) for leaf in trees.leaves(self.carry.begun)]
        held = [[(np.shape(leaf), leaf.dtype) for leaf in each.get("state", [])] == kinds for each in state]
        lost = [i for i, each in enumerate(state) if each["episode"] >= 0 and not held[i]]
        episodes = np.array([each["episode"] for each in state], np.int32) + ~np.array(held)
        self.carry = self.carry._replace(episode=episodes)
        self.reset()
        begun = trees.map(np.array, self.carry.begun)
        for i in np.flatnonzero(held):
            for leaf, kept in zip(trees.leaves(begun), state[i]["state"], strict=True):
                leaf[i] = kept
        self.carry = self.carry._replace(begun=begun)
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
        begun = held.begun if len(at) == self.environments else trees.rows(held.begun, at)
        episode, time = collector.counters[1:][at], collector.statistics.length[at]
        recurrent, seed = collector.recurrent_state[at], np.asarray(held.seed)[at]
        carry = Carry(begun, recurrent, seed, episode.astype(np.int32), time.astype(np.int32))
        return trees.map(np.asarray, carry)  # always on the host, so that nothing is compiled twice

    def counted(self, at: np.ndarray, rows: dict[str, Any]) -> tuple[EpisodeEnd, ...]:
        """Count rows [T, n] of the environments at these positions; the episodes that ended in them."""
        collector, sums = self._collector, np.cumsum(rows["reward"], 0, np.float64)
        statistics, number, ended = collector.statistics, collector.counters[1:], rows["terminated"] | rows["truncated"]
        n, t = np.nonzero(ended.T)  # environment by environment
        change, until = np.flatnonzero(np.diff(n)) + 1, sums[t, n]
        first, last = np.zeros(len(n), bool), np.zeros(len(n), bool)
        first[:1] = first[change] = last[change - 1] = last[-1:] = True
        place = np.arange(len(n))
        episode = number[at[n]] + place - np.maximum.accumulate(np.where(first, place, 0))
        length = np.where(first, statistics.length[at[n]], -np.roll(t, 1) - 1) + t + 1
        total = until - np.where(first, -statistics.total[at[n]], np.roll(until, 1))
        columns, cut = collector.columns[at[n]], ~rows["terminated"][t, n]
        in_time = np.lexsort((n, t))
        told = (each[in_time].tolist() for each in (columns, episode, length, total, cut))
        found = tuple(EpisodeEnd(*each) for each in zip(*told, strict=True))
        statistics.total[at[n]] = statistics.length[at[n]] = 0
        statistics.total[at] += sums[-1]
        statistics.length[at] += len(sums)
        statistics.total[at[n[last]]] -= until[last]
        statistics.length[at[n[last]]] -= t[last] + 1
        number[at] += ended.sum(0)
        return found

    def closed(self, at: np.ndarray, after: Carry) -> Tree:
        """Keep where these environments have come to; returns what is acted on next."""
        collector, whole = self._collector, len(at) == self.environments

        def put(leaf: Any, own: Any) -> np.ndarray:
            every = np.array(leaf)
            every[at] = own
            return every

        self.compiled.carry = after if whole else trees.map(put, self.compiled.carry, after)
        collector.recurrent_state[at] = after.recurrent
        collector.observation = trees.map(np.asarray, self.compiled.carry.begun[0])
        return trees.rows(collector.observation, at)

    @staticmethod
    def _now(step: int, stride: int, count: int) -> np.ndarray:
        return np.minimum(step + stride * np.arange(count), LATEST).astype(np.int32)

    def _collect(self, positions: tuple[int, ...], steps: int, step: int, stride: int) -> Steps:
        collector, at, values = self._collector, np.array(positions), self._engine.values() | self._noise
        carry, noise = self.opened(at), collector.draw(steps, positions)
        after, found = self.compiled.scan.collect(values, carry, noise, self._now(step, stride, steps))
        return self._steps(at, self._engine.backend.numpy(found), self.closed(at, after))

    def _steps(self, at: np.ndarray, rows: dict[str, Any], following: Tree) -> Steps:
        """Count rows [T, n] of these environments, which are then acted on with `following`."""
        check_finite_rows(self.compiled.functional, rows)
        episodes, index = self.counted(at, rows), np.argwhere(rows["terminated"] | rows["truncated"])
        final = trees.rows(rows.pop("last"), tuple(index.T))
        rows["action"] = rows["action"].astype(self.spaces.action.dtype, copy=False)
        return Steps(
            **rows, next_observation=following, final_observation=final, final_index=index,
            columns=self._collector.columns[at], restarted=self._collector.take_restarted(tuple(at)), episodes=episodes,
        )  # fmt: skip

    def _collect_episodes(self, step: int, stride: int) -> tuple[Steps, ...]:
        raise ConfigError("vectorization = 'compiled' collects time steps, no whole episodes. Leave it on auto.")


@dataclass
class Call:
    """One call of the program of whole phases: where it began, so that it can be carried out again up to a phase that
    was not its last; and by phase, what it has told.

    drawn: by number of phases, the states of the generators of minibatches and of the noise of losses. version: of the
    replay on the host, once it has the steps of all phases.
    """

    held: Any  # the state of the engine, and the replay on the device
    carry: Carry
    generators: list[Any]
    drawn: list[tuple[Any, Any]]
    inputs: tuple[Any, ...]
    phases: int
    version: int
    told: Any = None


class FusedRollout(CompiledRollout):
    """Collects and learns, as many phases in one call as there is nothing due between. Each call of `collect` returns
    the steps of one of them, and leaves its update to `learner.learn_if_due`: events and counts are as without it. What
    is learned from a replay lies on the device, too; that of the learner has the same rows, and is what is saved.

    Until the last phase of a call is taken, the engine is ahead of the run: `settle` takes it back.
    """

    def __init__(
        self, engine: FunctionalEngine, environments: CompiledEnvironments, explorer: Explorer, run_seed: RunSeed,
        learner: Learner,
    ):  # fmt: skip
        super().__init__(engine, environments, explorer, run_seed)
        self._learner, self._buffer, config = learner, cast(Buffer, learner.replay), learner.agent.config
        self._replayed = not learner.update_schedule.forgets
        parts = config.clip_reward, *environments.parts
        kind: Any = functools.partial(ReplayedPhases, config.n_step) if self._replayed else Phases
        make = functools.partial(kind, *parts)
        self.program: Phases = engine.program(make, engine.layout.hyper)
        wanted = config.train_every if self._replayed else config.rollout_length * self.environments
        self._length: int = max(1, wanted // self.environments)  # time steps of a phase
        self._rows: int = self._length * self.environments
        if self._replayed and max(wanted, self._rows) % min(wanted, self._rows):
            raise ConfigError(
                f"fused = True with train_every = {wanted} and {self.environments} environments; expected one to be a "
                "multiple of the other."
            )
        self._most = max(1, min(MOST_REPLAYED if self._replayed else MOST, MOST_STEPS // self._rows))
        self.call: Call | None = None
        self._taken = 0  # of its phases
        self._replay: Any = {}  # on the device
        self._version = -1  # of the replay on the host that has the same rows

    def collect(
        self, steps: int, step: int, environments: Any = None, upcoming: int = 0, stride: int | None = None
    ) -> Steps:
        """See `protocols.Rollout`. upcoming: time steps of whole phases between which nothing else happens."""
        if self.call is None and (call := self.request(steps, step, environments, upcoming)) is not None:
            self.answer(call, *self.program.learn(call.held, call.carry, call.inputs, call.phases))
        return super().collect(steps, step, environments, 0, stride)

    def request(self, steps: int | None, step: int, environments: Any, upcoming: int) -> Call | None:
        """What to call the program with; None where part of a phase is asked for, or before learning starts."""
        collector, learner, ring, engine = self._collector, self._learner, self._buffer.ring, self._engine
        if environments is not None or steps != self._length or self._ahead is not None:
            return None
        progress, stored = replace(learner.progress, step=step + self._rows), int(ring.filled[0])
        due = learner.update_schedule.updates_due(progress, cast(Any, range(self._rows)))
        even = (ring.filled == stored).all() and (ring.head == ring.head[0]).all()
        if not due.gradient_steps or due.steps != self._rows or not (even if self._replayed else len(ring) == 0):
            return None
        if learner.measured_by:
            raise ConfigError(f"fused = True: no batches are kept, which {learner.measured_by[0]!r} measures.")
        every, phases = self._everyone, min(self._most, 1 + upcoming // steps)
        carry, time, generators = self.opened(np.array(every)), steps * phases, collector.generators(every)
        explored = collector.draw(time, every).reshape(phases, steps, self.environments, -1)
        now = self._now(step, self.environments, time).reshape(phases, steps)
        heads = int(ring.head[0]) + steps * np.arange(phases)
        layout, portions = engine.layout, learner.portions(due)
        drawn, rows, noise = [self._generated()], [], []
        for phase in range(phases):
            then = ring.later(steps * (phase + 1 if self._replayed else 1))
            own = [self._buffer.selector.select(then, k, due.size, self._buffer.rng)[0] for k in portions]
            rows.append(np.concatenate(own))
            parts = [layout.draw_noise(engine.noise, k, due.size) for k in portions]
            noise.append({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
            drawn.append(self._generated())
        after, config, total = step + self._rows * np.arange(1, phases + 1), learner.agent.config, progress.total
        values = [all_at(config, layout.hyper, now, total, self._rows) for now in after.tolist()]
        scalars = np.array([[own[name] for name in layout.hyper] for own in values], np.float32)
        # Filled up, so that every call has the same shapes
        given = explored, now, (heads % ring.slots).astype(np.int32), np.stack(rows), trees.stack(noise), scalars
        inputs = trees.map(lambda each: np.resize(each, (self._most, *each.shape[1:])), given)
        if self._replayed and self._version != ring.version:
            held = ring.oldest(ring.filled)
            observation, last = ring.pair(held)
            read = {"observation": observation, "action": ring.actions(held), "last": last}
            copied = trees.map(lambda leaf: np.zeros((ring.rows, *leaf.shape[1:]), leaf.dtype), read)
            trees.put(copied, held, read)
            # Copies: on a CPU, JAX may go on reading arrays that it was given
            copied |= {"reward": ring.reward.copy(), "kind": ring.kind.copy()}
            self._replay = engine.backend.put(copied)
        state = engine.held, self._replay
        return Call(state, carry, generators, drawn, inputs, phases, ring.version + phases)

    def _generated(self) -> tuple[Any, Any]:
        return self._buffer.rng.bit_generator.state, self._engine.noise.bit_generator.state

    def answer(self, call: Call, held: Any, carry: Carry, told: Any) -> None:
        """Keep what the program returned. told: by phase, in NumPy or on the device."""
        self._engine.held, self._replay = self._engine.backend.put(held)
        self.closed(np.array(self._everyone), carry)
        call.told = self._engine.backend.numpy(told)
        self.call, self._taken, self._version = call, 0, call.version

    def _collect(self, positions: tuple[int, ...], steps: int, step: int, stride: int) -> Steps:
        if (call := self.call) is None:
            return super()._collect(positions, steps, step, stride)
        number, self._taken = self._taken, self._taken + 1
        self.call = None if self._taken == call.phases else call
        rows, following, reported = trees.rows(call.told, number)
        minibatches = call.inputs[3][number]
        own = () if self._replayed else ("advantage", "value", "return")
        estimates = {name: rows["extras"].pop(name).reshape(-1)[minibatches] for name in own}

        def learned(hyper: dict[str, float]) -> Update:
            update = self._engine.update(self.program.reports, reported, None, len(minibatches), hyper)
            return replace(update, metrics=update.metrics | explained_variance(estimates))

        self._learner.ahead = learned
        return self._steps(np.array(positions), rows, following)

    def settle(self) -> None:
        """Carry the call out again up to the phase that was taken last: generators, environments and weights are then
        where they are without it."""
        if (call := self.call) is None:
            return
        for i, generated in enumerate(call.generators):
            self._collector.rewind(i, generated, self._taken * self._length)
        rng, noise = call.drawn[self._taken]
        self._buffer.rng.bit_generator.state, self._engine.noise.bit_generator.state = rng, noise
        (state, _), carry, _ = self.program.learn(call.held, call.carry, call.inputs, self._taken)
        self._engine.held, self.call, self._version = state, None, -1
        self.closed(np.array(self._everyone), carry)

    def state(self) -> dict[str, Any]:
        self.settle()
        return super().state()

    def learn_together(self, due: Iterable[Any]) -> None:
        """See `StepsRollout`: in one call for those whose programs and shapes are the same."""
        alike: dict[Any, list[tuple[FusedRollout, Call]]] = {}
        for each in due:
            rollout, asked = each.rollout, (each.steps, each.step, each.environments, each.upcoming)
            if (
                isinstance(rollout, FusedRollout)
                and rollout.call is None
                and (call := rollout.request(*asked)) is not None
            ):
                key = rollout.program, call.phases, *(array.shape for array in trees.leaves(call.inputs))
                alike.setdefault(key, []).append((rollout, call))
        for (program, phases, *_), group in alike.items():
            filled = group + group[-1:] * (power_of_two(len(group)) - len(group))  # few sizes are compiled
            parts = trees.stack([(call.held, call.carry, call.inputs) for _, call in filled])
            found = trees.map(np.asarray, program.learn_all(*parts, phases))
            for i, (rollout, call) in enumerate(group):
                rollout.answer(call, *trees.rows(found, i))
