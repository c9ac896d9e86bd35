"""The engine whose learn step is a pure function of its state, compiled by a small backend: JAX, TensorFlow, or
torch."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np

from etude import ops
from etude.agent import Agent
from etude.base import seeding
from etude.base.data import INITIAL_VERSION, Batch, PolicyVersion, Update
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.engines.optimizers import Gradient, natural_step, optimizer_update
from etude.engines.parameter_layout import (
    READ_BY_LOSSES,
    Arrays,
    LaidOutEngine,
    ParameterLayout,
    check_finite,
    loss_noise,
    read_losses,
    update_of,
)
from etude.engines.programs import shared
from etude.networks.maker import Maker
from etude.networks.network import parts_of
from etude.protocols import Weights


class Backend(Protocol):
    """What differs between frameworks."""

    name: str
    device: str
    compile_seconds: float  # how long the calls took, so far, in which something was compiled
    compiled_for: tuple[Any, ...]  # what else than the framework a program of this backend depends on, once settled

    def settle(self, layout: ParameterLayout) -> None:
        """Decide on the device, now that the networks are known."""

    def wrap_module(self, factory: Any, inputs: Any, outputs: tuple[int, ...], seed: int) -> Any:
        """A module that a user wrote, as a `Part`; see `networks.Maker`."""

    def compile(self, function: Any) -> Any:
        """The function, compiled at its first call for each combination of the shapes of all arguments but the first,
        which is the engine's own, on the device, and always the same in shape; the others are NumPy arrays."""

    def gradients(self, losses: Any, values: Arrays, groups: dict[str, tuple[str, ...]]) -> tuple[Any, Arrays]:
        """`losses(values)` returns (scalars by group, more). Returns (more, gradient of each group's scalar with
        respect to the group's own values)."""

    def choose(self, condition: Any, one: Any, other: Any) -> Any:
        """What `one()` returns where the condition holds, else what `other()` does; alike in layout."""

    def scan(self, step: Any, carry: Any, inputs: Any, constant: Any) -> tuple[Any, Any]:
        """`step(carry, inputs[i], constant) -> (carry, outputs)` for each i; returns the carry and the outputs
        stacked."""

    def repeat(self, step: Any, times: int, carry: Any) -> Any:
        """See `optimizers.Differentiation`."""

    def put(self, tree: Any) -> Any:
        """NumPy arrays onto the device."""

    def numpy(self, tree: Any) -> Any:
        """Back into NumPy arrays that nothing else writes to."""


class Reported(NamedTuple):
    """The names of the losses and of the metrics that a trace reports. rare: of these, what is 0 at the gradient steps
    at which delayed losses are not due. told: what some of them say of the others; see `ParameterLayout.told_by`."""

    losses: tuple[str, ...]
    metrics: tuple[str, ...]
    rare: set[str]
    told: dict[str, set[str]]


