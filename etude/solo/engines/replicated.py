"""Agents of one's own in Keras on TensorFlow, trained by the replicas of a strategy of `tf.distribute`.

Each replica computes losses and gradients of its part of the global batch, as a pure function of the variables. One
all-reduce of one vector for each gradient step sums them; optimizers and `update_param` then change the variables of
all replicas alike. So gradients are clipped, and target networks follow, as they do without a strategy.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from etude.engines.strategies import ScheduledReplicas, StrategyReplicas, VectorLayout, parts_of_batch, placed
from etude.protocols import Weights
from etude.solo.engines.engine import AgentInterface
from etude.solo.engines.keras import KerasParts
from etude.solo.engines.tensorflow import TensorFlowProgram
from etude.solo.engines.user_agent import Bound, Compiled, each

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
