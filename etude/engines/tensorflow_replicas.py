"""Agents on TensorFlow, trained by the replicas of a strategy of `tf.distribute`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from etude.agent import Agent
from etude.base.cores import Busy
from etude.base.data import Batch, Update
from etude.base.spaces import Spaces
from etude.engines.functional import FunctionalEngine
from etude.engines.parameter_layout import Arrays
from etude.engines.replicas import Replicas
from etude.engines.strategies import StrategyReplicas, VectorLayout, parts_of_batch, placed
from etude.engines.tensorflow import TensorFlowBackend
from etude.ops.replicas import averaged_by


class StrategyEngine(FunctionalEngine):
    """A `FunctionalEngine` whose `learn` is called with the whole batch in every process. Each replica differentiates
    the losses of an equal part, and one all-reduce for each gradient step averages them. XLA compiles nothing: it has
    no all-reduce between the devices of TensorFlow."""

    def __init__(self, agent: Agent, spaces: Spaces, seed: int, replicas: Replicas, busy: Busy):
        self._replicas: StrategyReplicas = replicas.strategy
        super().__init__(agent, spaces, seed, TensorFlowBackend(replicas.device, busy, xla=False))

    def learn(self, batches: Batch, hyper: dict[str, float]) -> Update:
        """See `FunctionalEngine.learn`. Raises ReplicaError where a process of the cluster ended."""
        self._replicas.check_batch(batches.weight.shape[1])
        with self._replicas.explained():
            return super().learn(batches, hyper)

    def _differentiate(
        self, values: Arrays, inputs: Any, hyper: Arrays, groups: dict[str, tuple[str, ...]]
    ) -> tuple[Any, Arrays]:
        replicas, (batch, noise) = self._replicas, inputs
        each_example = self.layout.agent.noise
        batch_noise = {name: drawn for name, drawn in noise.items() if name not in each_example}
        parts = parts_of_batch((batch, {name: noise[name] for name in each_example}), replicas.count)
        layout = VectorLayout()

        def on_replica() -> Any:
            number = replicas.number()
            own, drawn = tf.nest.map_structure(lambda x: x[number], parts)
            with averaged_by(replicas.mean, replicas.count):
                found, gradients = super(StrategyEngine, self)._differentiate(
                    values, (own, drawn | batch_noise), hyper, groups
                )
            scalars, metrics, td_error, moved = found
            floats = {name: x for name, x in moved.items() if x.dtype.is_floating}
            means = [{name: x / replicas.count for name, x in y.items()} for y in (gradients, scalars, metrics, floats)]
            errors = {} if td_error is None else {"td_error": placed(td_error, number, replicas.count)}
            whole = {name: x for name, x in moved.items() if name not in floats}
            return layout.joined(*means, errors), whole

        vector, whole = replicas.run(on_replica, ())
        gradients, scalars, metrics, floats, errors = layout.split(replicas.sum(vector))
        moved = floats | {name: replicas.first(x) for name, x in whole.items()}
        return (scalars, metrics, errors.get("td_error"), moved), gradients
