"""Processes of torch.distributed: gloo between CPUs, NCCL between GPUs."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed

from etude.engines.process_group import DEADLINE, MessageGroup, lost


class TorchGroup(MessageGroup):
    """The processes of torch's default group, which is made where there is none. See `protocols.ProcessGroup`."""

    def __init__(self) -> None:
        if not distributed.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            distributed.init_process_group(backend, timeout=DEADLINE)
        self._cpu = distributed.new_group(backend="gloo", timeout=DEADLINE)
        super().__init__(_Gloo(self._cpu))

    def mean(self, vector: torch.Tensor) -> torch.Tensor:
        """The mean of a tensor over the processes, in its place. ReplicaError where a process ended."""
        group = distributed.group.WORLD if vector.is_cuda else self._cpu
        try:
            distributed.all_reduce(vector, group=group)
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

    def __init__(self, group: Any):
        self._group = group
        self.rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)

    def exchange(self, message: bytes) -> list[bytes]:
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        distributed.all_gather(sizes, torch.tensor([len(message)]), group=self._group)
        longest = max(int(size) for size in sizes)
        own = torch.zeros(longest, dtype=torch.uint8)
        own[: len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        found = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
        distributed.all_gather(found, own, group=self._group)
        return [each[: int(size)].numpy().tobytes() for each, size in zip(found, sizes, strict=True)]
