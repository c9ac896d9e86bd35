"""Agents of one's own in Keras on TensorFlow: k gradient steps are one function with a loop in its graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from etude.base.errors import ConfigError
from etude.engines.strategies import ScheduledReplicas, StrategyReplicas, VectorLayout, parts_of_batch, placed
from etude.protocols import Weights
from etude.solo.engines.engine import AgentInterface
from etude.solo.engines.keras import KerasParts, length, next_power, padded
from etude.solo.engines.user_agent import (
    Bound,
    Compiled,
    PriorityRecorder,
    acted,
    by_name,
    each,
    no_gradient,
    not_traceable,
    read_losses,
    single,
)

_NEEDS_NUMBERS = (tf.errors.OperatorNotAllowedInGraphError, NotImplementedError)
_NOT_COMPILED = (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError, tf.errors.InternalError)


class TensorFlowProgram:
    """See `solo_keras_training.Program`."""

    name = "tensorflow"

    def __init__(self, parts: KerasParts, interface: AgentInterface, jit_compile: bool):
        self.parts: KerasParts = parts
        self._agent, self._agents, self._jit = parts.agent, interface.agents, jit_compile
        self._update_targets, self._compiles_steps = interface.update_targets, jit_compile
        self.traces: int = 0
        self.forget()
        place = tf.DeviceSpec.from_string([*parts.trained, *parts.others][0].value.device)
        self.device: str = "cpu" if place.device_type in (None, "CPU") else f"cuda:{place.device_index}"

    def forget(self) -> None:
        """Compile anew: variables were added."""
        self._acting = Compiled(self._agent, partial(self._compile, lambda agent, s: acted(agent, s, self._agents)))
        self._rewarding = Compiled(self._agent, partial(self._compile, lambda agent, given: agent.reward_model(*given)))
        self._learning: dict[Any, Compiled] = {}  # by the constants of the optimizers
        self._differentiating = {
            jit: Compiled(self._agent, partial(self._compile_gradients, jit)) for jit in (True, False)
        }

    def act(self, observation: Any) -> Any:
        """What `action` returns for [N, ...] arrays, in NumPy."""
        return self._evaluated("action", self._acting, observation)

    def rewards(self, arguments: Any) -> Any:
        """What `reward_model` returns for [N, ...] arrays, in NumPy."""
        return self._evaluated("reward_model", self._rewarding, arguments)

    def _evaluated(self, method: str, compiled: Compiled, inputs: Any) -> Any:
        n = length(inputs)
        with _Explained(self._agent, method):
            output = compiled(_tensors(padded(inputs, next_power(n))))
        return each(lambda x: x.numpy()[:n] if x.shape.rank else x.numpy(), output)

    def learn(self, arguments: Any, weight: np.ndarray) -> Any:
        """(losses [k, L], td_error [k, B] or None, ratio [k, B] or None) of k gradient steps."""
        k, settings = len(weight), self.parts.settings()
        if settings not in self._learning:
            self._learning = {settings: Compiled(self._agent, self._compile_learn)}
        inputs = _tensors(padded((arguments, weight), next_power(k)))
        with _Explained(self._agent, "__call__"):
            records = self._learning[settings](inputs, tf.constant(k), self.parts.scalars())
        return tuple(None if x is None else np.array(x)[:k] for x in records)

    def _compile(self, call: Callable[[Any, Any], Any], bound: Bound, names: tuple[str, ...]) -> Callable[..., Any]:
        """`call(agent, inputs)`, which is not differentiated."""

        def evaluate(inputs: Any, hyper: Any) -> Any:
            return each(tf.convert_to_tensor, call(bound.copy(_by_name(names, hyper), None), inputs))

        return tf.function(evaluate, jit_compile=self._jit, autograph=False)

    def _compile_learn(self, bound: Bound, names: tuple[str, ...]) -> Callable[..., Any]:
        def learn(inputs: Any, k: Any, scalars: Any, hyper: Any) -> Any:
            named = _by_name(names, hyper)
            shapes = _outputs_of(lambda: _stacked(*self._losses(bound, named, _row(inputs, 0))))
            room = inputs[1].shape[0]
            records = [tf.TensorArray(x.dtype, room, element_shape=x.shape) for x in shapes if x is not None]

            def step(i: Any, records: Any) -> Any:
                found = [x for x in self._step(bound, named, _row(inputs, i), scalars) if x is not None]
                return i + 1, [array.write(i, x) for array, x in zip(records, found, strict=True)]

            # One after the other: what one step writes to variables is read by the next.
            _, records = tf.while_loop(lambda i, _: i < k, step, (tf.constant(0), records), parallel_iterations=1)
            stacked = iter([array.stack() for array in records])
            return tuple(None if x is None else next(stacked) for x in shapes)

        return tf.function(learn, jit_compile=self._compiles_steps, autograph=False)

    def _losses(self, bound: Bound, hyper: dict[str, Any], row: Any) -> Any:
        """(losses, td_error, ratio)."""
        self.traces += 1
        arguments, weight = row
        recorder = PriorityRecorder(weight)
        agent = bound.copy(hyper, recorder)
        found = read_losses(self._agent, agent(*arguments), weight, len(self.parts.groups))
        return found, recorder.td_error, recorder.ratio

    def gradients(self, arguments: Any, weight: np.ndarray, jit_compile: bool) -> list[Weights]:
        """See `engine.UserAgentBackend`."""
        inputs, found = each(single, (arguments, weight)), []
        for i in range(len(weight)):
            with _Explained(self._agent, "__call__"):
                found.append(self._differentiating[jit_compile](_tensors(_row(inputs, i))))
        return [by_name([[one.numpy() for one in group] for group in gradients]) for gradients in found]

    def _compile_gradients(self, jit: bool, bound: Bound, names: tuple[str, ...]) -> Callable[..., Any]:
        def differentiate(row: Any, hyper: Any) -> Any:
            return self._gradients(bound, _by_name(names, hyper), row)[0]

        return tf.function(differentiate, jit_compile=jit and self._compiles_steps, autograph=False)

    def _step(self, bound: Bound, hyper: dict[str, Any], row: Any, scalars: Any) -> Any:
        gradients, record = self._gradients(bound, hyper, row)
        with self.parts.tracing(scalars):
            for optimizer, group, own in zip(self.parts.optimizers, self.parts.groups, gradients, strict=True):
                optimizer.apply(own, group)
        if self._update_targets:
            with _Explained(self._agent, "update_param"):
                bound.copy(hyper, None).update_param()
        return record

    def _gradients(self, bound: Bound, hyper: dict[str, Any], row: Any) -> Any:
        """(gradients by group, (losses [L], td_error, ratio))."""
        values = [variable.value for variable in self.parts.trained]
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
            tape.watch(values)
            losses, td_error, ratio = self._losses(bound, hyper, row)
        return self._differentiated(tape, losses, values), _stacked(losses, td_error, ratio)

    def _differentiated(self, tape: tf.GradientTape, losses: list[Any], values: list[Any]) -> list[list[Any]]:
        """The gradients of each group, with the values of all trained variables that the tape watched."""
        places = {id(variable): i for i, variable in enumerate(self.parts.trained)}
        gradients = []
        for i, group in enumerate(self.parts.groups):
            loss = min(i, len(losses) - 1)
            own = tape.gradient(losses[loss], [values[places[id(variable)]] for variable in group])
            for variable, gradient in zip(group, own, strict=True):
                if gradient is None:
                    raise no_gradient(self._agent, self.parts.variables.name_of(variable), loss, len(losses))
            gradients.append(own)
        return gradients


class _Explained:
    """Tells what to do where an agent's code cannot be traced or compiled."""

    def __init__(self, agent: Any, method: str):
        self._agent, self._method = agent, method

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, problem: Any, trace: Any) -> None:
        if isinstance(problem, _NEEDS_NUMBERS):
            raise not_traceable(self._agent, self._method, problem) from problem
        if isinstance(problem, _NOT_COMPILED) and ("XLA" in str(problem) or "compil" in str(problem)):
            raise ConfigError(
                f"XLA cannot compile {type(self._agent).__name__}.{self._method}: {str(problem).splitlines()[0]} Pass "
                "jit_compile=False to run it without XLA, or use other operations."
            ) from problem