class Program:
    """An agent's methods and its gradient step, compiled: functions of all weights, optimizer moments and
    hyperparameters, so that nothing is compiled again when one of them changes. See `engines.programs`.

    traces: how often the gradient step was traced; on torch, called. reports: by trace, what the losses report.
    """

    def __init__(self, layout: ParameterLayout, backend: Backend):
        self.layout: ParameterLayout = layout
        self.backend: Backend = backend
        self.traces: int = 0
        self.reports: list[Reported] = []
        self._names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._rare: set[str] = set()
        self._told: dict[str, set[str]] = {}
        self.act: Any = backend.compile(lambda values, inputs: self.layout.bind(values).act(*inputs))
        self.value: Any = backend.compile(lambda values, inputs: self.layout.bind(values).value(*inputs))
        self.reward: Any = backend.compile(lambda values, steps: self.layout.bind(values).reward(*steps))
        self.learn: Any = backend.compile(self._steps)
        self.apply: Any = backend.compile(self._descend_named)
        self.gradients: Any = backend.compile(self._differentiate_all)

    def _steps(self, state: Any, batches: Any, noise: Any, scalars: Any) -> Any:
        self.traces += 1  # not in `step`, which torch compiled anew at its second call, as the number was another
        state, (summaries, td_error) = self.backend.scan(self.step, state, (batches, noise), scalars)
        return state, {self.reported(): ops.mean(summaries, 0)}, td_error

    def reported(self) -> int:
        """The place of what this trace reports in `reports`: what it returns goes by this number."""
        found = Reported(*self._names, self._rare, self._told)
        if found not in self.reports:
            self.reports.append(found)
        return self.reports.index(found)

    def step(self, state: Any, inputs: Any, scalars: Any) -> Any:
        layout, hyper = self.layout, self.hyper(scalars)
        if layout.delay is None:
            return self._train(state, inputs, hyper, layout.groups)
        often = {group: names for group, names in layout.groups.items() if group not in layout.delayed}
        due = (state["step"] + 1) % ops.cast(hyper[layout.delay], "int32") == 0
        return self.backend.choose(
            due,
            lambda: self._train(state, inputs, hyper, layout.groups),
            lambda: self._train(state, inputs, hyper, often),
        )

    def _train(self, state: Any, inputs: Any, hyper: Arrays, groups: dict[str, tuple[str, ...]]) -> Any:
        """One gradient step that trains these groups."""
        (scalars, metrics, td_error, moved), gradients = self._differentiate(state["values"], inputs, hyper, groups)
        values = dict(state["values"]) | moved
        batch, noise = inputs
        read = Batch(**{"index": None, "next_observation": None, **batch})
        measure = functools.partial(self.layout.measured, values, read, noise, hyper)
        state, found = self._descend({**state, "values": values}, gradients, hyper, groups, measure)
        reported = self._summary(scalars, metrics, found, set() if self.layout.delayed <= groups.keys() else self._rare)
        return state, (reported, td_error)

    def _differentiate(
        self, values: Arrays, inputs: Any, hyper: Arrays, groups: dict[str, tuple[str, ...]]
    ) -> tuple[Any, Arrays]:
        """(what the losses reported, gradients of these groups by name)."""
        layout, (batch, noise) = self.layout, inputs

        def losses(values: Arrays) -> Any:
            agent = layout.bind(values, hyper)
            found = agent.loss(Batch(**{"index": None, "next_observation": None, **batch}), noise)
            layout.check_losses(found)
            self._rare = {*layout.delayed, *layout.metrics_of(found, layout.delayed)}
            self._told = layout.told_by(found)
            scalars, metrics, td_error = read_losses(found)
            moved = {f"{p}.{v}": part.variables[v] for p, part in parts_of(agent).items() for v in part.moved}
            return scalars, (scalars, metrics, td_error, moved)

        return self.backend.gradients(losses, values, groups)

    def gradient(self, function: Any, at: Any) -> Any:
        """See `optimizers.Differentiation`."""
        return self.backend.gradients(lambda x: ({"it": function(x["it"])}, ()), {"it": at}, {"it": ("it",)})[1]["it"]

    def repeat(self, step: Any, times: int, carry: Any) -> Any:
        """See `optimizers.Differentiation`."""
        return self.backend.repeat(step, times, carry)

    def _differentiate_all(self, values: Arrays, batch: Any, noise: Any, scalars: Any) -> Any:
        self.traces += 1
        inputs = (batch, noise)
        reported, gradients = self._differentiate(values, inputs, self.hyper(scalars), self.layout.groups)
        return gradients, {self.reported(): reported[:2]}

    def _descend_named(self, state: Any, gradients: Arrays, scalars: Any) -> Any:
        return self._descend(state, gradients, self.hyper(scalars), self.layout.groups)

    def hyper(self, scalars: Any) -> Arrays:
        """What `_scalars` was given, inside of what is compiled."""
        return {name: scalars[i] for i, name in enumerate(self.layout.hyper)}

    def _descend(
        self, state: Any, gradients: Arrays, hyper: Arrays, groups: dict[str, tuple[str, ...]], measure: Any = None
    ) -> tuple[Any, Arrays]:
        """The state after one gradient step that trains these groups, and metrics of it. measure: see `measured`; of a
        group and a vector."""
        layout, step = self.layout, state["step"] + 1
        reported: dict[str, Any] = {}
        delayed = {"delayed": state["delayed"] + (layout.delayed <= groups.keys())} if layout.delay else {}
        new, moments = dict(state["values"]), {moment: dict(state[moment]) for moment in layout.moments}
        for group in groups:
            gradient, told = layout.bounded(group, gradients, hyper)
            reported |= told
            if group in layout.agent.trust_regions:
                start, of_group = layout.vector(state["values"], group), functools.partial(measure, group)
                change, told = natural_step(layout.config(hyper), gradient, start, of_group, self)
                reported |= {f"{group}_{name}": x for name, x in told.items()}
                new |= {name: new[name] + part for name, part in layout.split(group, change).items()}
                continue
            times = delayed["delayed"] if group in layout.delayed else step
            rate, time = hyper[layout.rates[group]], ops.cast(times, "float32")
            found = Gradient(rate, time, gradient, functools.partial(layout.vector, state["values"], group))
            kept = {moment: vectors[group] for moment, vectors in moments.items()}
            change, kept = optimizer_update(layout.optimizer(hyper), found, kept)
            for moment, vector in kept.items():
                moments[moment][group] = vector
            for name, part in layout.split(group, change).items():
                new[name] = new[name] + part
        new |= layout.on_sphere(new)
        for target, source, tau, every in layout.following:
            followed = new[source] if tau is None else new[target] + hyper[tau] * (new[source] - new[target])
            due = None if every is None else step % ops.cast(hyper[every], "int32") == 0
            new[target] = followed if due is None else ops.where(due, followed, new[target])
        return {"values": new, **moments, "step": step, **delayed}, reported

    def _summary(self, scalars: Arrays, metrics: Arrays, found: Arrays, absent: set[str]) -> Any:
        """All losses and metrics in one vector, always in the same order; 0 where a loss is not due."""
        zero = ops.zeros_like(next(iter(scalars.values())))
        reported = scalars | metrics
        for group in self.layout.groups:
            reported |= {name: found.get(name, zero) for name in self.layout.gradient_metrics(group)}
        self._names = (tuple(scalars), tuple(name for name in reported if name not in scalars))
        return ops.stack([zero if name in absent else x for name, x in reported.items()], 0)


