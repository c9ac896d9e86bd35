"""Gradient steps of an agent of one's own, written by hand in each framework, without a loop in a graph."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from solo_cases import arguments


def steps_by_hand(agent, engine_name, optimizers, batches):
    """The losses [k, L] of k gradient steps."""
    agent.prioritized_replay = SimpleNamespace(update=lambda *errors: None)
    optimizers = list(optimizers) if isinstance(optimizers, list) else [optimizers]
    groups = [list(group) for group in agent.param] if len(optimizers) > 1 else [list(agent.param)]
    step = {"torch": _torch_step, "jax": _jax_step, "tensorflow": _tensorflow_step}[engine_name]
    parts = (*arguments(batches), batches.weight)
    return np.array([step(agent, groups, optimizers, *(part[i] for part in parts)) for i in range(len(batches.weight))])


def _scalars(found, weight):
    found = found if isinstance(found, list) else [found]
    return [(loss * weight).sum() / len(weight) if len(loss.shape) else loss for loss in found]


def _torch_step(agent, groups, optimizers, *parts):
    import torch

    *parts, weight = (torch.as_tensor(part) for part in parts)
    losses = _scalars(agent(*parts), weight)
    used = [losses[min(i, len(losses) - 1)] for i in range(len(groups))]
    gradients = [torch.autograd.grad(x, group, retain_graph=True) for x, group in zip(used, groups, strict=True)]
    for optimizer, group, own in zip(optimizers, groups, gradients, strict=True):
        for variable, gradient in zip(group, own, strict=True):
            variable.grad = gradient
        optimizer.step()
        optimizer.zero_grad()
    return [float(loss) for loss in losses]


def _tensorflow_step(agent, groups, optimizers, *parts):
    import tensorflow as tf

    *parts, weight = (tf.constant(part) for part in parts)
    with tf.GradientTape(persistent=True) as tape:
        found = agent(*parts)
        found = found if isinstance(found, list) else [found]
        losses = [tf.reduce_mean(loss * weight) if len(loss.shape) else loss for loss in found]
    used = [losses[min(i, len(losses) - 1)] for i in range(len(groups))]
    gradients = [tape.gradient(x, [v.value for v in group]) for x, group in zip(used, groups, strict=True)]
    for optimizer, group, own in zip(optimizers, groups, gradients, strict=True):
        optimizer.apply(own, group)
    return [float(loss) for loss in losses]


def _jax_step(agent, groups, optimizers, *parts):
    import jax
    import keras

    *parts, weight = (jax.numpy.asarray(part) for part in parts)

    def losses(values, group):
        with keras.StatelessScope(state_mapping=list(zip(group, values, strict=True))):
            return _scalars(agent(*parts), weight)

    scalars, gradients = [], []
    for i, group in enumerate(groups):
        values = [variable.value for variable in group]
        scalars = losses(values, group)
        number = min(i, len(scalars) - 1)
        gradients.append(jax.grad(lambda values, group=group, n=number: losses(values, group)[n])(values))
    for optimizer, group, own in zip(optimizers, groups, gradients, strict=True):
        optimizer.apply(own, group)
    return [float(x) for x in scalars]
