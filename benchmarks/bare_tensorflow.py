"""Gradient steps in nothing but TensorFlow: one function with a loop in its graph, compiled by XLA."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import tensorflow as tf
from bare_losses import LOSSES
from cases import DELAY, EVERY, RATE, TAU, Arrays, Case, weights


def mlp(layers: Any, x: Any, activation: Callable = tf.nn.relu) -> Any:
    for w, b in layers[:-1]:
        x = activation(tf.matmul(x, w) + b)
    w, b = layers[-1]
    return tf.matmul(x, w) + b


def huber(error: Any) -> Any:
    size = tf.abs(error)
    return tf.where(size < 1, 0.5 * error**2, size - 0.5)


def project(atoms: Any, weight: Any, spacing: float, lowest: float) -> Any:
    support = lowest + spacing * tf.range(atoms.shape[-1], dtype=tf.float32)
    near = tf.nn.relu(1 - tf.abs(atoms[:, None, :] - support[:, None]) / spacing)
    return tf.reduce_sum(near * weight[:, None, :], -1)


def row(x: Any, index: Any) -> Any:
    return tf.reduce_sum(x * tf.one_hot(index, x.shape[1])[..., None], 1)


def gru(cell: Any, x: Any, memory: Any, keep: Any = None, trained: Any = None, untrained: int = 0) -> Any:
    """See `bare_jax.gru`."""
    w, b, memory_w, memory_b = (tf.convert_to_tensor(part) for part in cell)  # read once, not in every step
    fed, length = tf.transpose(tf.matmul(x, w) + b, (1, 0, 2)), x.shape[1]
    keep, trained = (part if part is None else tf.transpose(part)[..., None] for part in (keep, trained))

    def step(t: Any, memory: Any, found: Any) -> Any:
        memory = memory if keep is None else memory * keep[t]
        after = gated(fed[t], tf.matmul(memory, memory_w) + memory_b, memory)
        after = after if trained is None else tf.where(trained[t] > 0, after, tf.stop_gradient(after))
        return t + 1, after, found.write(t, after)

    start = (0, memory, tf.TensorArray(tf.float32, length, element_shape=memory.shape))
    found = tf.while_loop(lambda t, *_: t < length, step, start, maximum_iterations=length)[2]
    return tf.transpose(found.stack(), (1, 0, 2))


def gated(fed: Any, remembered: Any, memory: Any) -> Any:
    n = memory.shape[-1]
    gates = tf.sigmoid(fed[:, : 2 * n] + remembered[:, : 2 * n])
    new = tf.tanh(fed[:, 2 * n :] + gates[:, :n] * remembered[:, 2 * n :])
    return new + gates[:, n:] * (memory - new)


F = SimpleNamespace(
    mlp=mlp,
    gru=gru,
    relu=tf.nn.relu,
    huber=huber,
    project=project,
    take=lambda x, index: tf.reduce_sum(x * tf.one_hot(index, x.shape[-1]), -1),
    row=row,
    no_gradient=contextlib.nullcontext,
    stop=tf.stop_gradient,
    max_last=lambda x: tf.reduce_max(x, -1),
    min_first=lambda x: tf.reduce_min(x, 0),
    halves=lambda x: tf.split(x, 2, -1),
    one_hot=tf.one_hot,
    repeat=lambda x, times: tf.repeat(x, times, 0),
    argmax=lambda x: tf.argmax(x, -1),
    softmax=tf.nn.softmax,
    log_softmax=tf.nn.log_softmax,
    logsumexp=lambda x: tf.reduce_logsumexp(x, -1),
    softplus=tf.nn.softplus,
    clip=tf.clip_by_value,
    concatenate=tf.concat,
    linspace=tf.linspace,
    mean=tf.reduce_mean,
    std=tf.math.reduce_std,
    sum=tf.reduce_sum,
    **{name: getattr(tf, name) for name in ("abs", "exp", "minimum", "reshape", "sign", "stack", "tanh", "where")},
)


def bare(case: Case) -> Callable[[Arrays], Any]:
    """From k batches in NumPy to the mean losses and the errors in NumPy; weights are variables."""
    rules, losses = case.rules, functools.partial(LOSSES[case.algorithm], F)
    params = tf.nest.map_structure(tf.Variable, weights(case))
    target_params = {name: tf.nest.map_structure(tf.Variable, params[name]) for name in rules.target_params}
    groups = {name: tf.nest.flatten(part) for name, part in params.items()}
    pairs = {name: list(zip(tf.nest.flatten(target_params[name]), groups[name], strict=True)) for name in target_params}
    moments = {
        name: [[tf.Variable(tf.zeros_like(w)) for w in group] for _ in range(2)] for name, group in groups.items()
    }
    t = tf.Variable(0.0)

    def adam(name: str, gradients: list, t: Any) -> None:
        if rules.largest_norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, rules.largest_norm)
        rate, scale = RATE / (1 - 0.9**t), 1 / (1 - 0.999**t)
        for w, m, v, g in zip(groups[name], *moments[name], gradients, strict=True):
            m.assign(0.9 * m + 0.1 * g)
            v.assign(0.999 * v + 0.001 * g**2)
            w.assign_sub(rate * m / (tf.sqrt(v * scale) + rules.epsilon))

    def follow() -> None:
        for name in rules.followed:
            for old, w in pairs[name]:
                old.assign_add(TAU * (w - old))

    def step(batch: Arrays) -> Any:
        told = {}
        with tf.GradientTape(persistent=True) as tape:
            found, error = losses(params, target_params, batch)
            for name in groups:
                if name not in rules.delayed:
                    told[name] = found[name]()
        gradients = {name: tape.gradient(value, groups[name]) for name, value in told.items()}
        t.assign_add(1.0)

        def late() -> Any:
            for name in rules.delayed:
                with tf.GradientTape() as tape:
                    value = found[name]()
                adam(name, tape.gradient(value, groups[name]), t / DELAY)
            follow()
            return 0

        if rules.delayed:
            tf.cond(t % DELAY == 0, late, lambda: 0)
        for name, own in gradients.items():
            adam(name, own, t)
        if not rules.delayed:
            follow()
        for name in rules.copied:
            for old, w in pairs[name]:
                old.assign(tf.where(t % EVERY == 0, w, old))
        return tf.stack(list(told.values())), error

    @tf.function(jit_compile=True, autograph=False)
    def run(batches: Any) -> Any:
        pick = lambda i: {name: x[i] for name, x in batches.items()}  # noqa: E731
        scalars = tf.TensorArray(tf.float32, case.k, element_shape=(len(groups) - len(rules.delayed),))
        errors = tf.TensorArray(tf.float32, case.k, element_shape=(case.batch,))

        def body(i: Any, scalars: Any, errors: Any) -> Any:
            found, error = step(pick(i))
            return i + 1, scalars.write(i, found), errors if error is None else errors.write(i, error)

        _, scalars, errors = tf.while_loop(
            lambda i, *_: i < case.k, body, (0, scalars, errors), maximum_iterations=case.k
        )
        return tf.reduce_mean(scalars.stack(), 0), errors.stack()

    def learn(batches: Arrays) -> Any:
        found, errors = run({name: tf.convert_to_tensor(x) for name, x in batches.items()})
        return found.numpy(), errors.numpy()

    return learn
