"""PPO on CartPole in nothing but JAX: whole learning phases in one call, the least that the work takes. As PureJaxRL
does it, without what the last observation of an episode that was cut off is worth."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

GAMMA, LAMBDA, CLIP, RATE = 0.99, 0.95, 0.2, 2.5e-4


def reset(key: Any) -> Any:
    return jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05), jnp.int32(0)


def step(state: Any, time: Any, action: Any) -> Any:
    x, velocity, angle, turning = state
    force, cos, sin = jnp.where(action == 1, 10.0, -10.0), jnp.cos(angle), jnp.sin(angle)
    pushed = (force + 0.05 * turning**2 * sin) / 1.1
    leaning = (9.8 * sin - cos * pushed) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    moving = pushed - 0.05 * leaning * cos / 1.1
    x, angle = x + 0.02 * velocity, angle + 0.02 * turning
    state = jnp.stack([x, velocity + 0.02 * moving, angle, turning + 0.02 * leaning])
    return state, time + 1, (jnp.abs(x) > 2.4) | (jnp.abs(angle) > 0.2095) | (time + 1 >= 500)


def mlp(layers: Any, x: Any) -> Any:
    for w, b in layers[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = layers[-1]
    return x @ w + b


def loss(params: Any, batch: Any) -> Any:
    observation, action, log_prob, advantage, target = batch
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    logits = jax.nn.log_softmax(mlp(params["policy"], observation))
    ratio = jnp.exp(jnp.take_along_axis(logits, action[:, None], 1)[:, 0] - log_prob)
    surrogate = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage).mean()
    return 0.5 * ((mlp(params["value"], observation)[:, 0] - target) ** 2).mean() - surrogate


def descend(held: Any, batch: Any) -> Any:
    params, first, second, time = held
    gradient, time = jax.grad(loss)(params, batch), time + 1
    norm = jnp.sqrt(sum(jnp.sum(x * x) for x in jax.tree.leaves(gradient)))
    gradient = jax.tree.map(lambda x: x * jnp.minimum(1.0, 0.5 / (norm + 1e-6)), gradient)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradient)
    rate, scale = RATE / (1 - 0.9**time), 1 / (1 - 0.999**time)
    params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v * scale) + 1e-5), params, first, second)
    return (params, first, second, time), None


def trainer(n: int, length: int, epochs: int, minibatch: int, phases: int, seed: int) -> Any:
    """A function that takes so many phases on, and one of (episodes) mean length so far in the last call."""
    count = n * length // minibatch

    def collected(params: Any, state: Any, time: Any, key: Any) -> Any:
        def one(carry: Any, _: Any) -> Any:
            state, time, key = carry
            key, own, fresh = jax.random.split(key, 3)
            logits = mlp(params["policy"], state)
            action = jax.random.categorical(own, logits)
            log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], 1)[:, 0]
            after, later, done = jax.vmap(step)(state, time, action)
            begun, zero = jax.vmap(reset)(jax.random.split(fresh, n))
            row = (state, action, log_prob, mlp(params["value"], state)[:, 0], jnp.ones(n), done)
            return (jnp.where(done[:, None], begun, after), jnp.where(done, zero, later), key), row

        return jax.lax.scan(one, (state, time, key), None, length)

    def phase(carry: Any, _: Any) -> Any:
        held, state, time, key = carry
        (state, time, key), (observation, action, log_prob, value, reward, done) = collected(held[0], state, time, key)

        def back(carry: Any, row: Any) -> Any:
            advantage, following = carry
            value, reward, goes_on = row
            advantage = reward + GAMMA * goes_on * following - value + GAMMA * LAMBDA * goes_on * advantage
            return (advantage, value), advantage

        last = mlp(held[0]["value"], state)[:, 0]
        advantage = jax.lax.scan(back, (jnp.zeros(n), last), (value, reward, 1.0 - done), reverse=True)[1]
        flat = jax.tree.map(
            lambda x: x.reshape(n * length, *x.shape[2:]), (observation, action, log_prob, advantage, advantage + value)
        )

        def epoch(carry: Any, _: Any) -> Any:
            held, key = carry
            key, own = jax.random.split(key)
            rows = jax.random.permutation(own, n * length)[: count * minibatch]
            batches = jax.tree.map(lambda x: x[rows].reshape(count, minibatch, *x.shape[1:]), flat)
            return (jax.lax.scan(descend, held, batches)[0], key), None

        (held, key), _ = jax.lax.scan(epoch, (held, key), None, epochs)
        return (held, state, time, key), done.sum()

    keys = jax.random.split(jax.random.key(seed), 4)

    def layers(key: Any, sizes: tuple[int, ...]) -> Any:
        pairs = zip(jax.random.split(key, len(sizes) - 1), sizes[:-1], sizes[1:], strict=True)
        return [(jax.random.orthogonal(k, max(i, o))[:i, :o] * np.sqrt(2), jnp.zeros(o)) for k, i, o in pairs]

    params = {"policy": layers(keys[0], (4, 64, 64, 2)), "value": layers(keys[1], (4, 64, 64, 1))}
    zeros = jax.tree.map(jnp.zeros_like, params)
    state, time = jax.vmap(reset)(jax.random.split(keys[2], n))
    carry = ((params, zeros, zeros, jnp.float32(0)), state, time, keys[3])
    run = jax.jit(lambda carry: jax.lax.scan(phase, carry, None, phases))
    ended = jnp.ones(1)

    def advance() -> None:
        nonlocal carry, ended
        carry, ended = jax.block_until_ready(run(carry))

    return advance, lambda: float(n * length * phases / max(1, ended.sum()))