def _stacked(losses: list[Any], td_error: Any, ratio: Any) -> Any:
    return tf.stack(losses), td_error, ratio


def _by_name(names: tuple[str, ...], hyper: Any) -> dict[str, Any]:
    return {name: hyper[i] for i, name in enumerate(names)}


def _tensors(tree: Any) -> Any:
    return each(tf.convert_to_tensor, tree)


def _row(tree: Any, i: Any) -> Any:
    return each(lambda x: x[i], tree)


def _outputs_of(function: Callable[[], Any]) -> Any:
    """What a function returns, as tensors of a graph that is thrown away: their dtypes and shapes are known then."""
    found: list[Any] = []
    tf.function(lambda: found.append(function()), autograph=False).get_concrete_function()
    return found[0]


_SEED = "seed_generator_state"  # the name of the variable of a keras.random.SeedGenerator
_APART = 1_000_003  # between the seeds of two replicas


def replicated_program(
    parts: KerasParts, interface: AgentInterface, jit_compile: bool, replicas: StrategyReplicas
) -> TensorFlowProgram:
    """The program that trains with these replicas."""
    if isinstance(replicas, ScheduledReplicas):
        return ScheduledProgram(parts, interface, jit_compile, replicas)
    return ReplicatedProgram(parts, interface, jit_compile, replicas)


