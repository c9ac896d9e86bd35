"""Processes of torch.distributed: gloo between CPUs, NCCL between GPUs."""

from __future__ import annotations

import weakref
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from etude.base.errors import ReplicaError
from etude.engines.heartbeat import Heartbeat
from etude.engines.process_group import MessageGroup, lost

# A process may wait for hours while the chief evaluates or another steps a slow environment: heartbeats limit it, and
# gloo does not, once it has connected all. Between GPUs, processes only wait within a learning phase, which all begin
# together; the first phase includes the time in which NCCL connects them.
GLOO_TIMEOUT, CONNECTING = timedelta(days=7), timedelta(minutes=2)


class TorchGroup(MessageGroup):
    """The processes of torch's default group, which is made where there is none. See `protocols.ProcessGroup`."""

    def __init__(self) -> None:
        try:
            if not distributed.is_initialized():
                backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
                distributed.init_process_group(backend, timeout=CONNECTING)
            self._cpu = distributed.new_group(backend="gloo", timeout=CONNECTING)
        except RuntimeError as error:
            raise ReplicaError(
                f"The processes of this run do not reach each other: {error}. Start all of them, with the same "
                "WORLD_SIZE, MASTER_ADDR and MASTER_PORT; where one has ended, its own error says why."
            ) from error
        distributed.distributed_c10d._set_pg_timeout(GLOO_TIMEOUT, self._cpu)
        rank, size = distributed.get_rank(self._cpu), distributed.get_world_size(self._cpu)
        self._heartbeat = Heartbeat(distributed.distributed_c10d._get_default_store(), rank, size)
        self._heartbeat.start(self._cpu)
        weakref.finalize(self, self._heartbeat.stop)
        super().__init__(_Gloo(self._cpu, self._heartbeat))

    def mean(self, vector: torch.Tensor) -> torch.Tensor:
        """The mean of a tensor over the processes, in its place. ReplicaError where a process ended or hangs."""
        try:
            if vector.is_cuda:
                distributed.all_reduce(vector)
            else:
                self._heartbeat.wait("a mean", distributed.all_reduce(vector, group=self._cpu, async_op=True))
        except ReplicaError:
            raise
        except (RuntimeError, ValueError) as error:
            raise lost(error) from error
        return vector.div_(self.size)


class ReplicaMean(torch.autograd.Function):
    """The mean over the processes of a group, of which each has a part of the batch; the gradient is that of the mean
    of all losses."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: TorchGroup) -> torch.Tensor:
        ctx.group = group
        return group.mean(x.contiguous().clone())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.group.mean(gradient.contiguous().clone()), None


class _Gloo:
    """See `process_group.Transport`."""

    def __init__(self, group: Any, heartbeat: Heartbeat):
        self._group, self._heartbeat = group, heartbeat
        self.rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)

    def leave(self, reason: str) -> None:
        self._heartbeat.leave(reason)

    def exchange(self, what: str, message: bytes) -> list[bytes]:
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        self._gather(what, sizes, torch.tensor([len(message)]))
        longest = max(int(size) for size in sizes)
        own = torch.zeros(longest, dtype=torch.uint8)
        own[: len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        found = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
        self._gather(what, found, own)
        return [each[: int(size)].numpy().tobytes() for each, size in zip(found, sizes, strict=True)]

    def _gather(self, what: str, found: list[torch.Tensor], own: torch.Tensor) -> None:
        self._heartbeat.wait(what, distributed.all_gather(found, own, group=self._group, async_op=True))
