"""Gradient steps in nothing but TensorFlow: one function with a loop in its graph, compiled by XLA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from cases import CLIP, ENTROPY, EPSILON, EVERY, LARGEST_NORM, RATE, TAU, VALUE_COST, Arrays, Case, weights

HALF_LOG_TAU = 0.5 * np.log(2 * np.pi)


def mlp(layers: Any, x: Any, activation: Callable = tf.nn.relu) -> Any:
    for w, b in layers[:-1]:
        x = activation(tf.matmul(x, w) + b)
    w, b = layers[-1]
    return tf.matmul(x, w) + b


def dqn(params: Any, lagged: Any, batch: Arrays) -> Any:
    q = mlp(params["q"][0], batch["observation"])
    next_q = tf.reduce_max(mlp(lagged[0], batch["next_observation"]), -1)
    target = tf.stop_gradient(batch["reward"] + batch["discount"] * next_q)
    error = target - tf.gather(q, batch["action"], axis=1, batch_dims=1)
    size = tf.abs(error)
    huber = tf.where(size < 1, 0.5 * error**2, size - 0.5)
    return {"q": tf.reduce_mean(batch["weight"] * huber)}, error


def ppo(params: Any, lagged: Any, batch: Arrays) -> Any:
    actor, critic, log_std = params["model"]
    z = (batch["action"] - mlp(actor, batch["observation"], tf.tanh)) / tf.exp(log_std)
    log_prob = tf.reduce_sum(-0.5 * z**2 - log_std - HALF_LOG_TAU, -1)
    advantage = batch["advantage"] - tf.reduce_mean(batch["advantage"])
    advantage /= tf.math.reduce_std(batch["advantage"]) + 1e-8
    ratio = tf.exp(log_prob - batch["log_prob"])
    policy = -tf.minimum(ratio * advantage, tf.clip_by_value(ratio, 1 - CLIP, 1 + CLIP) * advantage)
    value = mlp(critic, batch["observation"], tf.tanh)[:, 0]
    entropy = tf.reduce_sum(log_std + 0.5 + HALF_LOG_TAU)
    total = policy + VALUE_COST * (value - batch["return"]) ** 2 - ENTROPY * entropy
    return {"model": tf.reduce_mean(batch["weight"] * total)}, None


def act(actor: Any, observation: Any, noise: Any) -> Any:
    mean, log_std = tf.split(mlp(actor, observation), 2, -1)
    log_std = tf.clip_by_value(log_std, -20.0, 2.0)
    raw = mean + tf.exp(log_std) * noise
    squash = 2 * (np.log(2).astype(np.float32) - raw - tf.nn.softplus(-2 * raw))
    return tf.tanh(raw), tf.reduce_sum(-0.5 * noise**2 - log_std - HALF_LOG_TAU - squash, -1)


def judge(layers: Any, observation: Any, action: Any) -> Any:
    return mlp(layers, tf.concat([observation, action], -1))[..., 0]


def sac(params: Any, lagged: Any, batch: Arrays) -> Any:
    actor, critic, log_temperature = params["actor"][0], params["critic"][0], params["temperature"][0]
    temperature = tf.stop_gradient(tf.exp(log_temperature))
    next_action, next_log_prob = act(actor, batch["next_observation"], batch["next_noise"])
    next_q = tf.reduce_min(judge(lagged[0], batch["next_observation"], next_action), 0) - temperature * next_log_prob
    target = tf.stop_gradient(batch["reward"] + batch["discount"] * next_q)
    error = target - judge(critic, batch["observation"], batch["action"])
    action, log_prob = act(actor, batch["observation"], batch["noise"])
    surplus = tf.stop_gradient(log_prob - action.shape[-1])
    lower = tf.reduce_min(judge(critic, batch["observation"], action), 0)
    return {
        "critic": 0.5 * tf.reduce_mean(batch["weight"] * tf.reduce_sum(error**2, 0)),
        "actor": tf.reduce_mean(batch["weight"] * (temperature * log_prob - lower)),
        "temperature": -log_temperature * tf.reduce_mean(batch["weight"] * surplus),
    }, tf.reduce_mean(error, 0)


LOSSES = {"dqn": dqn, "ppo": ppo, "sac": sac}
FOLLOWED = {"dqn": "q", "ppo": None, "sac": "critic"}


def bare(case: Case) -> Callable[[Arrays], Any]:
    """From k batches in NumPy to the mean losses and the errors in NumPy; weights are variables."""
    losses, followed, largest = LOSSES[case.algorithm], FOLLOWED[case.algorithm], LARGEST_NORM[case.algorithm]
    params = tf.nest.map_structure(tf.Variable, weights(case))
    lagged = tf.nest.map_structure(tf.Variable, params[followed]) if followed else None
    trained = tf.nest.flatten(params)
    first, second = ([tf.Variable(tf.zeros_like(w)) for w in trained] for _ in range(2))
    t = tf.Variable(0.0)

    def step(batch: Arrays) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            scalars, error = losses(params, lagged, batch)
        found = {group: tape.gradient(scalars[group], part) for group, part in params.items()}
        gradients = tf.nest.flatten(found)
        if largest is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, largest)
        t.assign_add(1.0)
        rate, scale = RATE / (1 - 0.9**t), 1 / (1 - 0.999**t)
        for w, m, v, g in zip(trained, first, second, gradients, strict=True):
            m.assign(0.9 * m + 0.1 * g)
            v.assign(0.999 * v + 0.001 * g**2)
            w.assign_sub(rate * m / (tf.sqrt(v * scale) + EPSILON[case.algorithm]))
        if followed:
            for old, w in zip(tf.nest.flatten(lagged), tf.nest.flatten(params[followed]), strict=True):
                if case.algorithm == "dqn":
                    old.assign(tf.where(t % EVERY == 0, w, old))
                else:
                    old.assign_add(TAU * (w - old))
        return tf.stack([scalars[group] for group in params]), error

    @tf.function(jit_compile=True, autograph=False)
    def run(batches: Any) -> Any:
        pick = lambda i: {name: x[i] for name, x in batches.items()}  # noqa: E731
        scalars = tf.TensorArray(tf.float32, case.k, element_shape=(len(params),))
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
