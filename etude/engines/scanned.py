"""Rollouts on JAX in one program: a `lax.scan` over time steps that acts, explores, steps environments that are pure
functions, and resets those that ended, whose last observations it returns beside the rows. And learning phases, many in
one call, of one agent or of several: Lu et al. 2022, arXiv:2210.05639, compile training as a whole."""

from __future__ import annotations

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

        return jax.lax.cond(ended.any(), restarted, lambda: carry), rows | {"last": last[0]}, info


class Phases(Scan):
    """Its programs, and those of whole learning phases on advantages: collect, estimate, take gradient steps.

    inputs, of P phases: noise [P, T, N, k] of the explorer, the environment steps of the run [P, T] int32, the rows of
        minibatches [P, K, n], out of the T * N of a phase, and the hyperparameters that may change [P, H].
    signs: whether rewards are learned from by their signs. The other arguments are those of `Scan`.
    """

    def __init__(self, signs: bool, *scan: Any):
        super().__init__(*scan)
        *_, layout, backend = scan
        self._program, self._signs, self._backend = Program(layout, backend), signs, backend
        self.reports: Any = self._program.reports
        self.learn: Any = backend.compile(self._phases)
        self.learn_all: Any = backend.compile(jax.vmap(self._phases, (0, 0, 0, None)))  # of several agents

    def _phases(self, state: Any, carry: Carry, inputs: Any, count: Any) -> Any:
        """The first `count` of these phases: the state of the engine, the carry, and by phase what `_phase` tells."""

        def phase(number: Any, held: Any) -> Any:
            state, carry, told = held
            state, carry, own = self._phase(state, carry, jax.tree.map(lambda leaf: leaf[number], inputs))
            return state, carry, jax.tree.map(lambda every, one: every.at[number].set(one), told, own)

        first = jax.tree.map(lambda leaf: leaf[0], inputs)
        shapes = jax.eval_shape(self._phase, state, carry, first)[2]
        told = jax.tree.map(lambda own: jnp.zeros((len(inputs[0]), *own.shape), own.dtype), shapes)
        return jax.lax.fori_loop(0, count, phase, (state, carry, told))

    def _phase(self, state: Any, carry: Carry, inputs: Any) -> Any:
        """One phase. It tells the rows [T, N, ...], estimates included; what is acted on next; and the reports."""
        noise, now, minibatches, scalars = inputs
        hyper = self._program.hyper(scalars)
        agent = self._layout.bind(state["values"], hyper, acting=True)
        carry, rows = self._scanned(agent, carry, noise, now)
        read = {name: rows[name] for name in ("observation", "action", "extras")}
        read["reward"] = jnp.sign(rows["reward"]) if self._signs else rows["reward"]
        read["discount"] = jnp.where(rows["terminated"], 0.0, hyper["gamma"])
        rows["extras"] |= self._estimates(agent, rows, carry, read, hyper["gae_lambda"])
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), read)

        def step(state: Any, at: Any, scalars: Any) -> Any:
            batch = jax.tree.map(lambda leaf: leaf[at], flat) | {"weight": jnp.ones(at.shape, jnp.float32)}
            state, (summary, _) = self._program.step(state, (batch, {}), scalars)
            return state, summary

        state, summaries = self._backend.scan(step, state, minibatches, scalars)
        return state, carry, (rows, carry.begun[0], {self._program.reported(): summaries.mean(0)})

    def _estimates(self, agent: Any, rows: Arrays, carry: Carry, read: Arrays, gae_lambda: Any) -> Arrays:
        """See `replay.Advantages`."""
        truncated, ended = rows["truncated"] & ~rows["terminated"], rows["truncated"] | rows["terminated"]
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rows["observation"])
        value = agent.value(flat).reshape(ended.shape)

        def bootstrapped(given: Any) -> Any:  # few steps have an episode that is cut off
            cut, last = given
            return jax.lax.cond(cut.any(), lambda: agent.value(last), lambda: jnp.zeros(cut.shape, value.dtype))

        following = jnp.concatenate([value[1:], agent.value(carry.begun[0])[None]])
        following = jnp.where(truncated, jax.lax.map(bootstrapped, (truncated, rows["last"])), following)
        advantage = returns.advantages(read["reward"], read["discount"], value, following, gae_lambda * ~ended)
        return {"advantage": advantage, "value": value, "return": advantage + value}
