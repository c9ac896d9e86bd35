"""Gradient steps in nothing but torch: eager with the fused Adam, or one compiled function of weights and moments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from bare_losses import LOSSES
from cases import DELAY, EVERY, RATE, TAU, Arrays, Case, weights
from torch.nn import functional
from torch.utils._pytree import tree_flatten, tree_map


def mlp(layers: Any, x: Any, activation: Callable = torch.relu) -> Any:
    if x.dtype == torch.uint8:
        x = x.permute(0, 3, 1, 2) / 255
    for w, b in layers[:-1]:
        x = x.flatten(1) if x.ndim == 4 and w.ndim == 2 else x  # after convolutions
        if w.ndim == 4:
            x = activation(functional.conv2d(x, w, b, max(1, w.shape[-1] // 2)))
        else:
            x = activation(_affine(x, w, b))
    return _affine(x, *layers[-1])


def _affine(x: Any, w: Any, b: Any) -> Any:
    return torch.addmm(b, x, w) if w.ndim == 2 else torch.matmul(x, w) + b


def project(atoms: Any, weight: Any, spacing: float, lowest: float) -> Any:
    n, count = atoms.shape
    place = ((atoms - lowest) / spacing).clamp(0, count - 1)
    low = place.floor().clamp(max=count - 2)
    upper = (place - low) * weight
    index = low.long() + count * torch.arange(n, device=atoms.device)[:, None]
    found = torch.zeros(n * count, device=atoms.device)
    found.index_add_(0, index.flatten(), (weight - upper).flatten())
    found.index_add_(0, (index + 1).flatten(), upper.flatten())
    return found.reshape(n, count)


def gru(cell: Any, x: Any, memory: Any, keep: Any = None, trained: Any = None, untrained: int = 0) -> Any:
    """See `bare_jax.gru`. One operation for all steps between two at which a memory is forgotten or cut off."""
    w, b, memory_w, memory_b = cell
    kernels = [w.t(), memory_w.t(), b, memory_b]
    forgotten = [] if keep is None else (keep[:, 1:] == 0).any(0).nonzero()[:, 0].tolist()
    ends = [*range(1, untrained + 1), *(t + 1 for t in forgotten), x.shape[1]]
    found, starts = [], [0, *ends[:-1]]
    parts = x.split([end - start for start, end in zip(starts, ends, strict=True)], 1)
    for start, part in zip(starts, parts, strict=True):
        memory = memory if keep is None else memory * keep[:, start, None]
        if 0 < start <= untrained:
            memory = torch.where(trained[:, start - 1, None] > 0, memory, memory.detach())
        memories, last = torch.gru(part, memory[None], kernels, True, 1, 0.0, False, False, True)
        found.append(memories)
        memory = last[0]
    return torch.cat(found, 1)


F = SimpleNamespace(
    mlp=mlp,
    gru=gru,
    relu=torch.relu,
    huber=lambda error: functional.huber_loss(error, torch.zeros_like(error), reduction="none"),
    project=project,
    take=lambda x, index: x.gather(-1, index[..., None])[..., 0],
    row=lambda x, index: x[torch.arange(len(x), device=x.device), index],
    no_gradient=torch.no_grad,
    stop=lambda x: x.detach(),
    max_last=lambda x: x.amax(-1),
    min_first=lambda x: x.amin(0),
    halves=lambda x: x.chunk(2, -1),
    one_hot=lambda index, n: functional.one_hot(index, n).float(),
    repeat=lambda x, times: x.repeat_interleave(times, 0),
    argmax=lambda x: x.argmax(-1),
    softmax=lambda x: x.softmax(-1),
    log_softmax=lambda x: x.log_softmax(-1),
    logsumexp=lambda x: x.logsumexp(-1),
    softplus=functional.softplus,
    concatenate=torch.cat,
    std=lambda x: x.std(correction=0),
    **{
        name: getattr(torch, name)
        for name in (
            "abs", "clip", "exp", "linspace", "mean", "minimum", "reshape", "sign", "stack", "sum", "tanh", "where",
        )
    },
)  # fmt: skip


def bare(case: Case, compiled: bool = False, device: str = "cpu") -> Callable[[Arrays], Any]:
    """From k batches in NumPy to the mean losses and the errors in NumPy."""
    step = _compiled(case) if compiled else _eager(case, device)

    def learn(batches: Arrays) -> Any:
        tensors = {name: torch.from_numpy(x).to(device) for name, x in batches.items()}
        found = [step({name: x[i] for name, x in tensors.items()}) for i in range(case.k)]
        scalars = torch.stack([scalar for scalar, _ in found]).mean(0).cpu().numpy()
        return scalars, None if found[0][1] is None else torch.stack([error for _, error in found]).cpu().numpy()

    return learn


def _eager(case: Case, device: str) -> Callable:
    rules = case.rules
    own = {"linspace": functools.partial(torch.linspace, device=device)}
    losses = functools.partial(LOSSES[case.algorithm], SimpleNamespace(**vars(F) | own))

    def tensor(w: Any) -> torch.Tensor:
        w = w.transpose(3, 2, 0, 1).copy() if w.ndim == 4 else w  # kernels as torch has them
        return torch.tensor(w, device=device).requires_grad_()

    params = tree_map(tensor, weights(case))
    target_params = {name: tree_map(lambda w: w.detach().clone(), params[name]) for name in rules.target_params}
    groups = {name: tree_flatten(part)[0] for name, part in params.items()}
    pairs = {name: list(zip(tree_flatten(target_params[name])[0], groups[name], strict=True)) for name in target_params}
    optimizers = {name: torch.optim.Adam(g, RATE, eps=rules.epsilon, fused=True) for name, g in groups.items()}
    t = 0

    def step(batch: Any) -> Any:
        nonlocal t
        t += 1
        late = not rules.delayed or t % DELAY == 0
        due = [name for name in groups if late or name not in rules.delayed]
        scalars, error = losses(params, target_params, batch)
        told = []
        for name in due:
            value, group = scalars[name](), groups[name]
            found = torch.autograd.grad(value, group, retain_graph=name != due[-1])
            for w, g in zip(group, found, strict=True):
                w.grad = g.contiguous()  # convolutions on a GPU give others, which the fused Adam refuses
            if rules.largest_norm is not None:
                torch.nn.utils.clip_grad_norm_(group, rules.largest_norm)
            if name not in rules.delayed:
                told.append(value.detach())
        for name in due:
            optimizers[name].step()
        with torch.no_grad():
            for name in rules.followed if late else ():
                for old, w in pairs[name]:
                    old.lerp_(w, TAU)
            for name in rules.copied if t % EVERY == 0 else ():
                for old, w in pairs[name]:
                    old.copy_(w)
        return torch.stack(told), error

    return step


def _compiled(case: Case) -> Callable:
    rules, losses = case.rules, functools.partial(LOSSES[case.algorithm], F)
    params = tree_map(torch.tensor, weights(case))
    zeros = tree_map(torch.zeros_like, params)
    target_params = {name: tree_map(torch.clone, params[name]) for name in rules.target_params}
    state = (params, target_params, zeros, tree_map(torch.clone, zeros), torch.zeros(()))
    assert not rules.delayed, "not written for losses that are not always due"

    def functional(state: Any, batch: Any) -> Any:
        params, target_params, first, second, t = state
        gradients, scalars, rest = {}, [], []
        for group in params:

            def own(part: Any, group: str = group) -> Any:
                found, error = losses({**params, group: part}, target_params, batch)
                value = found[group]()
                return value, (value,) if error is None else (value, error)

            gradients[group], (scalar, *rest) = torch.func.grad(own, has_aux=True)(params[group])
            scalars.append(scalar)
            if rules.largest_norm is not None:
                norm = sum((g**2).sum() for g in tree_flatten(gradients[group])[0]).sqrt()
                factor = (rules.largest_norm / (norm + 1e-6)).clamp(max=1.0)
                gradients[group] = tree_map(lambda g, factor=factor: g * factor, gradients[group])
        t = t + 1
        first = tree_map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
        second = tree_map(lambda v, g: 0.999 * v + 0.001 * g**2, second, gradients)
        rate, scale = RATE / (1 - 0.9**t), 1 / (1 - 0.999**t)
        move = lambda w, m, v: w - rate * m / ((v * scale).sqrt() + rules.epsilon)  # noqa: E731
        params = tree_map(move, params, first, second)
        late = {}
        for name in rules.copied:
            late[name] = tree_map(lambda old, w: torch.where(t % EVERY == 0, w, old), target_params[name], params[name])
        for name in rules.followed:
            late[name] = tree_map(lambda old, w: old + TAU * (w - old), target_params[name], params[name])
        return (params, late, first, second, t), torch.stack(scalars), *rest

    function = torch.no_grad()(torch.compile(functional, fullgraph=True))

    def step(batch: Any) -> Any:
        nonlocal state
        state, scalars, *rest = function(state, batch)
        return scalars, rest[0] if rest else None

    return step
