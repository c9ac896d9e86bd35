"""Gradient steps in nothing but JAX: one jitted scan, the least that the work takes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from bare_losses import LOSSES
from cases import DELAY, EVERY, RATE, TAU, Arrays, Case, weights


def mlp(layers: Any, x: Any, activation: Callable = jax.nn.relu) -> Any:
    x = x.astype(jnp.float32) / 255 if x.dtype == jnp.uint8 else x
    for w, b in layers[:-1]:
        x = x.reshape(len(x), -1) if x.ndim == 4 and w.ndim == 2 else x  # after convolutions
        x = activation((jnp.matmul(x, w) if w.ndim < 4 else convolved(x, w)) + b)
    w, b = layers[-1]
    return jnp.matmul(x, w) + b


def convolved(x: Any, kernel: Any) -> Any:
    strides = 2 * (max(1, kernel.shape[0] // 2),)
    return jax.lax.conv_general_dilated(x, kernel, strides, "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def huber(error: Any) -> Any:
    size = jnp.abs(error)
    return jnp.where(size < 1, 0.5 * error**2, size - 0.5)


def project(atoms: Any, weight: Any, spacing: float, lowest: float) -> Any:
    support = lowest + spacing * jnp.arange(atoms.shape[-1])
    near = jax.nn.relu(1 - jnp.abs(atoms[:, None, :] - support[:, None]) / spacing)
    return jnp.sum(near * weight[:, None, :], -1)


def take(x: Any, index: Any) -> Any:
    return jnp.take_along_axis(x, index[..., None], -1)[..., 0]


def gru(cell: Any, x: Any, memory: Any, keep: Any = None, trained: Any = None, untrained: int = 0) -> Any:
    """The memory after each step, [B, L, units], of what is fed in [B, L, inputs].

    keep: [B, L], 0 where the memory is forgotten before the step. trained: [B, L], 0 where no gradient flows out of the
    memory after it; all that this can change are the first so many steps, `untrained`.
    """
    w, b, memory_w, memory_b = cell

    def step(memory: Any, now: Any) -> Any:
        fed, keep, trained = now
        memory = memory if keep is None else memory * keep[:, None]
        after = gated(fed, jnp.matmul(memory, memory_w) + memory_b, memory)
        after = after if trained is None else jnp.where(trained[:, None] > 0, after, jax.lax.stop_gradient(after))
        return after, after

    by_time = jax.tree_util.tree_map(lambda x: jnp.swapaxes(x, 0, 1), (jnp.matmul(x, w) + b, keep, trained))
    return jnp.swapaxes(jax.lax.scan(step, memory, by_time)[1], 0, 1)


def gated(fed: Any, remembered: Any, memory: Any) -> Any:
    n = memory.shape[-1]
    gates = jax.nn.sigmoid(fed[:, : 2 * n] + remembered[:, : 2 * n])
    new = jnp.tanh(fed[:, 2 * n :] + gates[:, :n] * remembered[:, 2 * n :])
    return new + gates[:, n:] * (memory - new)


F = SimpleNamespace(
    mlp=mlp,
    gru=gru,
    relu=jax.nn.relu,
    huber=huber,
    project=project,
    take=take,
    row=lambda x, index: jnp.sum(x * jax.nn.one_hot(index, x.shape[1])[..., None], 1),
    no_gradient=contextlib.nullcontext,
    stop=jax.lax.stop_gradient,
    max_last=lambda x: jnp.max(x, -1),
    min_first=lambda x: jnp.min(x, 0),
    halves=lambda x: jnp.split(x, 2, -1),
    one_hot=jax.nn.one_hot,
    repeat=lambda x, times: jnp.repeat(x, times, 0),
    argmax=lambda x: jnp.argmax(x, -1),
    softmax=jax.nn.softmax,
    log_softmax=jax.nn.log_softmax,
    logsumexp=lambda x: jax.nn.logsumexp(x, -1),
    softplus=jax.nn.softplus,
    **{
        name: getattr(jnp, name)
        for name in (
            "abs", "clip", "concatenate", "exp", "linspace", "mean", "minimum", "reshape", "sign", "stack", "std",
            "sum", "tanh", "where",
        )
    },
)  # fmt: skip


def bare(case: Case) -> Callable[[Arrays], Any]:
    """From k batches in NumPy to the mean losses and the errors in NumPy; weights stay on the device."""
    losses, rules = LOSSES[case.algorithm], case.rules
    params = jax.tree_util.tree_map(jnp.asarray, weights(case))
    zeros = jax.tree_util.tree_map(jnp.zeros_like, params)
    carry = (params, {name: params[name] for name in rules.target_params}, zeros, zeros, jnp.zeros((), jnp.int32))

    def gradient(params: Any, target_params: Any, batch: Arrays, group: str) -> Any:
        def own(part: Any) -> Any:
            found, error = losses(F, {**params, group: part}, target_params, batch)
            value = found[group]()
            return value, (value, error)

        found, told = jax.grad(own, has_aux=True)(params[group])
        if rules.largest_norm is not None:
            norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree_util.tree_leaves(found)))
            found = jax.tree_util.tree_map(lambda g: g * jnp.minimum(1.0, rules.largest_norm / (norm + 1e-6)), found)
        return found, told

    def adam(w: Any, m: Any, v: Any, gradient: Any, t: Any) -> Any:
        m = jax.tree_util.tree_map(lambda m, g: 0.9 * m + 0.1 * g, m, gradient)
        v = jax.tree_util.tree_map(lambda v, g: 0.999 * v + 0.001 * g**2, v, gradient)
        rate, scale = RATE / (1 - 0.9**t), 1 / (1 - 0.999**t)
        move = lambda w, m, v: w - rate * m / (jnp.sqrt(v * scale) + rules.epsilon)  # noqa: E731
        return jax.tree_util.tree_map(move, w, m, v), m, v

    def step(carry: Any, batch: Arrays) -> Any:
        params, target_params, first, second, t = carry
        t, error, told = t + 1, None, {}
        gradients = {}
        for group in params:
            if group not in rules.delayed:
                gradients[group], (told[group], error) = gradient(params, target_params, batch, group)
        new = {group: adam(params[group], first[group], second[group], gradients[group], t) for group in gradients}

        def late(_: Any) -> Any:
            found = {}
            for group in rules.delayed:
                found[group] = adam(
                    params[group],
                    first[group],
                    second[group],
                    gradient(params, target_params, batch, group)[0],
                    t / DELAY,
                )
            moved = {name: (found.get(name) or new[name])[0] for name in rules.followed}
            return found, {name: follow(target_params[name], moved[name]) for name in rules.followed}

        if rules.delayed:
            same = {group: (params[group], first[group], second[group]) for group in rules.delayed}
            found, target_params = jax.lax.cond(t % DELAY == 0, late, lambda _: (same, target_params), None)
            new = {group: (new | found)[group] for group in params}
        params, first, second = ({group: new[group][i] for group in params} for i in range(3))
        if not rules.delayed:
            target_params = {
                **target_params,
                **{name: follow(target_params[name], params[name]) for name in rules.followed},
            }
        copy = lambda old, w: jnp.where(t % EVERY == 0, w, old)  # noqa: E731
        target_params |= {
            name: jax.tree_util.tree_map(copy, target_params[name], params[name]) for name in rules.copied
        }
        return (params, target_params, first, second, t), (told, error)

    def follow(old: Any, new: Any) -> Any:
        return jax.tree_util.tree_map(lambda x, y: x + TAU * (y - x), old, new)

    @jax.jit
    def run(carry: Any, batches: Any) -> Any:
        carry, (told, error) = jax.lax.scan(step, carry, batches)
        return carry, jax.tree_util.tree_map(jnp.mean, told), error

    def learn(batches: Arrays) -> Any:
        nonlocal carry
        carry, told, error = run(carry, batches)
        return {name: float(x) for name, x in told.items()}, None if error is None else np.array(error)

    return learn
