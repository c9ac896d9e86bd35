"""Losses of values of actions, and of distributions and memories of them."""

from __future__ import annotations

from typing import Any

from cases import ATOMS, BURN_IN, HIGHEST, LOWEST, N_STEP, PRIORITY_MIX, QUANTILES


def dqn(f: Any, params: Any, target_params: Any, batch: Any) -> Any:
    q = f.take(f.mlp(params["q"][0], batch["observation"]), batch["action"])
    with f.no_gradient():
        next_q = f.max_last(f.mlp(target_params["q"][0], batch["next_observation"]))
        target = f.stop(batch["reward"] + batch["discount"] * next_q)
    return {"q": lambda: f.mean(batch["weight"] * f.huber(q - target))}, f.stop(target - q)


def c51(f: Any, params: Any, target_params: Any, batch: Any) -> Any:
    shape = (-1, params["q"][0][-1][0].shape[-1] // ATOMS, ATOMS)
    support = f.linspace(LOWEST, HIGHEST, ATOMS)
    logits = f.row(f.reshape(f.mlp(params["q"][0], batch["observation"]), shape), batch["action"])
    with f.no_gradient():
        probabilities = f.softmax(f.reshape(f.mlp(target_params["q"][0], batch["next_observation"]), shape))
        best = f.row(probabilities, f.argmax(f.sum(probabilities * support, -1)))
    error = _cross_entropy(f, batch, logits, best, support)
    return {"q": lambda: f.mean(batch["weight"] * error)}, f.stop(error)


def qr_dqn(f: Any, params: Any, target_params: Any, batch: Any) -> Any:
    shape = (-1, params["q"][0][-1][0].shape[-1] // QUANTILES, QUANTILES)
    quantile = f.row(f.reshape(f.mlp(params["q"][0], batch["observation"]), shape), batch["action"])
    with f.no_gradient():
        following = f.reshape(f.mlp(target_params["q"][0], batch["next_observation"]), shape)
        best = f.row(following, f.argmax(f.mean(following, -1)))
        target = f.stop(batch["reward"][:, None] + batch["discount"][:, None] * best)
    fraction = f.linspace(0.5 / QUANTILES, 1 - 0.5 / QUANTILES, QUANTILES)[:, None]
    difference = target[:, None, :] - quantile[:, :, None]
    share = f.where(difference < 0, 1 - fraction, fraction)
    loss = f.sum(f.mean(share * f.huber(difference), -1), -1)
    error = f.stop(f.mean(target, -1) - f.mean(quantile, -1))
    return {"q": lambda: f.mean(batch["weight"] * loss)}, error


def rainbow(f: Any, params: Any, target_params: Any, batch: Any) -> Any:
    support = f.linspace(LOWEST, HIGHEST, ATOMS)
    logits = f.row(_dueling(f, params["q"], batch["noise_q"], batch["observation"]), batch["action"])
    with f.no_gradient():
        chooser = f.softmax(_dueling(f, params["q"], batch["noise_chooser"], batch["next_observation"]))
        following = _dueling(f, target_params["q"], batch["noise_q_target"], batch["next_observation"])
        best = f.softmax(f.row(following, f.argmax(f.sum(chooser * support, -1))))
    error = _cross_entropy(f, batch, logits, best, support)
    return {"q": lambda: f.mean(batch["weight"] * error)}, f.stop(error)


def r2d2(f: Any, params: Any, target_params: Any, batch: Any) -> Any:
    mask, actions = batch["mask"], batch["action"]
    start = (params["q"], batch["observation"], batch["recurrent_state"], f.relu)
    q, memories = recurrent(f, *start, trained=mask, untrained=BURN_IN)
    with f.no_gradient():
        _, target_memories = recurrent(f, target_params["q"], *start[1:])
        chooser, next_q = (
            _next_values(f, networks, batch["next_observation"], f.stop(x))
            for networks, x in ((params["q"], memories), (target_params["q"], target_memories))
        )
        value = f.take(next_q, f.argmax(chooser))
        ends = 0.0 * mask[:, :1]
        follows = f.concatenate([mask[:, 1:], ends], 1)
        target = batch["reward"] + batch["discount"] * value
        for _ in range(N_STEP - 1):
            longer = f.concatenate([target[:, 1:], ends], 1)
            target = batch["reward"] + batch["discount"] * (follows * longer + (1 - follows) * value)
    error = (f.stop(target) - f.take(q, actions)) * mask
    size, counted = f.stop(f.abs(error)), f.sum(mask)
    priority = PRIORITY_MIX * f.max_last(size) + (1 - PRIORITY_MIX) * f.sum(size, -1) / f.sum(mask, -1)
    return {"q": lambda: 0.5 * f.sum(batch["weight"][:, None] * error**2) / counted}, priority


def recurrent(f: Any, networks: Any, observation: Any, memory: Any, activation: Any, **rules: Any) -> Any:
    """What sequences of observations [B, L, ...] lead to, [B, L, outputs], and the memory after each, [B, L, units];
    rules: of `gru`."""
    before, cell, after = networks
    length = observation.shape[1]
    seen = activation(f.mlp(before, f.reshape(observation, (-1, observation.shape[-1]))))
    memories = f.gru(cell, f.reshape(seen, (-1, length, seen.shape[-1])), memory, **rules)
    found = f.mlp(after, f.reshape(memories, (-1, memories.shape[-1])))
    return f.reshape(found, (-1, length, found.shape[-1])), memories


def _next_values(f: Any, networks: Any, observation: Any, memories: Any) -> Any:
    """One step from each memory, [B, L, outputs]."""
    flat, memories = (f.reshape(x, (-1, x.shape[-1])) for x in (observation, memories))
    found, _ = recurrent(f, networks, flat[:, None], memories, f.relu)
    return f.reshape(found, (-1, observation.shape[1], found.shape[-1]))


def _dueling(f: Any, networks: Any, noise: Any, observation: Any) -> Any:
    """Logits [B, actions, ATOMS] of noisy layers."""
    trunk, value, advantage = _noisy(f, networks, noise)
    x = f.relu(f.mlp(trunk, observation))
    value = f.reshape(f.mlp(value, x), (-1, 1, ATOMS))
    advantage = f.reshape(f.mlp(advantage, x), (-1, advantage[-1][0].shape[-1] // ATOMS, ATOMS))
    return value + advantage - f.mean(advantage, 1)[:, None]


def _noisy(f: Any, networks: Any, noise: Any) -> Any:
    """Networks of [weight, bias] made of those of [weight, bias, scale of its noise, of the bias's]."""
    noise, start, found = f.sign(noise) * f.abs(noise) ** 0.5, 0, []
    for layers in networks:
        found.append([])
        for weight, bias, scale, bias_scale in layers:
            middle = start + weight.shape[0]
            end = middle + weight.shape[1]
            inputs, units = noise[start:middle, None], noise[middle:end]
            found[-1].append([weight + scale * (inputs * units), bias + bias_scale * units])
            start = end
    return found


def _cross_entropy(f: Any, batch: Any, logits: Any, best: Any, support: Any) -> Any:
    """Of logits under what the best next action's probabilities lead to; all but the result [B, ATOMS]."""
    with f.no_gradient():
        atoms = f.clip(batch["reward"][:, None] + batch["discount"][:, None] * support, LOWEST, HIGHEST)
        target = f.stop(f.project(atoms, best, (HIGHEST - LOWEST) / (ATOMS - 1), LOWEST))
    return -f.sum(target * f.log_softmax(logits), -1)
