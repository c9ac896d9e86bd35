"""Many agents of one architecture, on JAX: one compiled call acts for all of them, and one trains all of them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import jax
import numpy as np

from etude.agent import Agent
from etude.base import seeding
from etude.base.checks import Stored
from etude.base.data import INITIAL_VERSION, Batch, PolicyVersion, Update
from etude.base.errors import ConfigError
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.engines.functional import FunctionalEngine, read_by_losses
from etude.engines.jax import JaxBackend
from etude.engines.parameter_layout import ParameterLayout, loss_noise
from etude.networks.network import Maker
from etude.protocols import Weights

_map = jax.tree_util.tree_map


class Population:
    """N agents whose configs differ in floats alone, with weights, optimizers and noise of their own.

    `members` are their engines. As an actor of a rollout, it acts for the environments of all of them, which come one
    member after the other.

    agents: with the seeds from which their weights and noise are drawn, as those of runs of their own would be.
    """

    state_size: int

    def __init__(self, agents: Sequence[Agent], spaces: Spaces, seeds: Sequence[int], device: str = "auto"):
        self.spaces, self.size = spaces, len(agents)
        backend = JaxBackend(device)
        self._one = FunctionalEngine(agents[0], spaces, seeds[0], backend)  # what is compiled, as functions of arrays
        if self._one.layout.noisy:
            raise ConfigError(
                f"{type(agents[0]).__name__} has noise in its layers, which agents that are trained together cannot "
                "have. Leave `noisy` of the network at 0, or train them one by one."
            )
        self.name, self.device, self.state_size = backend.name, self._one.device, self._one.state_size
        drawn = [Maker(seeding.generator(seed, "weights"), backend.wrap_module) for seed in seeds]
        layouts = [ParameterLayout(agent, spaces, make) for agent, make in zip(agents, drawn, strict=True)]
        self.members = [MemberEngine(self, i, layout, seed) for i, (layout, seed) in enumerate(zip(layouts, seeds))]
        self._state = backend.put(_stacked([self._one.first_arrays(layout.initial) for layout in layouts]))
        self._learn, self._act = jax.jit(jax.vmap(self._one.gradient_steps)), jax.jit(self._act_for_all)
        self._evaluate = {what: jax.jit(functools.partial(self._evaluate_one, what)) for what in ("act", "value")}
        self._read, self._write = jax.jit(_member), jax.jit(_with_member)

    @property
    def traces(self) -> int:
        """How often the learn step was traced."""
        return self._one.traces

    def act(self, observation: Tree, state: np.ndarray | None = None) -> Any:
        """What each member's `agent.act` returns for its part of observations [N * E, ...], in NumPy."""
        return self._one.backend.numpy(self._act(self._state["values"], _inputs(observation, state)))

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Nothing: it acts with the present weights."""

    def learn(self, batches: Sequence[Batch], hyper: Sequence[dict[str, float]]) -> None:
        """k gradient steps of every member, on batches [k, B] and with hyperparameters of its own. What was reported is
        what `learn` of each member returns next; losses that are not finite concern their member alone."""
        one, (k, n) = self._one, batches[0].weight.shape[:2]
        noise = [member.layout.draw_noise(member.noise, k, n) for member in self.members]
        inputs = zip(map(read_by_losses, batches), noise, map(one.scalars, hyper), strict=True)
        self._state, summary, td_error = self._learn(self._state, *_stacked(list(inputs)))
        errors = [None] * self.size if td_error is None else one.backend.numpy(td_error)
        for i, member in enumerate(self.members):
            member.update = one.reported(one.backend.numpy(summary)[i], errors[i], member.done, k, hyper[i])
            member.done += k

    def weights(self) -> Weights:
        """The trained weights of all members by name: [N, ...]."""
        values = self._state["values"]
        return self._one.backend.numpy({name: values[name] for name in self._one.layout.trainable})

    def evaluate(self, what: str, i: int, inputs: tuple[Any, ...]) -> Any:
        """What the method `act` or `value` of member i returns for observations [M, ...], in NumPy."""
        return self._one.backend.numpy(self._evaluate[what](self._state["values"], i, inputs))

    def arrays(self, i: int) -> Any:
        """What member i goes on from, in NumPy."""
        return self._one.backend.numpy(self._read(self._state, i))

    def plain(self, i: int, noise: np.random.Generator) -> dict[str, Any]:
        """What an engine of member i alone would go on from. noise: its generator."""
        return self._one.plain(self.arrays(i), noise)

    def restore(self, i: int, state: dict[str, Any]) -> None:
        """Let member i go on from what `plain` returned."""
        self.put(i, self._one.arrays(state))

    def put(self, i: int, arrays: Any) -> None:
        """Let member i go on from these arrays."""
        self._state = self._write(self._state, i, arrays)

    def _act_for_all(self, values: Any, inputs: Any) -> Any:
        parts = _map(lambda x: x.reshape(self.size, -1, *x.shape[1:]), inputs)
        found = jax.vmap(lambda own, seen: self._one.layout.bind(own).act(*seen))(values, parts)
        return _map(lambda x: x.reshape(-1, *x.shape[2:]), found)

    def _evaluate_one(self, what: str, values: Any, i: Any, inputs: Any) -> Any:
        return getattr(self._one.layout.bind(_member(values, i)), what)(*inputs)


class MemberEngine:
    """One member of a population, as an engine of its own. See `protocols.Engine`.

    noise: the generator of the noise in its losses. done: gradient steps so far. update: what `Population.learn`
    reported last.
    """

    exportable = True

    def __init__(self, population: Population, number: int, layout: ParameterLayout, seed: int):
        self._population, self._number, self.layout = population, number, layout
        self.name, self.device, self.spaces = population.name, population.device, population.spaces
        self.state_size, self.exportable = population.state_size, layout.portable
        self.noise, self.done = loss_noise(seed), 0
        self.update: Update | None = None

    def act(self, observation: Tree, state: np.ndarray | None = None) -> Any:
        """What `agent.act` returns for observations [M, ...], and states [M, S] if it is recurrent, in NumPy."""
        return self._population.evaluate("act", self._number, _inputs(observation, state))

    def value(self, observation: Tree, state: np.ndarray | None = None) -> Any:
        """What `agent.value` returns for observations [M, ...], and states [M, S] if it is recurrent, in NumPy."""
        return self._population.evaluate("value", self._number, _inputs(observation, state))

    def learn(self, batches: Batch, hyper: dict[str, float]) -> Update:
        """This member's part of the gradient steps that `Population.learn` has just taken."""
        update, self.update = self.update, None
        assert update is not None
        return update

    def weights(self, names: Iterable[str] | None = None) -> Weights:
        """These weights by name, or all of them, in NumPy."""
        values = self._population.arrays(self._number)["values"]
        return values if names is None else {name: values[name] for name in names}

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Take over weights by name, the others stay; raises NetworkError where a name or a shape does not fit."""
        self.layout.check_weights(weights)
        arrays = self._population.arrays(self._number)
        self._population.put(self._number, {**arrays, "values": {**arrays["values"], **weights}})

    def state(self) -> dict[str, Any]:
        """What an engine of this agent alone would go on from."""
        return self._population.plain(self._number, self.noise)

    def check_state(self, saved: Stored) -> None:
        """Raise CheckpointError where `restore` cannot continue from this."""
        self.layout.check_state(saved)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        seeding.restore_generator(self.noise, state["noise"])
        self._population.restore(self._number, state)
        self.done = int(state["step"])

    def gradients(self, *_: Any) -> NoReturn:
        """Raises ConfigError: members learn by the losses of all of them, in one call."""
        raise ConfigError("Agents that are trained together learn from losses that this process computes for all.")

    apply = reward = gradients


def _inputs(observation: Tree, state: np.ndarray | None) -> tuple[Any, ...]:
    return (observation,) if state is None else (observation, state)


def _stacked(trees: list[Any]) -> Any:
    return _map(lambda *own: np.stack(own), *trees)


def _member(stacked: Any, i: Any) -> Any:
    return _map(lambda x: x[i], stacked)


def _with_member(stacked: Any, i: Any, own: Any) -> Any:
    return _map(lambda x, new: x.at[i].set(new), stacked, own)
