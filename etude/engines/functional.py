"""The engine whose learn step is a pure function of its state, compiled by a small backend: JAX, TensorFlow, or
torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from etude import ops, seeding
from etude.agent import Agent
from etude.data import Batch, Update
from etude.engines.adam import adam, clip_by_norm
from etude.engines.structure import Arrays, Structure, loss_noise
from etude.engines.summary import READ_BY_LOSSES, check_finite, read_losses
from etude.networks.network import Maker, parts_of
from etude.protocols import Weights
from etude.spaces import Spaces
from etude.trees import Tree


class Backend(Protocol):
    """What differs between frameworks."""

    name: str
    device: str

    def settle(self, structure: Structure) -> None:
        """Decide on the device, now that the networks are known."""

    def wrap_module(self, factory: Any, space: Any, outputs: int) -> Any:
        """A module that a user wrote, as a `Part`."""

    def compile(self, function: Any) -> Any:
        """The function, compiled at its first call for each combination of shapes."""

    def gradients(self, losses: Any, values: Arrays, groups: dict[str, tuple[str, ...]]) -> tuple[Any, Arrays]:
        """`losses(values)` returns (scalars by group, more). Returns (more, gradient of each group's scalar with
        respect to the group's own values)."""

    def scan(self, step: Any, carry: Any, inputs: Any, constant: Any) -> tuple[Any, Any]:
        """`step(carry, inputs[i], constant) -> (carry, outputs)` for each i; returns the carry and the outputs
        stacked."""

    def put(self, tree: Any) -> Any:
        """NumPy arrays onto the device."""

    def numpy(self, tree: Any) -> Any:
        """Back into NumPy arrays that nothing else writes to."""


class FunctionalEngine:
    """Evaluates and trains one agent.

    The agent's ordinary methods are traced with its variables, optimizer moments and hyperparameters as arguments, so
    that nothing is compiled again when one of them changes. `traces` counts how often the learn step was traced.
    """

    def __init__(self, agent: Agent, spaces: Spaces, seed: int, backend: Backend):
        self.spaces, self.backend = spaces, backend
        self.structure = Structure(agent, spaces, Maker(seeding.generator(seed, "weights"), backend.wrap_module))
        self.exportable = self.structure.portable
        backend.settle(self.structure)
        self.name, self.device = backend.name, backend.device
        self._noise = loss_noise(seed)
        values = backend.put(dict(self.structure.initial))
        zero = {group: np.zeros(self.structure.size(group), np.float32) for group in self.structure.groups}
        self._state = {"values": values, "first": backend.put(zero), "second": backend.put(zero)}
        self._state["step"] = backend.put(np.zeros((), np.int32))
        self._act = backend.compile(lambda values, observation: self.structure.bind(values).act(observation))
        self._value = backend.compile(lambda values, observation: self.structure.bind(values).value(observation))
        self._learn = backend.compile(self._steps)
        self.traces = 0
        self._names: tuple[list[str], list[str]] = ([], [])

    def act(self, observation: Tree) -> Any:
        """What `agent.act` returns for observations [N, ...], in NumPy arrays."""
        return self.backend.numpy(self._act(self._state["values"], self.backend.put(observation)))

    def value(self, observation: Tree) -> np.ndarray:
        """What `agent.value` returns for observations [M, ...]: [M] float32."""
        return self.backend.numpy(self._value(self._state["values"], self.backend.put(observation)))

    def learn(self, batches: Batch, hyper: dict[str, float]) -> Update:
        """k gradient steps in one compiled call; `batches` has leading axes [k, B]. Raises NumericalError on NaN."""
        k, n = batches.weight.shape
        arrays = {name: getattr(batches, name) for name in READ_BY_LOSSES}
        noise = self.structure.draw_noise(self._noise, k, n)
        scalars = np.array([hyper[name] for name in self.structure.hyper], np.float32)
        inputs = self.backend.put(({key: a for key, a in arrays.items() if a is not None}, noise, scalars))
        self._state, summary, td_error = self._learn(self._state, *inputs)
        numbers = self.backend.numpy(summary).tolist()
        losses, metrics = self._names
        update = Update(
            dict(zip(losses, numbers, strict=False)),
            dict(zip(metrics, numbers[len(losses) :], strict=True)),
            None if td_error is None else self.backend.numpy(td_error),
            k,
        )
        check_finite(update)
        return update

    def _steps(self, state: Any, batches: Any, noise: Any, scalars: Any) -> Any:
        state, (summaries, td_error) = self.backend.scan(self._step, state, (batches, noise), scalars)
        return state, ops.mean(summaries, 0), td_error

    def _step(self, state: Any, inputs: Any, scalars: Any) -> Any:
        self.traces += 1
        batch, noise = inputs
        hyper = {name: scalars[i] for i, name in enumerate(self.structure.hyper)}

        def losses(values: Arrays) -> Any:
            agent = self.structure.bind(values, hyper)
            found = agent.loss(Batch(**{"index": None, "next_observation": None, **batch}), noise)
            self.structure.check_losses(found)
            scalars, metrics, td_error = read_losses(found)
            moved = {f"{p}.{v}": part.variables[v] for p, part in parts_of(agent).items() for v in part.moved}
            return scalars, (scalars, metrics, td_error, moved)

        structure, settings = self.structure, self.structure.agent.config.optimizer
        values = state["values"]
        (scalars, metrics, td_error, moved), gradients = self.backend.gradients(losses, values, structure.groups)
        step = state["step"] + 1
        new = dict(values) | moved
        first, second = dict(state["first"]), dict(state["second"])
        for group, names in structure.groups.items():
            gradient = ops.concatenate([ops.reshape(gradients[name], (-1,)) for name in names])
            if "max_gradient_norm" in structure.hyper:
                gradient, norm = clip_by_norm(gradient, hyper["max_gradient_norm"])
                metrics[f"{group}_gradient_norm"] = norm
            rate, time = hyper[structure.rates[group]], ops.cast(step, "float32")
            change, (first[group], second[group]) = adam(settings, rate, time, gradient, (first[group], second[group]))
            for name, part in structure.split(group, change).items():
                new[name] = values[name] + part
        for target, source, field, averaged in structure.following:
            if averaged:
                new[target] = new[target] + hyper[field] * (new[source] - new[target])
            else:
                due = step % ops.cast(hyper[field], "int32") == 0
                new[target] = ops.where(due, new[source], new[target])
        self._names = (list(scalars), list(metrics))
        summary = ops.stack([*scalars.values(), *metrics.values()], 0)
        return {"values": new, "first": first, "second": second, "step": step}, (summary, td_error)

    def weights(self, names: Iterable[str] | None = None) -> Weights:
        """These weights by name, or all of them, in NumPy."""
        values = self._state["values"]
        return self.backend.numpy({name: values[name] for name in (values if names is None else names)})

    def load(self, weights: Weights) -> None:
        """Take over weights by name, the others stay; raises NetworkError where a name or a shape does not fit."""
        self.structure.check_weights(weights)
        self._state["values"] = {**self._state["values"], **self.backend.put(dict(weights))}

    def state(self) -> dict[str, Any]:
        """Weights, lagged copies, optimizer moments, counter and generator."""
        state = {**self.backend.numpy(self._state), "noise": seeding.generator_state(self._noise)}
        for moment in ("first", "second"):
            flat = state[moment]
            state[moment] = {n: a for group in flat for n, a in self.structure.split(group, flat[group]).items()}
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self.structure.check_weights(state["values"])
        seeding.restore_generator(self._noise, state["noise"])
        flat = {moment: self.structure.joined(state[moment]) for moment in ("first", "second")}
        self._state = self.backend.put({"values": dict(state["values"]), **flat})
        self._state["step"] = self.backend.put(np.asarray(state["step"], np.int32))
