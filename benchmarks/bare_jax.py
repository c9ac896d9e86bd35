"""Gradient steps in nothing but JAX: one jitted scan, the least that the work takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from cases import CLIP, ENTROPY, EPSILON, EVERY, LARGEST_NORM, RATE, TAU, VALUE_COST, Arrays, Case, weights

HALF_LOG_TAU = 0.5 * np.log(2 * np.pi)


def mlp(layers: Any, x: Any, activation: Callable = jax.nn.relu) -> Any:
    for w, b in layers[:-1]:
        x = activation(jnp.matmul(x, w) + b)
    w, b = layers[-1]
    return jnp.matmul(x, w) + b


def dqn(params: Any, lagged: Any, batch: Arrays) -> Any:
    q = mlp(params["q"][0], batch["observation"])
    next_q = mlp(lagged[0], batch["next_observation"]).max(-1)
    target = jax.lax.stop_gradient(batch["reward"] + batch["discount"] * next_q)
    error = target - jnp.take_along_axis(q, batch["action"][:, None], 1)[:, 0]
    size = jnp.abs(error)
    huber = jnp.where(size < 1, 0.5 * error**2, size - 0.5)
    return {"q": jnp.mean(batch["weight"] * huber)}, error


def ppo(params: Any, lagged: Any, batch: Arrays) -> Any:
    actor, critic, log_std = params["model"]
    mean = mlp(actor, batch["observation"], jnp.tanh)
    z = (batch["action"] - mean) / jnp.exp(log_std)
    log_prob = jnp.sum(-0.5 * z**2 - log_std - HALF_LOG_TAU, -1)
    advantage = (batch["advantage"] - batch["advantage"].mean()) / (batch["advantage"].std() + 1e-8)
    ratio = jnp.exp(log_prob - batch["log_prob"])
    policy = -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage)
    value = mlp(critic, batch["observation"], jnp.tanh)[:, 0]
    entropy = jnp.sum(log_std + 0.5 + HALF_LOG_TAU)
    total = policy + VALUE_COST * (value - batch["return"]) ** 2 - ENTROPY * entropy
    return {"model": jnp.mean(batch["weight"] * total)}, None


def act(actor: Any, observation: Any, noise: Any) -> Any:
    mean, log_std = jnp.split(mlp(actor, observation), 2, -1)
    log_std = jnp.clip(log_std, -20, 2)
    raw = mean + jnp.exp(log_std) * noise
    squash = 2 * (np.log(2) - raw - jax.nn.softplus(-2 * raw))
    return jnp.tanh(raw), jnp.sum(-0.5 * noise**2 - log_std - HALF_LOG_TAU - squash, -1)


def sac(params: Any, lagged: Any, batch: Arrays) -> Any:
    actor, critic, log_temperature = params["actor"][0], params["critic"][0], params["temperature"][0]
    temperature = jax.lax.stop_gradient(jnp.exp(log_temperature))
    judge = lambda layers, o, a: mlp(layers, jnp.concatenate([o, a], -1))[..., 0]  # noqa: E731
    next_action, next_log_prob = act(actor, batch["next_observation"], batch["next_noise"])
    next_q = judge(lagged[0], batch["next_observation"], next_action).min(0) - temperature * next_log_prob
    target = jax.lax.stop_gradient(batch["reward"] + batch["discount"] * next_q)
    error = target - judge(critic, batch["observation"], batch["action"])
    action, log_prob = act(actor, batch["observation"], batch["noise"])
    surplus = jax.lax.stop_gradient(log_prob - action.shape[-1])
    return {
        "critic": 0.5 * jnp.mean(batch["weight"] * jnp.sum(error**2, 0)),
        "actor": jnp.mean(
            batch["weight"] * (temperature * log_prob - judge(critic, batch["observation"], action).min(0))
        ),
        "temperature": -log_temperature * jnp.mean(batch["weight"] * surplus),
    }, error.mean(0)


LOSSES = {"dqn": dqn, "ppo": ppo, "sac": sac}
FOLLOWED = {"dqn": "q", "ppo": None, "sac": "critic"}


def bare(case: Case) -> Callable[[Arrays], Any]:
    """From k batches in NumPy to the mean losses and the errors in NumPy; weights stay on the device."""
    losses, followed, largest = LOSSES[case.algorithm], FOLLOWED[case.algorithm], LARGEST_NORM[case.algorithm]
    params = jax.tree_util.tree_map(jnp.asarray, weights(case))
    zeros = jax.tree_util.tree_map(jnp.zeros_like, params)
    carry = (params, params[followed] if followed else None, zeros, zeros, jnp.zeros((), jnp.int32))

    def step(carry: Any, batch: Arrays) -> Any:
        params, lagged, first, second, t = carry
        grads, found = {}, {}
        for group in params:

            def own(part: Any, group: str = group) -> Any:
                scalars, error = losses({**params, group: part}, lagged, batch)
                return scalars[group], (scalars[group], error)

            grads[group], (found[group], error) = jax.grad(own, has_aux=True)(params[group])
        if largest is not None:
            norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree_util.tree_leaves(grads)))
            grads = jax.tree_util.tree_map(lambda g: g * jnp.minimum(1.0, largest / (norm + 1e-6)), grads)
        t = t + 1
        first = jax.tree_util.tree_map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
        second = jax.tree_util.tree_map(lambda v, g: 0.999 * v + 0.001 * g**2, second, grads)
        rate = RATE / (1 - 0.9**t)
        scale = 1 / (1 - 0.999**t)
        epsilon = EPSILON[case.algorithm]
        move = lambda w, m, v: w - rate * m / (jnp.sqrt(v * scale) + epsilon)  # noqa: E731
        params = jax.tree_util.tree_map(move, params, first, second)
        if case.algorithm == "dqn":
            lagged = jax.tree_util.tree_map(lambda old, w: jnp.where(t % EVERY == 0, w, old), lagged, params["q"])
        elif case.algorithm == "sac":
            lagged = jax.tree_util.tree_map(lambda old, w: old + TAU * (w - old), lagged, params["critic"])
        return (params, lagged, first, second, t), (found, error)

    @jax.jit
    def run(carry: Any, batches: Any) -> Any:
        carry, (found, error) = jax.lax.scan(step, carry, batches)
        return carry, jax.tree_util.tree_map(jnp.mean, found), error

    def learn(batches: Arrays) -> Any:
        nonlocal carry
        carry, found, error = run(carry, batches)
        return {name: float(x) for name, x in found.items()}, None if error is None else np.array(error)

    return learn
