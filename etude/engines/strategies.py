"""Strategies of `tf.distribute`: which of them train, and what engines ask of them."""

from __future__ import annotations

import contextlib
import pickle
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import errors

from etude.base.errors import ConfigError, ReplicaError

PATIENCE = 20.0  # seconds without an answer of any worker of a cluster, until training ends
_POLL = 0.001  # seconds between two looks at what was scheduled
_LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.DeadlineExceededError)


def replicas_of(strategy: Any) -> StrategyReplicas:
    """The replicas of a strategy; ConfigError for what is no strategy, or one that cannot train an agent."""
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return ScheduledReplicas(strategy)
    if isinstance(strategy, tf.distribute.MirroredStrategy | tf.distribute.MultiWorkerMirroredStrategy):
        return StrategyReplicas(strategy)
    raise ConfigError(
        f"strategy is a {type(strategy).__module__}.{type(strategy).__name__}; expected a tf.distribute "
        "MirroredStrategy, MultiWorkerMirroredStrategy or ParameterServerStrategy."
    )


class StrategyReplicas:
    """Replicas that compute the gradients of one global batch together, each of an equal part of it.

    count: of all workers. rank, size: of this process among the workers of the cluster; rank 0 is the chief.
    """

    def __init__(self, strategy: Any):
        self.strategy, self.count = strategy, int(strategy.num_replicas_in_sync)
        self.rank, self.size = _place(strategy)

    def scope(self) -> contextlib.AbstractContextManager:
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

    def run(self, function: Callable[..., Any], arguments: tuple) -> Any:
        """Call a function on every replica."""
        return self.strategy.run(function, args=arguments)

    def sum(self, found: Any) -> Any:
        """The sum over all replicas of what each returned from `run`."""
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, found, axis=None)

    def first(self, found: Any) -> Any:
        """What this process's first replica returned from `run`."""
        return self.strategy.experimental_local_results(found)[0]

    def broadcast(self, value: Any) -> Any:
        """The chief's value, in all processes of the cluster. They trust each other: values are pickled."""
        if self.size == 1:
            return value
        message = pickle.dumps(value) if self.rank == 0 else b""
        (length,) = self._summed(np.array([len(message)], np.int32))
        words = np.zeros(1 << max(0, -(-int(length) // 4) - 1).bit_length(), np.int32)  # few sizes are traced
        words.view(np.uint8)[: len(message)] = np.frombuffer(message, np.uint8)
        return pickle.loads(self._summed(words).tobytes()[: int(length)])

    def gather(self, number: int) -> list[int]:
        """The numbers of all processes of the cluster, by rank."""
        numbers = np.zeros(self.size, np.int32)
        numbers[self.rank] = number
        return [number] if self.size == 1 else self._summed(numbers).tolist()

    def _summed(self, words: np.ndarray) -> np.ndarray:
        """The sum of these arrays over all processes."""
        with self.explained():
            return self._sum_of_processes(tf.constant(words)).numpy()

    @cached_property
    def _sum_of_processes(self) -> Any:
        local = self.count // self.size

        def own(words: Any) -> Any:
            return words * tf.cast(self.number() % local == 0, words.dtype)  # once for each process

        return tf.function(lambda words: self.sum(self.run(own, (words,))), autograph=False)

    def abort(self, reason: str) -> None:
        """End what the other processes of the cluster wait for: they raise, with this reason."""
        if self.size > 1:
            context.context().abort_collective_ops(errors.UNAVAILABLE, reason)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turns the loss of a worker into a ReplicaError."""
        try:
            yield
        except _LOST as error:
            raise lost(error) from error


class ScheduledReplicas(StrategyReplicas):
    """Workers that each take gradient steps on whole batches, with variables on parameter servers. The steps of a
    learning phase run at the same time where there are several workers: gradients may then be of older weights."""

    def __init__(self, strategy: Any):
        super().__init__(strategy)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        spec = strategy.cluster_resolver.cluster_spec().as_dict()
        self._addresses = {f"worker {i}": address for i, address in enumerate(spec.get("worker", ()))}

    def number(self) -> Any:
        """0: each worker has a whole batch."""
        return tf.constant(0)

    def run(self, function: Callable[..., Any], arguments: tuple) -> Any:
        """Call the function: a scheduled step is a worker's own."""
        return function(*arguments)

    def sum(self, found: Any) -> Any:
        """What the worker found."""
        return found

    def first(self, found: Any) -> Any:
        """What the worker found."""
        return found

    def schedule(self, function: Any, rows: Sequence[tuple]) -> list[Any]:
        """Call a tf.function with each of these arguments, on any worker; what it returned, in NumPy."""
        with self.explained():
            scheduled = [self._coordinator.schedule(function, args=row) for row in rows]
            self._wait()
            return [one.fetch() for one in scheduled]

    def _wait(self) -> None:
        """Until all is done. A worker that ended may come back within PATIENCE: its steps are then taken again."""
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


def _place(strategy: Any) -> tuple[int, int]:
    """(rank, size) of this process among the workers that train together."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return 0, 1
    resolver = strategy.cluster_resolver
    jobs = resolver.cluster_spec().as_dict()
    tasks = [(job, i) for job in ("chief", "worker") for i in range(len(jobs.get(job, ())))]
    return (tasks.index((resolver.task_type, resolver.task_id)), len(tasks)) if len(tasks) > 1 else (0, 1)


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
    reason = next((line for line in reversed(lines) if "ollective" in line or "connect" in line), (lines or ["?"])[0])
    return ReplicaError(_lost_message(f"A process of this cluster ended or does not answer ({reason[:200]})"))