class ReplicatedProgram(TensorFlowProgram):
    """Gradient steps on global batches, of which each replica has an equal part. See `keras.Program`."""

    def __init__(self, parts: KerasParts, interface: AgentInterface, jit_compile: bool, replicas: StrategyReplicas):
        super().__init__(parts, interface, jit_compile)
        self._replicas = replicas
        self._compiles_steps = False  # XLA has no all-reduce between devices here; it compiles what a replica computes
        self._compiles_parts = jit_compile

    def _evaluated(self, method: str, compiled: Compiled, inputs: Any) -> Any:
        with self._replicas.explained():
            return super()._evaluated(method, compiled, inputs)

    def learn(self, arguments: Any, weight: np.ndarray) -> Any:
        """See `TensorFlowProgram.learn`; raises ReplicaError where a process of the cluster ended."""
        self._replicas.check_batch(weight.shape[1])
        with self._replicas.explained():
            return super().learn(arguments, weight)

    def gradients(self, arguments: Any, weight: np.ndarray, jit_compile: bool) -> list[Weights]:
        """See `TensorFlowProgram.gradients`; raises ReplicaError where a process of the cluster ended."""
        with self._replicas.explained():
            return super().gradients(arguments, weight, jit_compile)

    def _gradients(self, bound: Bound, hyper: dict[str, Any], row: Any) -> Any:
        variables = [*self.parts.trained, *self.parts.others]
        rows = parts_of_batch(row, self._replicas.count)
        layout = VectorLayout()
        compute = tf.function(partial(self._part, bound, layout), jit_compile=self._compiles_parts, autograph=False)

        def on_replica(rows: Any, hyper: dict[str, Any]) -> Any:
            number = self._replicas.number()
            values = [tf.convert_to_tensor(variable.value) for variable in variables]
            return compute(values, each(lambda x: x[number], rows), hyper, number)

        vector, changed = self._replicas.run(on_replica, (rows, hyper))
        gradients, losses, errors, floats = layout.split(self._replicas.sum(vector))
        for place, value in {**floats, **{i: self._replicas.first(value) for i, value in changed.items()}}.items():
            self.parts.others[place].assign(value)
        each_variable = iter(gradients.values())
        grouped = [[next(each_variable) for _ in group] for group in self.parts.groups]
        return grouped, (tf.stack(list(losses.values())), errors.get(0), errors.get(1))

    def _part(
        self, bound: Bound, layout: VectorLayout, values: list[Any], row: Any, hyper: Any, number: Any
    ) -> tuple[Any, dict[int, Any]]:
        """What one replica computes of a gradient step: (what is summed over the replicas, in one vector; the whole
        numbers that its part of the batch changed, by their place among the variables that no loss trains)."""
        trained, others = self.parts.trained, self.parts.others
        own = values[: len(trained)]
        offsets = [_offset(variable, number) for variable in others]
        before = [value + offset for value, offset in zip(values[len(trained) :], offsets, strict=True)]
        scope = keras.StatelessScope(state_mapping=list(zip([*trained, *others], [*own, *before], strict=True)))
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
            tape.watch(own)
            with scope:
                losses, td_error, ratio = self._losses(bound, hyper, row)
        gradients = [one for group in self._differentiated(tape, losses, own) for one in group]
        after = {i: scope.get_current_value(variable) for i, variable in enumerate(others)}
        changed = {i: value - offsets[i] for i, value in after.items() if value is not before[i]}
        count, floats = self._replicas.count, {i: x for i, x in changed.items() if x.dtype.is_floating}
        errors = {i: placed(x, number, count) for i, x in enumerate((td_error, ratio)) if x is not None}
        means = ({i: x / count for i, x in dict(enumerate(part)).items()} for part in (gradients, losses))
        vector = layout.joined(*means, errors, {i: x / count for i, x in floats.items()})
        return vector, {i: x for i, x in changed.items() if i not in floats}


class ScheduledProgram(ReplicatedProgram):
    """Gradient steps on whole batches, which a coordinator hands to workers. See `keras.Program`."""

    _replicas: ScheduledReplicas

    def __init__(self, parts: KerasParts, interface: AgentInterface, jit_compile: bool, replicas: ScheduledReplicas):
        super().__init__(parts, interface, jit_compile, replicas)
        self._jit = False  # of what this process computes: its variables are those of other processes

    def _compile_learn(self, bound: Bound, names: tuple[str, ...]) -> Any:
        def step(row: Any, hyper: Any, scalars: Any) -> Any:
            named = {name: hyper[i] for i, name in enumerate(names)}
            return self._step(bound, named, row, scalars)

        function = tf.function(lambda *row: self._replicas.strategy.run(step, args=row), autograph=False)

        def learn(inputs: Any, k: Any, scalars: Any, hyper: Any) -> Any:
            same = tf.constant(hyper), tf.constant(scalars)
            rows = [(each(lambda x, i=i: x[i], inputs), *same) for i in range(int(k))]  # type: ignore[misc]
            found = self._replicas.schedule(function, rows)
            return tuple(None if part[0] is None else np.stack(part) for part in zip(*found, strict=True))

        return learn


def _offset(variable: Any, number: Any) -> Any:
    """What a replica adds to a variable before it computes: its part of a batch has random numbers of its own."""
    if variable.name != _SEED:
        return tf.zeros((), variable.value.dtype)
    return tf.cast(number * _APART, variable.value.dtype) * tf.constant([1, 0], variable.value.dtype)
