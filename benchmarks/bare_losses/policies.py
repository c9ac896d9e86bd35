"""Losses of policies and of what judges their states."""

from __future__ import annotations

import math
from typing import Any

from cases import AGENTS, CLIP, ENTROPY, TEAM_VALUE_COST, VALUE_COST

from bare_losses.values import recurrent

HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


def ppo(f: Any, params: Any, target_params: Any, batch: Any) -> Any:
    return {"model": proximal(f, params["model"], batch)[0]}, None


def proximal(f: Any, networks: Any, batch: Any) -> Any:
    """PPO's loss, as a function, and the log probability of the actions."""
    actor, log_std, critic = networks
    log_prob = gaussian_log_prob(f, actor, log_std, batch["observation"], batch["action"])
    policy = _clipped(f, log_prob - batch["log_prob"], _standard(f, batch["advantage"]))
    value = f.mlp(critic, batch["observation"], f.tanh)[:, 0]
    entropy = f.sum(log_std + 0.5 + HALF_LOG_TAU, -1)
    total = policy + VALUE_COST * (value - batch["return"]) ** 2 - ENTROPY * entropy
    return lambda: f.mean(batch["weight"] * total), log_prob


def mappo(f: Any, params: Any, target_params: Any, batch: Any) -> Any:
    observation, active = batch["observation"], batch["active"]
    everything = f.concatenate([f.reshape(observation, (active.shape[0], -1)), active], -1)
    losses = {}
    for i, agent in enumerate(AGENTS):
        actor, critic = params[f"{agent}.model"]
        log_prob, entropy = _chosen(f, f.mlp(actor, observation[:, i], f.tanh), batch["action"][:, i])
        weight = batch["weight"] * active[:, i] / f.mean(active[:, i])
        advantage = _standard_of_weighted(f, batch["advantage"][:, i], weight)
        policy = _clipped(f, log_prob - batch["log_prob"][:, i], advantage)
        value = f.mlp(critic, everything, f.tanh)[:, 0]
        total = policy + TEAM_VALUE_COST * (value - batch["return"][:, i]) ** 2 - ENTROPY * entropy
        losses[f"{agent}.model"] = lambda weight=weight, total=total: f.mean(weight * total)
    return losses, None


def recurrent_ppo(f: Any, params: Any, target_params: Any, batch: Any) -> Any:
    actor, critic = params["model"]
    acting, judging = f.halves(batch["recurrent_state"])
    keep = 1.0 - batch["first"]
    x, _ = recurrent(f, actor, batch["observation"], acting, f.tanh, keep=keep)
    value, _ = recurrent(f, critic, batch["observation"], judging, f.tanh, keep=keep)
    log_prob, entropy = _chosen(f, x, batch["action"])
    policy = _clipped(f, log_prob - batch["log_prob"], _standard(f, batch["advantage"]))
    total = policy + VALUE_COST * (value[..., 0] - batch["return"]) ** 2 - ENTROPY * entropy
    return {"model": lambda: f.mean(batch["weight"] * total)}, None


def reinforce(f: Any, params: Any, target_params: Any, batch: Any) -> Any:
    log_prob, entropy, value = _actor_critic(f, params["model"], batch["observation"], batch["action"])
    advantage = _standard_of_weighted(f, f.stop(batch["return"] - value), batch["weight"])
    total = VALUE_COST * (value - batch["return"]) ** 2 - log_prob * advantage - ENTROPY * entropy
    return {"model": lambda: f.mean(batch["weight"] * total)}, None


def a2c(f: Any, params: Any, target_params: Any, batch: Any) -> Any:
    log_prob, entropy, value = _actor_critic(f, params["model"], batch["observation"], batch["action"])
    total = VALUE_COST * (value - batch["return"]) ** 2 - log_prob * batch["advantage"] - ENTROPY * entropy
    return {"model": lambda: f.mean(batch["weight"] * total)}, None


