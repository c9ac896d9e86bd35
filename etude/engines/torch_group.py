"""Processes of torch.distributed, gloo between CPUs, NCCL between GPUs, each of which differentiates the losses of a
part of every batch."""

from __future__ import annotations

import weakref
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import distributed

from etude.agent import Agent
from etude.base import trees
from etude.base.cores import Busy
from etude.base.data import Batch, Update
from etude.base.errors import ReplicaError
from etude.base.spaces import Spaces
from etude.engines.parameter_layout import READ_BY_LOSSES
from etude.engines.replicas import Heartbeat, MessageGroup, Replicas, lost, share_of
from etude.engines.torch import TorchEngine
from etude.ops.dispatch import averaged_by

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
        super().__init__(rank, size)

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

    def _exchange(self, what: str, message: bytes) -> list[bytes]:
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        self._gather(what, sizes, torch.tensor([len(message)]))
        longest = max(int(size) for size in sizes)
        own = torch.zeros(longest, dtype=torch.uint8)
        own[: len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        found = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
        self._gather(what, found, own)
        return [each[: int(size)].numpy().tobytes() for each, size in zip(found, sizes, strict=True)]

    def _gather(self, what: str, found: list[torch.Tensor], own: torch.Tensor) -> None:
        self._heartbeat.wait(what, distributed.all_gather(found, own, group=self._cpu, async_op=True))

    def _abandon(self, reason: str) -> None:
        self._heartbeat.leave(reason)


class _ReplicaMean(torch.autograd.Function):
    """The mean over the processes of a group, of which each has a part of the batch; the gradient is that of the mean
    of all losses."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: TorchGroup) -> torch.Tensor:
        ctx.group = group
        return group.mean(x.contiguous().clone())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.group.mean(gradient.contiguous().clone()), None


class ReplicatedTorchEngine(TorchEngine):
    """A `TorchEngine` in each process of a group. `learn` is called in all of them with the same batches and
    differentiates this process's part; gradients are averaged, in one all-reduce for each gradient step. So the weights
    stay equal in all processes, and are those that one process would learn, but for rounding."""

    def __init__(self, agent: Agent, spaces: Spaces, seed: int, replicas: Replicas, busy: Busy):
        self._group: TorchGroup = replicas.group  # type: ignore[assignment]  # that of torch
        super().__init__(agent, spaces, seed, replicas.device, busy)
        if self.device != "cpu":
            torch.cuda.set_device(self.device)  # NCCL's
        # What modules of a user's own change in their forward pass, such as running statistics.
        self._moved = [
            f"{name}.{variable}"
            for name, part in self.layout.parts.items()
            for variable in sorted(part.frozen)  # sets of texts have another order in each process
            if not part.portable
            and not part.fixed
            and part.target_of is None
            and self._values[f"{name}.{variable}"].is_floating_point()
        ]

    def _learned(self, batches: Batch, drawn: dict[str, np.ndarray], hyper: dict[str, float]) -> Update:
        group, n = self._group, batches.weight.shape[1]
        part = Batch(index=None, **{name: self._part(getattr(batches, name)) for name in READ_BY_LOSSES})  # type: ignore[arg-type]
        per_example = self.layout.agent.noise
        drawn = {name: self._part(array) if name in per_example else array for name, array in drawn.items()}
        with averaged_by(lambda x: _ReplicaMean.apply(x, group), group.size):
            update = super()._learned(part, drawn, hyper)
        for name in self._moved:
            group.mean(self._values[name])
        names = [*update.losses, *update.metrics]
        means = group.mean(torch.tensor([*update.losses.values(), *update.metrics.values()], dtype=torch.float64))
        numbers = dict(zip(names, means.tolist(), strict=True))
        return Update(
            {name: numbers[name] for name in update.losses},
            {name: numbers[name] for name in update.metrics},
            None if update.td_error is None else self._whole(update.td_error, n),
            update.steps,
        )

    def _averaged(self, gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        joined = self._group.mean(torch.cat([gradient.reshape(-1) for gradient in gradients.values()]))
        sizes = [gradient.numel() for gradient in gradients.values()]
        parts = zip(gradients.items(), joined.split(sizes), strict=True)
        return {name: part.reshape(gradient.shape) for (name, gradient), part in parts}

    def _part(self, tree: Any) -> Any:
        """This process's examples of arrays [k, B, ...]."""
        if tree is None:
            return None
        rank, size = self._group.rank, self._group.size
        return trees.map(lambda x: x[:, share_of(x.shape[1], rank, size)], tree)

    def _whole(self, part: np.ndarray, n: int) -> np.ndarray:
        """The numbers [k, B] of all examples, of which each process has its part."""
        whole = torch.zeros((len(part), n), dtype=torch.float32)
        whole[:, share_of(n, self._group.rank, self._group.size)] = torch.from_numpy(part)
        return self._group.mean(whole).mul_(self._group.size).numpy()
