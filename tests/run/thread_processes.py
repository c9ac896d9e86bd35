"""Processes of a run as threads of this one, with the messages and means of a real group."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from etude.base.errors import ReplicaError
from etude.engines.replicas import MessageGroup, Replicas

DEADLINE = 60  # seconds, after which a test that hangs fails


class Exchange:
    """Where threads leave what the others take."""

    def __init__(self, size):
        self.size, self.held, self.left = size, [None] * size, None
        self.barrier = threading.Barrier(size, timeout=DEADLINE)

    def __call__(self, rank, value):
        self.held[rank] = value
        try:
            self.barrier.wait()
            found = list(self.held)
            self.barrier.wait()
        except threading.BrokenBarrierError:
            if self.left is None:
                raise
            raise ReplicaError(self.left) from None
        return found


class ThreadGroup(MessageGroup):
    def __init__(self, rank, exchange):
        super().__init__(rank, exchange.size)
        self._held = exchange

    def _exchange(self, what, message):
        return self._held(self.rank, message)

    def _abandon(self, reason):
        self._held.left = self._held.left or reason
        self._held.barrier.abort()

    def mean(self, vector):
        parts = self._held(self.rank, pickle.dumps(vector))
        return vector.copy_(torch.stack([pickle.loads(part) for part in parts]).sum(0)).div_(self.size)


def in_processes(size, monkeypatch, body):
    """What `body(rank)` returned, or the error that it raised, in each of so many processes."""
    exchange, own = Exchange(size), threading.local()
    found = "etude.training.assembly.replicas.engines.replicas_for"
    monkeypatch.setattr(found, lambda *_: Replicas(size, "cpu", group=own.group) if size > 1 else None)

    def process(rank):
        own.group = ThreadGroup(rank, exchange)
        try:
            return body(rank)
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(process, range(size)))
