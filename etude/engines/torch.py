"""torch: eager steps with torch's fused Adam, or the functional step compiled by TorchInductor; and how many threads
it computes with on the CPU."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.optim.adam import adam as fused_adam

from etude.agent import Agent, Losses
from etude.base import seeding, trees
from etude.base.cores import Busy, physical_cores, usable_cores
from etude.base.data import INITIAL_VERSION, Batch, PolicyVersion, Update
from etude.base.errors import ConfigError, NetworkError
from etude.base.forks import home_of
from etude.base.spaces import Space, Spaces, zeros
from etude.base.trees import Tree
from etude.engines.devices import decide, threads_for
from etude.engines.optimizers import Gradient, natural_step, optimizer_update
from etude.engines.parameter_layout import (
    READ_BY_LOSSES,
    Arrays,
    LaidOutEngine,
    ParameterLayout,
    check_finite,
    check_module,
    loss_noise,
    read_losses,
    update_of,
)
from etude.engines.pretrained import pretrained_models
from etude.networks.maker import Maker, made_by
from etude.networks.network import Part, parts_of
from etude.networks.specs import framework_of
from etude.ops.dispatch import IMPLEMENTATIONS
from etude.optimizers import Adam
from etude.protocols import Weights

SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@contextmanager
def limited(threads: int | None) -> Iterator[None]:
    """Compute with so many threads at most; None, or a number that the user chose: with those that there are."""
    leave_to_home()
    own = torch.get_num_threads()
    if threads is None or threads >= own or own not in _defaults():
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(own)


def leave_to_home() -> None:
    """Compute with one thread in a process that was forked from one where torch ran: it has none of the threads that
    torch would give a part of the work to, and wait for."""
    if home_of("torch") != os.getpid() and torch.get_num_threads() > 1:
        torch.set_num_threads(1)


@functools.cache
def _defaults() -> set[int]:
    """The numbers of threads that torch has where nobody chose one: it takes one for each core, or, with MKL, for each
    physical core. What `torch.set_num_threads` was given shows by being another."""
    return set() if any(name in os.environ for name in SETTINGS) else {usable_cores(), physical_cores()}


class TorchEngine(LaidOutEngine):
    """Evaluates and trains one agent in eager torch. Every gradient step is one pass through `agent.loss`, one
    backward pass for each loss, and one fused Adam step for each."""

    name = "torch"
    compile_seconds = 0.0

    def __init__(self, agent: Agent, spaces: Spaces, seed: int, device: str, busy: Busy = Busy()):  # noqa: B008  (a tuple)
        self.spaces = spaces
        make = Maker(seeding.generator(seed, "weights"), wrap_module, pretrained_models())
        super().__init__(ParameterLayout(agent, spaces, make))
        self.exportable: bool = self.layout.portable
        self.device: str = (device := decide(device, torch.cuda.device_count(), self.layout))
        weights, fixed = self.layout.initial.values(), sum(part.fixed for part in self.layout.parts.values())
        self._acting, self._learning = (threads_for(weights, own, fixed) for own in (busy.acting, busy.learning))
        self._noise = loss_noise(seed)
        self._values = {name: torch.tensor(value, device=device) for name, value in self.layout.initial.items()}
        # All that a loss trains is one vector, and its variables views of it: the optimizer and the bound on the norm
        # take as long for many small arrays as for large ones.
        self._trained = _to_torch(self.layout.joined(self.layout.initial), device)
        self._values |= {n: x.requires_grad_(True) for n, x in self.layout.parted(self._trained).items()}
        self._moments = {
            moment: {group: torch.zeros_like(vector) for group, vector in self._trained.items()}
            for moment in self.layout.moments
        }
        self._times = {group: torch.zeros((), device=device) for group in self._trained}
        self._step = 0
        self._bound = self.layout.bind(self._values)

    @torch.no_grad()
    def act(self, observation: Tree, state: np.ndarray | None = None) -> Any:
        """What `agent.act` returns for observations [N, ...], and states [N, M] if it is recurrent, in NumPy."""
        inputs = (observation,) if state is None else (observation, state)
        with limited(self._acting):
            return to_numpy(self._bound.act(*_to_torch(inputs, self.device)))

    @torch.no_grad()
    def value(self, observation: Tree, *state: np.ndarray) -> Any:
        """What `agent.value` returns for observations [N, ...], and states [N, M] if it is recurrent, in NumPy."""
        with limited(self._learning):
            return to_numpy(self._bound.value(*_to_torch((observation, *state), self.device)))

    @torch.no_grad()
    def reward(self, observation: Tree, action: np.ndarray, following: Tree, discount: np.ndarray) -> np.ndarray:
        """What `agent.reward` returns for M steps: [M] float32."""
        with limited(self._learning):
            return to_numpy(self._bound.reward(*_to_torch((observation, action, following, discount), self.device)))

    def learn(self, batches: Batch, hyper: dict[str, float]) -> Update:
        """k gradient steps; `batches` has leading axes [k, B]. Raises NumericalError on NaN."""
        update = self._learned(batches, self.layout.draw_noise(self._noise, *batches.weight.shape[:2]), hyper)
        check_finite(update)
        return update

    def _learned(self, batches: Batch, drawn: dict[str, np.ndarray], hyper: dict[str, float]) -> Update:
        """k gradient steps with these random numbers."""
        k, noise = len(batches.weight), _to_torch(drawn, self.device)
        arrays = {name: _to_torch(getattr(batches, name), self.device) for name in READ_BY_LOSSES}
        agent = self.layout.bind(self._values, hyper)
        found = []
        with limited(self._learning):
            for i in range(k):
                batch = Batch(index=None, **{name: _pick(array, i) for name, array in arrays.items()})  # type: ignore[arg-type]
                found.append(self._gradient_step(agent, batch, _pick(noise, i), hyper))
        (losses, told), _, td_error = found[0]
        errors = None if td_error is None else torch.stack([errors for *_, errors in found]).cpu().numpy()
        return update_of(losses, _means([numbers for _, numbers, _ in found]), told, errors, k)

    def _gradient_step(self, agent: Agent, batch: Batch, noise: Any, hyper: dict[str, float]) -> Any:
        layout, self._step = self.layout, self._step + 1
        every = 1 if layout.delay is None else int(hyper[layout.delay])
        absent = layout.delayed if self._step % every else frozenset()
        groups = {group: names for group, names in layout.groups.items() if group not in absent}
        losses, (scalars, metrics, td_error), gradients = self._differentiate(agent, batch, noise, groups)
        with torch.no_grad():
            for name, part in parts_of(agent).items():
                for variable, value in part.moved.items():
                    self._values[f"{name}.{variable}"].copy_(value)
        measure = functools.partial(layout.measured, self._values, batch, noise, hyper)
        metrics |= self._descend(self._averaged(gradients), hyper, groups, measure)
        rare = {*absent, *layout.metrics_of(losses, absent)}
        numbers = {n: x.detach() for n, x in (*scalars.items(), *metrics.items()) if n not in rare}
        names = list(scalars), layout.told_by(losses)
        return names, numbers, None if td_error is None else td_error.detach()

    def gradient(self, function: Any, at: Any) -> Any:
        """See `optimizers.Differentiation`."""
        return torch.func.grad(function)(at)

    def repeat(self, step: Any, times: int, carry: Any) -> Any:
        """See `optimizers.Differentiation`."""
        for _ in range(times):
            carry = step(carry)
        return carry

    def _averaged(self, gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The gradients of the whole batch; one engine has differentiated all of it."""
        return gradients

    def _differentiate(
        self, agent: Agent, batch: Batch, noise: Any, groups: dict[str, tuple[str, ...]]
    ) -> tuple[Losses, Any, dict[str, torch.Tensor]]:
        """(losses, what they reported, gradients of these groups by name)."""
        losses = agent.loss(batch, noise)
        self.layout.check_losses(losses)
        reported = read_losses(losses)
        gradients: dict[str, torch.Tensor] = {}
        for i, (group, names) in enumerate(groups.items()):
            own, more = [self._values[name] for name in names], i + 1 < len(groups)
            found = torch.autograd.grad(
                reported[0][group], own, retain_graph=more, allow_unused=True, materialize_grads=True
            )
            gradients |= dict(zip(names, found, strict=True))
        return losses, reported, gradients

    def gradients(self, batch: Batch, hyper: dict[str, float]) -> tuple[Weights, Update]:
        """Gradients of all trained weights at one batch [B], by name, and what losses reported; nothing is changed."""
        noise = self.layout.draw_noise(self._noise, 1, len(batch.weight))
        first = _to_torch({name: drawn[0] for name, drawn in noise.items()}, self.device)
        arrays = {name: _to_torch(getattr(batch, name), self.device) for name in READ_BY_LOSSES}
        agent = self.layout.bind(self._values, hyper)
        with limited(self._learning):
            held = Batch(index=None, **arrays)  # type: ignore[arg-type]
            losses, reported, gradients = self._differentiate(agent, held, first, self.layout.groups)
        numbers = {name: value.item() for found in reported[:2] for name, value in found.items()}
        update = update_of(list(losses), numbers, self.layout.told_by(losses), None, 0)
        check_finite(update)
        return to_numpy(gradients), update

    def apply(self, gradients: Weights, hyper: dict[str, float]) -> Update:
        """One gradient step with these gradients of all trained weights, by name."""
        self.layout.check_gradients(gradients)
        self._step += 1
        with limited(self._learning):
            reported = self._descend(_to_torch(dict(gradients), self.device), hyper, self.layout.groups)
        return Update({}, {name: float(value) for name, value in reported.items()}, None, 1)

    @torch.no_grad()
    def _descend(
        self,
        gradients: dict[str, torch.Tensor],
        hyper: dict[str, float],
        groups: dict[str, tuple[str, ...]],
        measure: Any = None,
    ) -> dict[str, torch.Tensor]:
        """Train these groups with gradients by name; metrics of it. measure: see `measured`; of a group and a
        vector."""
        layout, reported = self.layout, dict[str, Any]()
        for group in groups:
            gradient, told = layout.bounded(group, gradients, hyper)
            reported |= told
            if group in layout.agent.trust_regions:
                of_group, weights = functools.partial(measure, group), self._trained[group]
                change, told = natural_step(layout.config(hyper), gradient, weights, of_group, self)
                reported |= {f"{group}_{name}": x for name, x in told.items()}
                weights += change
                continue
            self._update(group, gradient, hyper)
        for name, columns in layout.on_sphere(self._values).items():
            self._values[name].copy_(columns)
        for target, source, tau, every in self.layout.following:
            if every is not None and self._step % int(hyper[every]):
                continue
            if tau is None:
                self._values[target].copy_(self._values[source])
            else:
                self._values[target].lerp_(self._values[source], hyper[tau])
        return reported

    def _update(self, group: str, gradient: torch.Tensor, hyper: dict[str, float]) -> None:
        """The optimizer's step for what a loss trains."""
        settings, rate = self.layout.optimizer(hyper), hyper[self.layout.rates[group]]
        weights, time = self._trained[group], self._times[group]
        moments = {moment: vectors[group] for moment, vectors in self._moments.items()}
        if type(settings) is Adam:  # torch's own does it in one pass over the vectors
            fused_adam(
                [weights], [gradient], [moments["first"]], [moments["second"]], [], [time], lr=rate,
                beta1=settings.beta1, beta2=settings.beta2, eps=settings.epsilon, weight_decay=0.0, amsgrad=False,
                maximize=False, fused=True,
            )  # fmt: skip
            torch.autograd.graph.increment_version(weights)  # which it does not do
            return
        time += 1
        change, moments = optimizer_update(settings, Gradient(rate, time, gradient, lambda: weights), moments)
        weights += change
        for moment, vector in moments.items():
            self._moments[moment][group] = vector

    def weights(self, names: Iterable[str] | None = None) -> Weights:
        """These weights by name, or all of them, in NumPy."""
        return to_numpy({name: self._values[name] for name in (self._values if names is None else names)})

    @torch.no_grad()
    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Take over weights by name, the others stay; raises NetworkError where a name or a shape does not fit."""
        self.layout.check_weights(weights)
        for name, value in weights.items():
            self._values[name].copy_(torch.as_tensor(value))

    def state(self) -> dict[str, Any]:
        """Weights, target copies, optimizer moments, counter and generator."""
        counted = [np.int32(self._times[group].item()) for group in self.layout.delayed]
        return {
            "values": self.weights(),
            **{moment: to_numpy(self.layout.parted(vectors)) for moment, vectors in self._moments.items()},
            "step": np.int32(self._step),
            **({"delayed": counted[0]} if counted else {}),
            "noise": seeding.generator_state(self._noise),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self.load(state["values"])
        seeding.restore_generator(self._noise, state["noise"])
        self._step = int(state["step"])
        for moment, vectors in self._moments.items():
            vectors |= _to_torch(self.layout.joined(self.layout.as_own(state[moment])), self.device)
        delayed = self.layout.times_delayed(state)
        for group, times in self._times.items():
            times.fill_(float(delayed if group in self.layout.delayed else self._step))


def _means(numbers: list[dict[str, torch.Tensor]]) -> dict[str, float]:
    """The mean of each number over the gradient steps that tell it; scalars of torch, fetched in one go."""
    names = max((list(step) for step in numbers), key=len)
    zero = torch.zeros_like(next(iter(numbers[0].values())))
    sums = torch.stack([torch.stack([step.get(name, zero) for name in names]) for step in numbers]).sum(0).tolist()
    return {name: total / sum(name in step for step in numbers) for name, total in zip(names, sums, strict=True)}


class CompiledTorchBackend:
    """See `functional.Backend`: one gradient step is one compiled function, called k times."""

    name = "torch"

    def __init__(self, device: str, busy: Busy = Busy()):  # noqa: B008  (a tuple)
        self.device: str = device
        self.compile_seconds: float = 0.0
        self.compiled_for: tuple[Any, ...] = ()
        self._busy = busy
        self._compiled: Any = None

    def settle(self, layout: ParameterLayout) -> None:
        self._threads = threads_for(layout.initial.values(), self._busy.learning)
        self.device = decide(self.device, torch.cuda.device_count(), layout)
        self.compiled_for = (self.device, self._threads)

    def wrap_module(self, factory: Any, inputs: tuple[Space, ...], outputs: tuple[int, ...], seed: int) -> Part:
        part = wrap_module(factory, inputs, outputs, seed)
        if not isinstance(part, _TorchModule):
            raise ConfigError("compiled = True cannot follow a keras.Model on torch. Leave compiled out, or use JAX.")
        return part

    def compile(self, function: Any) -> Any:
        limited_function = torch.no_grad()(limited(self._threads)(function))
        return lambda own, *arguments: limited_function(own, *self.put(arguments))

    def gradients(self, losses: Any, values: Arrays, groups: dict[str, tuple[str, ...]]) -> tuple[Any, Arrays]:
        more: Any = ()
        gradients: Arrays = {}
        for group, names in groups.items():

            def own(trained: Arrays, group: str = group) -> Any:
                scalars, more = losses({**values, **trained})
                return scalars[group], tuple(() if part is None else part for part in more)  # it takes tensors only

            found, more = torch.func.grad(own, has_aux=True)({name: values[name] for name in names})
            gradients |= found
        more = more if groups else losses(values)[1]
        return tuple(None if part == () else part for part in more), gradients

    def choose(self, condition: Any, one: Any, other: Any) -> Any:
        # The compiler cannot branch on a number: both are computed.
        return trees.map(lambda x, y: None if x is None else torch.where(condition, x, y), one(), other())

    def scan(self, step: Any, carry: Any, inputs: Any, constant: Any) -> tuple[Any, Any]:
        if first := self._compiled is None:
            for kind in (torch.Tensor, float, int):
                IMPLEMENTATIONS[kind]  # found now, because the compiler cannot follow an import
            self._compiled = torch.compile(step, fullgraph=True)
        batches, noise = inputs
        outputs: list[Any] = []
        for i in range(batches["weight"].shape[0]):
            began = time.perf_counter()
            carry, output = self._compiled(carry, (_pick(batches, i), _pick(noise, i)), constant)
            self.compile_seconds += time.perf_counter() - began if first and not outputs else 0.0
            outputs.append(output)
        summaries = torch.stack([summary for summary, _ in outputs])
        return carry, (summaries, None if outputs[0][1] is None else torch.stack([errors for _, errors in outputs]))

    def repeat(self, step: Any, times: int, carry: Any) -> Any:
        for _ in range(times):
            carry = step(carry)
        return carry

    def put(self, tree: Any) -> Any:
        return _to_torch(tree, self.device)

    def numpy(self, tree: Any) -> Any:
        return to_numpy(tree)


def _to_torch(tree: Any, device: str) -> Any:
    """NumPy arrays onto a device, without a copy where it is the CPU and the array may be written to."""
    if tree is None:
        return None
    return trees.map(
        lambda x: torch.as_tensor(x if np.ndim(x) == 0 or x.flags.writeable else x.copy(), device=device), tree
    )


def to_numpy(tree: Any) -> Any:
    """Back into NumPy arrays that nothing else writes to."""
    return trees.map(lambda x: x.detach().cpu().numpy().copy(), tree)


def _pick(tree: Any, i: int) -> Any:
    return None if tree is None else trees.rows(tree, i)


def wrap_module(factory: Any, inputs: tuple[Space, ...], outputs: tuple[int, ...], seed: int) -> Part:
    """The torch.nn.Module that `factory()` returns, as a part; its first weights come from `seed`."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        module = made_by(factory)
        if not isinstance(module, torch.nn.Module):
            raise NetworkError(
                f"network returned a {type(module).__name__}; the engine torch expects a torch.nn.Module. For a "
                "keras.Model, give engine='jax' or engine='tensorflow'."
            )
        if framework_of(type(module)) == "keras":  # on Keras's torch backend, where its models are such modules
            from etude.engines import keras

            return keras.wrap_module(factory, inputs, outputs, seed)
        module.eval()  # or statistics of the batch below would be kept
        # Lazy layers draw their weights here.
        check_module(module, [_to_torch(zeros(space, 2), "cpu") for space in inputs], inputs, outputs)
    return _TorchModule(module, several=len(inputs) > 1)


class _TorchModule(Part):
    """A torch.nn.Module that a user wrote, as a function of its parameters and buffers (buffers are updated in
    place).

    several: whether it is called with a tuple that holds one argument for each of its inputs.
    """

    portable = in_numpy = False

    def __init__(self, module: torch.nn.Module, several: bool):
        self.module: torch.nn.Module = module
        self._several = several
        named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        self.variables: dict[str, Any] = {name: value.detach().cpu().numpy().copy() for name, value in named.items()}
        still = {name for name, value in module.named_parameters() if not value.requires_grad}
        self.frozen: frozenset[str] = frozenset(still.union(dict(module.named_buffers())))

    def __call__(self, observation: Tree = None) -> Any:
        inputs = observation if self._several else (observation,)
        if self.module.training != self.training:
            self.module.train(self.training)
        return torch.func.functional_call(self.module, dict(self.variables), inputs)
