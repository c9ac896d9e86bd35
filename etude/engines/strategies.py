"""Strategies of `tf.distribute`: which of them train, and what engines ask of them."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import errors

from etude.agent import Agent
from etude.base.cores import Busy
from etude.base.data import Batch, Update, power_of_two
from etude.base.errors import ConfigError, ReplicaError
from etude.base.spaces import Spaces
from etude.engines.functional import Backend, FunctionalEngine, Program
from etude.engines.parameter_layout import Arrays, ParameterLayout
from etude.engines.replicas import MessageGroup, Replicas
from etude.engines.tensorflow import TensorFlowBackend
from etude.ops.dispatch import averaged_by

PATIENCE = 20.0  # seconds without an answer of any worker of a cluster, until training ends
_POLL = 0.001  # seconds between two looks at what was scheduled
_SIGNS = ("aborted by", "recvmsg", "connect to", "stopped training:")  # in the line of an error that says what happened
_LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.DeadlineExceededError)


def replicas_of(strategy: Any) -> _StrategyReplicas:
    """The replicas of a strategy; ConfigError for what is no strategy, or one that cannot train an agent."""
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return _ScheduledReplicas(strategy)
    if isinstance(strategy, tf.distribute.MirroredStrategy | tf.distribute.MultiWorkerMirroredStrategy):
        return _StrategyReplicas(strategy)
    raise ConfigError(
        f"strategy is a {type(strategy).__module__}.{type(strategy).__name__}; expected a tf.distribute "
        "MirroredStrategy or MultiWorkerMirroredStrategy (or, for agents of your own, a ParameterServerStrategy)."
    )


class _StrategyReplicas:
    """Replicas that compute the gradients of one global batch together, each of an equal part of it.

    count: of all workers. group: the worker processes, of which the chief has rank 0; None where there is one.
    scheduled: whether workers take whole batches.
    """

    scheduled: ClassVar[bool] = False

    def __init__(self, strategy: Any):
        self.strategy: Any = strategy
        self.count: int = int(strategy.num_replicas_in_sync)
        # (rank, size) of this process among the workers that train together
        if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            rank, size = 0, 1
        else:
            resolver = strategy.cluster_resolver
            jobs = resolver.cluster_spec().as_dict()
            tasks = [(job, i) for job in ("chief", "worker") for i in range(len(jobs.get(job, ())))]
            rank, size = (tasks.index((resolver.task_type, resolver.task_id)), len(tasks)) if len(tasks) > 1 else (0, 1)
        self.group: MessageGroup | None = _StrategyGroup(self, rank, size) if size > 1 else None

    def scope(self) -> contextlib.AbstractContextManager[object]:
        """Variables that are made in this context are those of the replicas."""
        return self.strategy.scope()

    def check_batch(self, n: int) -> None:
        """Raise ConfigError where a batch cannot be divided equally."""
        if n % self.count:
            raise ConfigError(
                f"A batch of {n} examples cannot be divided over the {self.count} replicas of the strategy; expected a "
                f"multiple of {self.count}. Give the global batch size, such as {-(-n // self.count) * self.count}."
            )

    def check_variables(self, variables: Iterable[Any], what: str) -> None:
        """Raise ConfigError unless these variables were made within the scope of the strategy."""
        for variable in variables:
            if not self.strategy.extended.variable_created_in_scope(variable.value):
                raise ConfigError(
                    f"{what} was made outside of the strategy's scope: the variable {variable.path!r} is not of this "
                    f"{type(self.strategy).__name__}. Make the strategy first, then agent and optimizers within `with "
                    "strategy.scope():`."
                )

    def number(self) -> Any:
        """The number of the replica that calls it, from 0."""
        return tf.distribute.get_replica_context().replica_id_in_sync_group

    def run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Call a function on every replica."""
        return self.strategy.run(function, args=arguments)

    def sum(self, found: Any) -> Any:
        """The sum over all replicas of what each returned from `run`."""
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, found, axis=None)

    def mean(self, x: Any) -> Any:
        """The mean over all replicas of what each of them passes, within `run`."""
        if self.count == 1:
            return x

        def reduced(strategy: Any, x: Any) -> Any:
            return strategy.reduce(tf.distribute.ReduceOp.MEAN, x, axis=None)

        @tf.custom_gradient
        def averaged(x: Any) -> Any:
            # `all_reduce` would use the collective group 1 of this process, which TensorFlow gives to the devices of
            # whichever MirroredStrategy came first: a second one could not train.
            return tf.distribute.get_replica_context().merge_call(reduced, args=(x,)), self.mean

        return averaged(x)

    def first(self, found: Any) -> Any:
        """What this process's first replica returned from `run`."""
        return self.strategy.experimental_local_results(found)[0]

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turns the loss of a worker into a ReplicaError."""
        try:
            yield
        except _LOST as error:
            raise lost(error) from error


class _StrategyGroup(MessageGroup):
    """Messages are sums of arrays in which each process fills a part of its own."""

    def __init__(self, replicas: _StrategyReplicas, rank: int, size: int):
        super().__init__(rank, size)
        self._replicas = replicas
        local = replicas.count // size

        def own(words: Any) -> Any:
            return words * tf.cast(replicas.number() % local == 0, words.dtype)  # once for each process

        self._sum = tf.function(lambda words: replicas.sum(replicas.run(own, (words,))), autograph=False)

    def _abandon(self, reason: str) -> None:
        context.context().abort_collective_ops(errors.UNAVAILABLE, reason)

    def _exchange(self, what: str, message: bytes) -> list[bytes]:
        lengths = np.zeros(self.size, np.int32)
        lengths[self.rank] = len(message)
        lengths = self._summed(lengths)
        ends = np.cumsum(lengths, dtype=np.int64)
        start = int(ends[self.rank]) - len(message)
        words = np.zeros(power_of_two(-(-int(ends[-1]) // 4)), np.int32)  # few sizes are traced
        words.view(np.uint8)[start : start + len(message)] = np.frombuffer(message, np.uint8)
        joined = self._summed(words).tobytes()
        return [joined[end - length : end] for end, length in zip(ends, lengths, strict=True)]

    def _summed(self, words: np.ndarray) -> np.ndarray:
        with self._replicas.explained():
            return self._sum(tf.constant(words)).numpy()


class _ScheduledReplicas(_StrategyReplicas):
    """Workers that each take gradient steps on whole batches, with variables on parameter servers. The steps of a
    learning phase run at the same time where there are several workers: gradients may then be of older weights."""

    scheduled = True

    def __init__(self, strategy: Any):
        super().__init__(strategy)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        workers = strategy._cluster_resolver.cluster_spec().as_dict()["worker"]  # its public property is None here
        self._addresses = {f"worker {i}": address for i, address in enumerate(workers)}

    def number(self) -> Any:
        """0: each worker has a whole batch."""
        return tf.constant(0)

    def run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Call the function: a scheduled step is a worker's own."""
        return function(*arguments)

    def sum(self, found: Any) -> Any:
        """What the worker found."""
        return found

    def first(self, found: Any) -> Any:
        """What the worker found."""
        return found

    def schedule(self, function: Any, rows: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a tf.function with each of these arguments, on any worker; what it returned, in NumPy."""
        with self.explained():
            scheduled = [self._coordinator.schedule(function, args=row) for row in rows]
            # Until all is done. A worker that ended may come back within PATIENCE: its steps are then taken again
            answered = checked = time.monotonic()
            while not self._coordinator.done():
                time.sleep(_POLL)
                now = time.monotonic()
                if now - checked > 1.0:
                    silent, checked = [name for name, address in self._addresses.items() if not _answers(address)], now
                    answered = answered if silent else now
                    if now - answered > PATIENCE:
                        raise ReplicaError(_lost_message(f"{', '.join(silent)} did not answer for {PATIENCE:.0f} s"))
            self._coordinator.join()  # raises what a step raised
            return [one.fetch() for one in scheduled]


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1.0).close()
    except OSError:
        return False
    return True


def _lost_message(reason: str) -> str:
    return f"{reason}. Start the cluster again, and continue from the newest checkpoint."


def lost(error: Exception) -> ReplicaError:
    """The error of a worker or a parameter server that ended or does not answer."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = next((line for line in lines if any(sign in line for sign in _SIGNS)), (lines or ["no reason"])[0])
    return ReplicaError(_lost_message(f"A process of this cluster ended or does not answer ({reason[:200]})"))


class VectorLayout:
    """Arrays by name, in sections, as one vector. Their shapes are noted where they are joined, in a trace."""

    def __init__(self) -> None:
        self._shapes: list[dict[Any, tf.TensorShape]] = []
        self._dtypes: list[dict[Any, tf.DType]] = []

    def joined(self, *sections: dict[Any, Any]) -> Any:
        """All arrays in one vector of float32."""
        self._shapes = [{i: x.shape for i, x in section.items()} for section in sections]
        self._dtypes = [{i: x.dtype for i, x in section.items()} for section in sections]
        flat = [tf.reshape(tf.cast(x, tf.float32), [-1]) for section in sections for x in section.values()]
        return tf.concat(flat, 0)

    def split(self, vector: Any) -> list[dict[Any, Any]]:
        """The sections of a vector that was joined."""
        shapes = [shape for section in self._shapes for shape in section.values()]
        parts = iter(tf.split(vector, [shape.num_elements() for shape in shapes]))
        return [
            {i: tf.cast(tf.reshape(next(parts), shape), dtypes[i]) for i, shape in section.items()}
            for section, dtypes in zip(self._shapes, self._dtypes, strict=True)
        ]


def parts_of_batch(tree: Any, count: int) -> Any:
    """Arrays [B, ...] as [count, B / count, ...]: the part of each replica."""
    return tf.nest.map_structure(lambda x: tf.reshape(x, (count, x.shape[0] // count, *x.shape[1:])), tree)


def placed(x: Any, number: Any, count: int) -> Any:
    """A replica's numbers [b, ...] at their places in the whole batch [count * b, ...], 0 elsewhere."""
    mask = tf.reshape(tf.one_hot(number, count, dtype=x.dtype), (count, *[1] * x.shape.rank))
    return tf.reshape(mask * x[None], (count * x.shape[0], *x.shape[1:]))


class StrategyEngine(FunctionalEngine):
    """A `FunctionalEngine` whose `learn` is called with the whole batch in every process. Each replica differentiates
    the losses of an equal part, and one all-reduce for each gradient step averages them. XLA compiles nothing: it has
    no all-reduce between the devices of TensorFlow."""

    def __init__(self, agent: Agent, spaces: Spaces, seed: int, replicas: Replicas, busy: Busy):
        self._replicas: _StrategyReplicas = replicas.strategy
        super().__init__(agent, spaces, seed, TensorFlowBackend(replicas.device, busy, xla=False))

    def learn(self, batches: Batch, hyper: dict[str, float]) -> Update:
        """See `FunctionalEngine.learn`. Raises ReplicaError where a process of the cluster ended."""
        self._replicas.check_batch(batches.weight.shape[1])
        with self._replicas.explained():
            return super().learn(batches, hyper)

    def _shared(self, scalars: tuple[str, ...]) -> Program:
        return _StrategyProgram(self.layout, self.backend, self._replicas)


class _StrategyProgram(Program):
    """See `StrategyEngine`."""

    def __init__(self, layout: ParameterLayout, backend: Backend, replicas: _StrategyReplicas):
        self._replicas: _StrategyReplicas = replicas
        super().__init__(layout, backend)

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
                found, gradients = super(_StrategyProgram, self)._differentiate(
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