class FunctionalEngine(LaidOutEngine):
    """Evaluates and trains one agent, with programs that it shares with others like it; see `programs.shared`."""

    def __init__(self, agent: Agent, spaces: Spaces, seed: int, backend: Backend):
        self.spaces: Spaces = spaces
        self.backend: Backend = backend
        make = Maker(seeding.generator(seed, "weights"), backend.wrap_module)
        super().__init__(ParameterLayout(agent, spaces, make))
        self.exportable: bool = self.layout.portable
        backend.settle(self.layout)
        self.name: str = backend.name
        self.device: str = backend.device
        self.noise = loss_noise(seed)
        values = backend.put(dict(self.layout.initial))
        zero = {group: np.zeros(self.layout.size(group), np.float32) for group in self.layout.groups}
        # All that a gradient step changes, on the device
        self.held: dict[str, Any] = {"values": values} | {moment: backend.put(zero) for moment in self.layout.moments}
        self.held["step"] = backend.put(np.zeros((), np.int32))
        if self.layout.delay is not None:
            self.held["delayed"] = backend.put(np.zeros((), np.int32))
        self._done = 0  # gradient steps

    @functools.cached_property
    def _acting(self) -> Program:
        return self._shared(())

    @functools.cached_property
    def _learning(self) -> Program:
        return self._shared(self.layout.hyper)

    def _shared(self, scalars: tuple[str, ...]) -> Program:
        """Found at the first call, right before it is traced."""
        return shared(Program, self.layout, self.backend, scalars)

    @property
    def compile_seconds(self) -> float:
        """See `protocols.Engine`."""
        return self.backend.compile_seconds

    @property
    def traces(self) -> int:
        """How often the gradient step of this engine's program was traced."""
        return self._learning.traces

    def act(self, observation: Tree, state: np.ndarray | None = None) -> Any:
        """What `agent.act` returns for observations [N, ...], and states [N, M] if it is recurrent, in NumPy."""
        inputs = (observation,) if state is None else (observation, state)
        return self.backend.numpy(self._acting.act(self.values(), inputs))

    def value(self, observation: Tree, *state: np.ndarray) -> Any:
        """What `agent.value` returns for observations [N, ...], and states [N, M] if it is recurrent, in NumPy."""
        return self.backend.numpy(self._acting.value(self.values(), (observation, *state)))

    def reward(self, observation: Tree, action: np.ndarray, following: Tree, discount: np.ndarray) -> np.ndarray:
        """What `agent.reward` returns for M steps: [M] float32."""
        return self.backend.numpy(self._acting.reward(self.values(), (observation, action, following, discount)))

    def program(self, make: Any, scalars: tuple[str, ...] = ()) -> Any:
        """`make(layout, backend)`, or what an engine like this one has made so; see `programs.shared`."""
        return shared(make, self.layout, self.backend, scalars)

    def values(self) -> Any:
        """All weights, where this process computes without others."""
        return self.held["values"]

    def learn(self, batches: Batch, hyper: dict[str, float]) -> Update:
        """k gradient steps in one compiled call; `batches` has leading axes [k, B]. Raises NumericalError on NaN."""
        k, n = batches.weight.shape[:2]
        noise = self.layout.draw_noise(self.noise, k, n)
        self.held, found, td_error = self._learning.learn(self.held, _read(batches), noise, self._scalars(hyper))
        errors = None if td_error is None else self.backend.numpy(td_error)
        return self.update(self._learning.reports, self.backend.numpy(found), errors, k, hyper)

    def update(
        self, reports: list[Reported], found: dict[int, np.ndarray], errors: Any, k: int, hyper: dict[str, float]
    ) -> Update:
        """What k gradient steps came to, which a program has taken. reports, found: its own, and what it returned."""
        [(number, summary)] = found.items()
        losses, metrics, rare, told = reports[number]
        reported = dict(zip((*losses, *metrics), summary.tolist(), strict=True))
        for name in rare & reported.keys():
            mean = reported.pop(name)
            if due := self.layout.times_due(
                self._done, k, hyper
            ):  # the mean over the gradient steps at which it was reported
                reported[name] = mean * k / due
        self._done += k
        update = update_of(list(losses), reported, told, errors, k)
        check_finite(update)
        return update

    def gradients(self, batch: Batch, hyper: dict[str, float]) -> tuple[Weights, Update]:
        """Gradients of all trained weights at one batch [B], by name, and what losses reported; nothing is changed."""
        noise = self.layout.draw_noise(self.noise, 1, len(batch.weight))
        first = {name: drawn[0] for name, drawn in noise.items()}
        told = self._learning.gradients(self.values(), _read(batch), first, self._scalars(hyper))
        gradients, found = self.backend.numpy(told)
        [(number, (losses, metrics))] = found.items()
        numbers = {name: float(value) for found in (losses, metrics) for name, value in found.items()}
        update = update_of(list(losses), numbers, self._learning.reports[number].told, None, 0)
        check_finite(update)
        return gradients, update

    def apply(self, gradients: Weights, hyper: dict[str, float]) -> Update:
        """One gradient step with these gradients of all trained weights, by name."""
        self.layout.check_gradients(gradients)
        self.held, reported = self._learning.apply(self.held, dict(gradients), self._scalars(hyper))
        self._done += 1
        return Update({}, {name: float(value) for name, value in self.backend.numpy(reported).items()}, None, 1)

    def _scalars(self, hyper: dict[str, float]) -> np.ndarray:
        return np.array([hyper[name] for name in self.layout.hyper], np.float32)

    def weights(self, names: Iterable[str] | None = None) -> Weights:
        """These weights by name, or all of them, in NumPy."""
        values = self.held["values"]
        return self.backend.numpy({name: values[name] for name in (values if names is None else names)})

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Take over weights by name, the others stay; raises NetworkError where a name or a shape does not fit."""
        self.layout.check_weights(weights)
        self.held["values"] = {**self.held["values"], **self.backend.put(dict(weights))}

    def state(self) -> dict[str, Any]:
        """Weights, target copies, optimizer moments, counter and generator."""
        state = {**self.backend.numpy(self.held), "noise": seeding.generator_state(self.noise)}
        return state | {moment: self.layout.parted(state[moment]) for moment in self.layout.moments}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        layout = self.layout
        seeding.restore_generator(self.noise, state["noise"])
        flat = {moment: layout.joined(layout.as_own(state[moment])) for moment in layout.moments}
        self.held = self.backend.put({"values": layout.as_own(state["values"]), **flat})
        self.held["step"] = self.backend.put(np.asarray(state["step"], np.int32))
        if layout.delay is not None:
            self.held["delayed"] = self.backend.put(np.asarray(layout.times_delayed(state), np.int32))
        self._done = int(state["step"])


def _read(batch: Batch) -> dict[str, Any]:
    """What losses read of a batch."""
    arrays = {name: getattr(batch, name) for name in READ_BY_LOSSES}
    return {name: array for name, array in arrays.items() if array is not None}
