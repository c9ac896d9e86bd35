"""Rollouts on JAX in one program: a `lax.scan` over time steps that acts, explores, steps environments that are pure
functions, and resets those that ended, whose last observations it returns beside the rows. And learning phases, many in
one call, of one agent or of several: Lu et al. 2022, arXiv:2210.05639, compile training as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from etude.base.data import CLIPPED, LOG_PROB, RECURRENT_STATE, SAMPLED_ACTION, info_extra
from etude.base.spaces import Box, clipped_to
from etude.engines.functional import Backend, Program
from etude.engines.parameter_layout import Arrays, ParameterLayout
from etude.losses import returns
from etude.protocols import Explorer


class Carry(NamedTuple):
    """Where N environments are; of each the seed, the number and the time step of its episode."""

    begun: Any  # the observations, as agents see them, and the leaves of the states
    recurrent: Any  # [N, M] of the agent
    seed: Any  # [N] uint32
    episode: Any  # [N] int32
    time: Any  # [N] int32


class Scan:
    """The programs of a functional environment, an explorer and an agent. Keys of the environment follow from the seed,
    the episode and the time step.

    observations, actions: convert to, and from, what agents see. info: names of numbers of `info` that become extras.
    recorded: whether recurrent states do.
    """

    def __init__(
        self,
        environment: Any,
        observations: Any,
        actions: Any,
        explorer: Explorer,
        info: tuple[str, ...],
        recorded: bool,
        layout: ParameterLayout,
        backend: Backend,
    ):
        self._environment, self._observations, self._actions = environment, observations, actions
        self._explorer, self._info, self._layout = explorer, info, layout
        self._recorded = recorded and layout.agent.state_size > 0
        self._branches = backend.device == "cpu"  # on a GPU each waits for the host
        _, state = jax.eval_shape(lambda: environment.reset(jax.random.key(0), environment.params))
        self._structure = jax.tree.structure(state)  # of the state, whatever containers the environment has for it
        self.reset: Any = backend.compile(self._reset)
        self.collect: Any = backend.compile(self.collected)

    def _keys(self, carry: Carry) -> Any:
        def own(seed: Any, episode: Any, time: Any) -> Any:
            return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), episode), time)

        return jax.vmap(own)(carry.seed, carry.episode, carry.time)

    def _reset(self, carry: Carry) -> Carry:
        """The same with the episodes begun."""
        params = self._environment.params
        observation, state = jax.vmap(lambda key: self._environment.reset(key, params))(self._keys(carry))
        begun = self._observations.converted(observation), tuple(jax.tree.leaves(state))
        # What began as a number of Python has the type that it has after a step, so that nothing is compiled twice.
        return carry._replace(begun=jax.tree.map(lambda leaf: leaf.astype(leaf.dtype), begun))

    def collected(self, values: Arrays, carry: Carry, noise: Any, now: Any) -> tuple[Carry, dict[str, Any]]:
        """T time steps from there, and their rows [T, N, ...]. noise: [T, N, k] of the explorer. now: [T] int32, the
        environment steps of the run."""
        return self._scanned(self._layout.bind(values), carry, noise, now)

    def _scanned(self, agent: Any, carry: Carry, noise: Any, now: Any) -> tuple[Carry, dict[str, Any]]:
        space = self._actions.space

        def step(carry: Carry, inputs: Any) -> tuple[Carry, dict[str, Any]]:
            (noise, now), observation, recurrent = inputs, carry.begun[0], carry.recurrent
            output: Any = agent.act(observation, recurrent) if recurrent.shape[1] else agent.act(observation)
            output, after = output if recurrent.shape[1] else (output, recurrent)
            choice: Any = self._explorer(output, noise, now, np.empty((len(noise), 0)))
            (action, extras), chosen = choice, choice.action
            after = agent.acted(after, action)
            if self._recorded:
                extras[RECURRENT_STATE] = recurrent
            if isinstance(space, Box) and LOG_PROB in extras and CLIPPED not in extras:
                extras[SAMPLED_ACTION] = action
            if (bounds := clipped_to(space)) is not None:
                chosen = jnp.clip(chosen, *bounds)
            carry, rows, info = self._stepped(carry, chosen)
            after = agent.rewarded(after, rows["reward"])
            for name in self._info:
                extras[info_extra(name)] = jnp.broadcast_to(jnp.asarray(info.get(name, jnp.nan)), len(noise))
            ended = rows["terminated"] | rows["truncated"]
            rows |= {"observation": observation, "action": chosen, "extras": extras}
            return carry._replace(recurrent=jnp.where(ended[:, None], 0.0, after)), rows

        return jax.lax.scan(step, carry, (noise, now))

    def _stepped(self, carry: Carry, action: Any) -> tuple[Carry, dict[str, Any], Any]:
        """Where the environments are after an action, those that ended in their next episodes."""
        carry, params = carry._replace(time=carry.time + 1), self._environment.params
        [legal] = self._actions.converted(action)
        step = jax.vmap(lambda key, state, action: self._environment.step(key, state, action, params))
        before = jax.tree.unflatten(self._structure, carry.begun[1])
        observation, state, *numbers, info = step(self._keys(carry), before, legal)
        after = self._observations.converted(observation), tuple(jax.tree.leaves(state))
        last = jax.tree.map(lambda new, old: new.astype(old.dtype), after, carry.begun)
        kinds = (("reward", jnp.float32), ("terminated", bool), ("truncated", bool))
        rows = {name: number.astype(kind) for (name, kind), number in zip(kinds, numbers, strict=True)}
        ended = rows["terminated"] | rows["truncated"]
        carry = carry._replace(begun=last, episode=carry.episode + ended, time=jnp.where(ended, 0, carry.time))

        def restarted() -> Carry:
            def chosen(new: Any, old: Any) -> Any:
                return jnp.where(ended.reshape(-1, *[1] * (old.ndim - 1)), new, old)

            return jax.tree.map(chosen, self._reset(carry), carry)

        carry = jax.lax.cond(ended.any(), restarted, lambda: carry) if self._branches else restarted()
        return carry, rows | {"last": last[0]}, info


def _flat(leaf: Any) -> Any:
    """[T, N, ...] as [T * N, ...]."""
    return leaf.reshape(-1, *leaf.shape[2:])


class Phases(Scan):
    """Its programs, and those of whole learning phases: collect, store or estimate, take gradient steps.

    held: the state of the engine, and the replay on the device, if there is one.
    inputs, of P phases: noise [P, T, N, k] of the explorer, the environment steps of the run [P, T] int32, the slots
        [P] int32 of the replay that are written from, the rows of minibatches [P, K, n], the noise of losses
        [P, K, ...], and the hyperparameters that may change [P, H].
    signs: whether rewards are learned from by their signs. The other arguments are those of `Scan`.
    """

    def __init__(self, signs: bool, *scan: Any):
        super().__init__(*scan)
        *_, layout, backend = scan
        self._program, self._signs, self._backend = Program(layout, backend), signs, backend
        self.reports: Any = self._program.reports
        self.learn: Any = backend.compile(self._phases)
        self.learn_all: Any = backend.compile(jax.vmap(self._phases, (0, 0, 0, None)))  # of several agents

    def _phases(self, held: Any, carry: Carry, inputs: Any, count: Any) -> Any:
        """The first `count` of these phases: what is held, the carry, and by phase what `_phase` tells."""

        def phase(number: Any, before: Any) -> Any:
            held, carry, told = before
            held, carry, own = self._phase(held, carry, jax.tree.map(lambda leaf: leaf[number], inputs))
            return held, carry, jax.tree.map(lambda every, one: every.at[number].set(one), told, own)

        first = jax.tree.map(lambda leaf: leaf[0], inputs)
        shapes = jax.eval_shape(self._phase, held, carry, first)[2]
        told = jax.tree.map(lambda own: jnp.zeros((len(inputs[0]), *own.shape), own.dtype), shapes)
        return jax.lax.fori_loop(0, count, phase, (held, carry, told))

    def _phase(self, held: Any, carry: Carry, inputs: Any) -> Any:
        """One phase. It tells the rows [T, N, ...], estimates included; what is acted on next; and the reports."""
        (state, replay), (noise, now, slot, minibatches, drawn, scalars) = held, inputs
        hyper = self._program.hyper(scalars)
        agent = self._layout.bind(state["values"], hyper, acting=True)
        carry, rows = self._scanned(agent, carry, noise, now)
        read = {name: rows[name] for name in ("observation", "action", "extras")}
        read["reward"] = jnp.sign(rows["reward"]) if self._signs else rows["reward"]
        replay, batch = self._examples(agent, rows, read, carry, hyper, replay, slot)

        def step(state: Any, inputs: Any, scalars: Any) -> Any:
            at, drawn = inputs
            examples = batch(at) | {"weight": jnp.ones(at.shape, jnp.float32)}
            state, (summary, _) = self._program.step(state, (examples, drawn), scalars)
            return state, summary

        state, summaries = self._backend.scan(step, state, (minibatches, drawn), scalars)
        told = rows, carry.begun[0], {self._program.reported(): summaries.mean(0)}
        return (state, replay), carry, told

    def _examples(
        self, agent: Any, rows: Arrays, read: Arrays, carry: Carry, hyper: Arrays, replay: Any, slot: Any
    ) -> tuple[Any, Callable[[Any], Arrays]]:
        """What is held of a replay, and what makes a batch of rows [n]: those of the phase, with their estimates,
        which `rows` gets, too; see `replay.Advantages`."""
        truncated, ended = rows["truncated"] & ~rows["terminated"], rows["truncated"] | rows["terminated"]

        def valued(observation: Any) -> Any:
            return agent.value(jax.tree.map(_flat, observation)).reshape(ended.shape)

        def bootstrapped(given: Any) -> Any:  # few steps have an episode that is cut off
            cut, last = given
            return jax.lax.cond(cut.any(), lambda: agent.value(last), lambda: jnp.zeros(cut.shape, value.dtype))

        value, last = valued(rows["observation"]), rows["last"]
        following = jnp.concatenate([value[1:], agent.value(carry.begun[0])[None]])
        final = jax.lax.map(bootstrapped, (truncated, last)) if self._branches else valued(last)
        following = jnp.where(truncated, final, following)
        read["discount"] = jnp.where(rows["terminated"], 0.0, hyper["gamma"])
        decay = hyper["gae_lambda"] * ~ended
        advantage = returns.advantages(read["reward"], read["discount"], value, following, decay)
        rows["extras"] |= {"advantage": advantage, "value": value, "return": advantage + value}
        examples = jax.tree.map(_flat, read)
        return replay, lambda at: jax.tree.map(lambda leaf: leaf[at], examples)


class ReplayedPhases(Phases):
    """The same on transitions of n steps, which a replay on the device holds: by flat row as in `replay.Ring`, of which
    it is a copy, the observation, action and reward, how the step ended, and the true next observation.

    n: of n-step returns. The other arguments are those of `Phases`.
    """

    def __init__(self, n: int, *phases: Any):
        self._n = n
        super().__init__(*phases)

    def _examples(
        self, agent: Any, rows: Arrays, read: Arrays, carry: Carry, hyper: Arrays, replay: Any, slot: Any
    ) -> tuple[Any, Callable[[Any], Arrays]]:
        """The replay with the rows of the phase, and what makes a batch of its rows [n]; see `replay.NStep`."""
        (times, count), total = rows["reward"].shape, len(replay["reward"])
        kind = rows["terminated"] + 2 * rows["truncated"].astype(jnp.uint8)
        own = {name: read[name] for name in ("observation", "action", "reward")} | {"kind": kind, "last": rows["last"]}
        written = (slot * count + jnp.arange(times * count)) % total
        replay = jax.tree.map(
            lambda held, new: held.at[written].set(new.reshape(-1, *held.shape[1:]).astype(held.dtype)), replay, own
        )

        def batch(at: Any) -> Arrays:
            left = (slot + times - at // count) % (total // count)  # rows from each to the newest of its column
            going, reward, end = jnp.ones(at.shape, bool), jnp.zeros(at.shape, jnp.float32), at
            discount = jnp.ones(at.shape, jnp.float32)
            for i in range(self._n):
                place = (at + i * count) % total
                going &= i < left
                reward += jnp.where(going, discount * replay["reward"][place], 0.0)
                end, kind = jnp.where(going, place, end), replay["kind"][place]
                discount = jnp.where(going, jnp.where(kind % 2 == 1, 0.0, hyper["gamma"] * discount), discount)
                going &= kind == 0
            taken = jax.tree.map(lambda leaf: leaf[at], {name: replay[name] for name in ("observation", "action")})
            following = jax.tree.map(lambda leaf: leaf[end], replay["last"])
            return taken | {"reward": reward, "discount": discount, "next_observation": following, "extras": {}}

        return replay, batch
