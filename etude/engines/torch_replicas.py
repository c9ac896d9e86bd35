"""torch in several processes, each of which differentiates the losses of a part of every batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from etude.agent import Agent
from etude.base import trees
from etude.base.cores import Busy
from etude.base.data import Batch, Update
from etude.base.spaces import Spaces
from etude.engines.replicas import Replicas, share_of
from etude.engines.summary import READ_BY_LOSSES
from etude.engines.torch import TorchEngine
from etude.engines.torch_group import ReplicaMean, TorchGroup
from etude.ops.replicas import averaged_by


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
            for variable in part.frozen
            if not part.portable and part.target_of is None and self._values[f"{name}.{variable}"].is_floating_point()
        ]

    def _learned(self, batches: Batch, drawn: dict[str, np.ndarray], hyper: dict[str, float]) -> Update:
        group, n = self._group, batches.weight.shape[1]
        part = Batch(index=None, **{name: self._part(getattr(batches, name)) for name in READ_BY_LOSSES})  # type: ignore[arg-type]
        per_example = self.layout.agent.noise
        drawn = {name: self._part(array) if name in per_example else array for name, array in drawn.items()}
        with averaged_by(lambda x: ReplicaMean.apply(x, group), group.size):
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