def impala(f: Any, params: Any, target_params: Any, batch: Any) -> Any:
    flat = _flat(f, batch)
    log_prob, entropy, value = _actor_critic(f, params["model"], flat["observation"], flat["action"])
    with f.no_gradient():
        next_value = f.mlp(params["model"][1], flat["next_observation"], f.tanh)[:, 0]
        target, advantage = _vtrace(f, batch, value, next_value, log_prob - flat["log_prob"])
    total = VALUE_COST * (value - target) ** 2 - log_prob * advantage - ENTROPY * entropy
    return {"model": lambda: f.mean(flat["weight"] * total)}, None


def appo(f: Any, params: Any, target_params: Any, batch: Any) -> Any:
    flat = _flat(f, batch)
    log_prob, entropy, value = _actor_critic(f, params["model"], flat["observation"], flat["action"])
    with f.no_gradient():
        before = f.take(f.log_softmax(f.mlp(target_params["model"][0], flat["observation"], f.tanh)), flat["action"])
        next_value = f.mlp(params["model"][1], flat["next_observation"], f.tanh)[:, 0]
        target, advantage = _vtrace(f, batch, value, next_value, before - flat["log_prob"])
        advantage = _standard(f, advantage)
        bounded = f.clip(flat["log_prob"] - before, -1e9, math.log(2.0))
    policy = _clipped(f, log_prob - flat["log_prob"] + bounded, advantage)
    total = policy + VALUE_COST * (value - target) ** 2 - ENTROPY * entropy
    return {"model": lambda: f.mean(flat["weight"] * total)}, None


def gaussian_log_prob(f: Any, actor: Any, log_std: Any, observation: Any, action: Any) -> Any:
    z = (action - f.mlp(actor, observation, f.tanh)) / f.exp(log_std)
    return f.sum(-0.5 * z**2 - log_std - HALF_LOG_TAU, -1)


def _standard(f: Any, x: Any) -> Any:
    return (x - f.mean(x)) / (f.std(x) + 1e-8)


def _standard_of_weighted(f: Any, x: Any, weight: Any) -> Any:
    """As `_standard`, where the mean of the weights is 1 and some are 0."""
    centred = x - f.mean(weight * x)
    return centred / (f.mean(weight * centred**2) ** 0.5 + 1e-8)


def _clipped(f: Any, log_ratio: Any, advantage: Any) -> Any:
    ratio = f.exp(log_ratio)
    return -f.minimum(ratio * advantage, f.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage)


def _chosen(f: Any, logits: Any, action: Any) -> Any:
    """Log probability of the actions, entropy."""
    log_probabilities = f.log_softmax(logits)
    return f.take(log_probabilities, action), -f.sum(f.exp(log_probabilities) * log_probabilities, -1)


def _actor_critic(f: Any, networks: Any, observation: Any, action: Any) -> Any:
    """Log probability of the actions, entropy, value; each [N]."""
    value = f.mlp(networks[1], observation, f.tanh)[:, 0]
    return *_chosen(f, f.mlp(networks[0], observation, f.tanh), action), value


def _flat(f: Any, batch: Any) -> Any:
    """[B, T, ...] -> [B * T, ...] of every array."""
    return {name: f.reshape(x, (-1, *x.shape[2:])) for name, x in batch.items()}


def _vtrace(f: Any, batch: Any, value: Any, next_value: Any, log_ratio: Any) -> Any:
    """Targets of values, and advantages, each [B * T]."""
    shape = tuple(batch["reward"].shape)
    value, next_value, log_ratio = (f.reshape(f.stop(x), shape) for x in (value, next_value, log_ratio))
    rho = f.clip(f.exp(log_ratio), 0.0, 1.0)
    error, decay = batch["reward"] + batch["discount"] * next_value - value, batch["discount"] * batch["goes_on"]
    gain, keep = rho * error, decay * rho
    carried, corrections = 0.0 * gain[:, 0], []
    for t in reversed(range(shape[1])):
        carried = gain[:, t] + keep[:, t] * carried
        corrections.append(carried)
    correction = f.stack(corrections[::-1], 1)
    following = f.concatenate([correction[:, 1:], 0.0 * correction[:, :1]], 1)
    advantage = rho * (error + decay * following)
    return tuple(f.stop(f.reshape(x, (-1,))) for x in (value + correction, advantage))
