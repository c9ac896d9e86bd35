"""Rollouts on JAX in one program: a `lax.scan` over time steps that acts, explores, steps environments that are pure
functions, and resets those that ended, whose last observations it returns beside the rows. Lu et al. 2022,
arXiv:2210.05639, compile training as a whole."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from etude.base.data import CLIPPED, LOG_PROB, RECURRENT_STATE, SAMPLED_ACTION, info_extra
from etude.base.spaces import Box, clipped_to
from etude.engines.functional import Backend
from etude.engines.parameter_layout import Arrays, ParameterLayout
from etude.protocols import Explorer


class Carry(NamedTuple):
    """Where N environments are; of each the seed, the number and the time step of its episode."""

    begun: Any  # the observations, as agents see them, and the states
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
        begun = self._observations.converted(observation), state
        # What began as a number of Python has the type that it has after a step, so that nothing is compiled twice.
        return carry._replace(begun=jax.tree.map(lambda leaf: leaf.astype(leaf.dtype), begun))

    def collected(self, values: Arrays, carry: Carry, noise: Any, now: Any) -> tuple[Carry, dict[str, Any]]:
        """T time steps from there, and their rows [T, N, ...]. noise: [T, N, k] of the explorer. now: [T] int32, the
        environment steps of the run."""
        agent, space = self._layout.bind(values), self._actions.space

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
        observation, state, *numbers, info = step(self._keys(carry), carry.begun[1], legal)
        last = jax.tree.map(
            lambda new, old: new.astype(old.dtype), (self._observations.converted(observation), state), carry.begun
        )
        kinds = (("reward", jnp.float32), ("terminated", bool), ("truncated", bool))
        rows = {name: number.astype(kind) for (name, kind), number in zip(kinds, numbers, strict=True)}
        ended = rows["terminated"] | rows["truncated"]
        carry = carry._replace(begun=last, episode=carry.episode + ended, time=jnp.where(ended, 0, carry.time))

        def restarted() -> Carry:
            def chosen(new: Any, old: Any) -> Any:
                return jnp.where(ended.reshape(-1, *[1] * (old.ndim - 1)), new, old)

            return jax.tree.map(chosen, self._reset(carry), carry)

        return jax.lax.cond(ended.any(), restarted, lambda: carry), rows | {"last": last[0]}, info


def merged(carry: Carry, some: Carry, at: np.ndarray) -> Carry:
    """With other places for the environments at these positions."""
    return jax.tree.map(lambda leaf, own: leaf.at[at].set(own), carry, some)


def some_of(begun: Any, at: np.ndarray) -> Any:
    """Observations and states of the environments at these positions."""
    return jax.tree.map(lambda leaf: leaf[at], begun)


def arrays_of(carry: Carry) -> list[np.ndarray]:
    """Their observations and states as arrays [N, ...]."""
    return [np.array(leaf) for leaf in jax.tree.leaves(carry.begun)]


def with_arrays(carry: Carry, arrays: list[np.ndarray]) -> Carry:
    """With what `arrays_of` returned."""
    return carry._replace(begun=jax.tree.unflatten(jax.tree.structure(carry.begun), arrays))
