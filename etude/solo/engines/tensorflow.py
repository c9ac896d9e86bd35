"""Agents of one's own in Keras on TensorFlow: k gradient steps are one function with a loop in its graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from etude.base.data import power_of_two
from etude.base.errors import ConfigError
from etude.engines.strategies import VectorLayout, parts_of_batch, placed
from etude.solo.engines.keras import KerasAgentEngine, length, padded
from etude.solo.engines.user_agent import (
    Compiled,
    MakeCopy,
    PriorityRecorder,
    each,
    no_gradient,
    not_traceable,
    read_losses,
)

_NEEDS_NUMBERS = (tf.errors.OperatorNotAllowedInGraphError, NotImplementedError)
_NOT_COMPILED = (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError, tf.errors.InternalError)


class TensorFlowAgentEngine(KerasAgentEngine):
    """k gradient steps are one function with a loop in its graph."""

    name = "tensorflow"

    _xla_acts, _xla_steps = True, True  # whether XLA can compile what acts, and whole gradient steps

    @staticmethod
    def _device_of(variable: Any) -> str:
        place = tf.DeviceSpec.from_string(variable.value.device)
        return "cpu" if place.device_type in (None, "CPU") else f"cuda:{place.device_index}"

    def _evaluated(self, compiled: Compiled, inputs: Any) -> Any:
        n = length(inputs)
        output = compiled(_tensors(padded(inputs, power_of_two(n))))
        return each(lambda x: x.numpy()[:n] if x.shape.rank else x.numpy(), output)

    def _learn(self, arguments: Any, weight: np.ndarray) -> Any:
        k = len(weight)
        inputs = _tensors(padded((arguments, weight), power_of_two(k)))
        with self._explained("__call__"):
            records = self._steps()(inputs, tf.constant(k), self.scalars())
        return tuple(None if x is None else np.array(x)[:k] for x in records)

    def _explanation(self, method: str, problem: Exception) -> Exception | None:
        if isinstance(problem, _NEEDS_NUMBERS):
            return not_traceable(self.agent, method, problem)
        if not isinstance(problem, _NOT_COMPILED) or not ("XLA" in str(problem) or "compil" in str(problem)):
            return None
        return ConfigError(
            f"XLA cannot compile {type(self.agent).__name__}.{method}: {str(problem).splitlines()[0]} Pass "
            "jit_compile=False to run it without XLA, or use other operations."
        )

    def _compile(self, call: Callable[[Any, Any], Any], copy: MakeCopy) -> Callable[..., Any]:
        def evaluate(inputs: Any, hyper: Any) -> Any:
            return each(tf.convert_to_tensor, call(copy(hyper), inputs))

        return tf.function(evaluate, jit_compile=self._jit and self._xla_acts, autograph=False)

    def _compile_learn(self, copy: MakeCopy) -> Callable[..., Any]:
        def learn(inputs: Any, k: Any, scalars: Any, hyper: Any) -> Any:
            shapes = _outputs_of(lambda: _stacked(*self._losses(copy, hyper, _row(inputs, 0))))
            room = inputs[1].shape[0]
            records = [tf.TensorArray(x.dtype, room, element_shape=x.shape) for x in shapes if x is not None]

            def step(i: Any, records: Any) -> Any:
                found = [x for x in self._step(copy, hyper, _row(inputs, i), scalars) if x is not None]
                return i + 1, [array.write(i, x) for array, x in zip(records, found, strict=True)]

            # One after the other: what one step writes to variables is read by the next.
            _, records = tf.while_loop(lambda i, _: i < k, step, (tf.constant(0), records), parallel_iterations=1)
            stacked = iter([array.stack() for array in records])
            return tuple(None if x is None else next(stacked) for x in shapes)

        return tf.function(learn, jit_compile=self._jit and self._xla_steps, autograph=False)

    def _losses(self, copy: MakeCopy, hyper: Any, row: Any) -> Any:
        """(losses, td_error, ratio)."""
        self.traces += 1
        arguments, weight = row
        recorder = PriorityRecorder(weight)
        agent = copy(hyper, recorder)
        found = read_losses(self.agent, agent(*arguments), weight, len(self.groups))
        return found, recorder.td_error, recorder.ratio

    def _gradients(self, row: Any, jit_compile: bool) -> list[list[np.ndarray]]:
        return [[one.numpy() for one in group] for group in self._differentiating[jit_compile](_tensors(row))]

    def _compile_gradients(self, jit: bool, copy: MakeCopy) -> Callable[..., Any]:
        def differentiate(row: Any, hyper: Any) -> Any:
            return self._recorded(copy, hyper, row)[0]

        return tf.function(differentiate, jit_compile=jit and self._jit and self._xla_steps, autograph=False)

    def _step(self, copy: MakeCopy, hyper: Any, row: Any, scalars: Any) -> Any:
        gradients, record = self._recorded(copy, hyper, row)
        with self.tracing(scalars):
            for optimizer, group, own in zip(self.optimizers, self.groups, gradients, strict=True):
                optimizer.apply(own, group)
        if self._interface.update_targets:
            with self._explained("update_param"):
                copy(hyper).update_param()
        return record

    def _recorded(self, copy: MakeCopy, hyper: Any, row: Any) -> Any:
        """(gradients by group, (losses [L], td_error, ratio))."""
        values = [variable.value for variable in self.trained]
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
            tape.watch(values)
            losses, td_error, ratio = self._losses(copy, hyper, row)
        return self._differentiated(tape, losses, values), _stacked(losses, td_error, ratio)

    def _differentiated(self, tape: tf.GradientTape, losses: list[Any], values: list[Any]) -> list[list[Any]]:
        """The gradients of each group, with the values of all trained variables that the tape watched."""
        places = {id(variable): i for i, variable in enumerate(self.trained)}
        gradients = []
        for i, group in enumerate(self.groups):
            loss = min(i, len(losses) - 1)
            own = tape.gradient(losses[loss], [values[places[id(variable)]] for variable in group])
            for variable, gradient in zip(group, own, strict=True):
                if gradient is None:
                    raise no_gradient(self.agent, self.variables.name_of(variable), loss, len(losses))
            gradients.append(own)
        return gradients


def _stacked(losses: list[Any], td_error: Any, ratio: Any) -> Any:
    return tf.stack(losses), td_error, ratio


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


class ReplicatedAgentEngine(TensorFlowAgentEngine):
    """Gradient steps on global batches, of which each replica has an equal part."""

    _xla_steps = False  # XLA has no all-reduce between devices here; it compiles what a replica computes

    def _evaluated(self, compiled: Compiled, inputs: Any) -> Any:
        with self._replicas.explained():
            return super()._evaluated(compiled, inputs)

    def _learn(self, arguments: Any, weight: np.ndarray) -> Any:
        """Raises ReplicaError where a process of the cluster ended."""
        self._replicas.check_batch(weight.shape[1])
        with self._replicas.explained():
            return super()._learn(arguments, weight)

    def _gradients(self, row: Any, jit_compile: bool) -> list[list[np.ndarray]]:
        with self._replicas.explained():
            return super()._gradients(row, jit_compile)

    def _recorded(self, copy: MakeCopy, hyper: Any, row: Any) -> Any:
        variables = [*self.trained, *self.others]
        rows = parts_of_batch(row, self._replicas.count)
        layout = VectorLayout()
        compute = tf.function(partial(self._part, copy, layout), jit_compile=self._jit, autograph=False)

        def on_replica(rows: Any, hyper: Any) -> Any:
            number = self._replicas.number()
            values = [tf.convert_to_tensor(variable.value) for variable in variables]
            return compute(values, each(lambda x: x[number], rows), hyper, number)

        vector, changed = self._replicas.run(on_replica, (rows, hyper))
        gradients, losses, errors, floats = layout.split(self._replicas.sum(vector))
        for place, value in {**floats, **{i: self._replicas.first(value) for i, value in changed.items()}}.items():
            self.others[place].assign(value)
        each_variable = iter(gradients.values())
        grouped = [[next(each_variable) for _ in group] for group in self.groups]
        return grouped, (tf.stack(list(losses.values())), errors.get(0), errors.get(1))

    def _part(
        self, copy: MakeCopy, layout: VectorLayout, values: list[Any], row: Any, hyper: Any, number: Any
    ) -> tuple[Any, dict[int, Any]]:
        """What one replica computes of a gradient step: (what is summed over the replicas, in one vector; the whole
        numbers that its part of the batch changed, by their place among the variables that no loss trains)."""
        trained, others = self.trained, self.others
        own = values[: len(trained)]
        offsets = [_offset(variable, number) for variable in others]
        before = [value + offset for value, offset in zip(values[len(trained) :], offsets, strict=True)]
        scope = keras.StatelessScope(state_mapping=list(zip([*trained, *others], [*own, *before], strict=True)))
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
            tape.watch(own)
            with scope:
                losses, td_error, ratio = self._losses(copy, hyper, row)
        gradients = [one for group in self._differentiated(tape, losses, own) for one in group]
        after = {i: scope.get_current_value(variable) for i, variable in enumerate(others)}
        changed = {i: value - offsets[i] for i, value in after.items() if value is not before[i]}
        count, floats = self._replicas.count, {i: x for i, x in changed.items() if x.dtype.is_floating}
        errors = {i: placed(x, number, count) for i, x in enumerate((td_error, ratio)) if x is not None}
        means = ({i: x / count for i, x in dict(enumerate(part)).items()} for part in (gradients, losses))
        vector = layout.joined(*means, errors, {i: x / count for i, x in floats.items()})
        return vector, {i: x for i, x in changed.items() if i not in floats}


class ScheduledAgentEngine(ReplicatedAgentEngine):
    """Gradient steps on whole batches, which a coordinator hands to workers."""

    _xla_acts = False  # with variables of other processes

    def _compile_learn(self, copy: MakeCopy) -> Any:
        def step(row: Any, hyper: Any, scalars: Any) -> Any:
            return self._step(copy, hyper, row, scalars)

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
