"""Losses that learn from recorded steps."""

from __future__ import annotations

import math
from typing import Any

from cases import ALPHA, BETA, CQL_ACTIONS, EXPECTILE

from bare_losses.actor_critics import HALF_LOG_TAU, first_q, gaussian, q_of, soft_losses, squashed, twin_loss


def bc(f: Any, params: Any, target_params: Any, batch: Any) -> Any:
    log_prob = f.take(f.log_softmax(f.mlp(params["actor"][0], batch["observation"])), batch["action"])
    return {"actor": lambda: -f.mean(batch["weight"] * log_prob)}, None


def marwil(f: Any, params: Any, target_params: Any, batch: Any) -> Any:
    with f.no_gradient():
        next_value = f.mlp(params["critic"][0], batch["next_observation"])[:, 0]
        target = f.stop(batch["reward"] + batch["discount"] * next_value)
    advantage = target - f.mlp(params["critic"][0], batch["observation"])[:, 0]
    held = f.stop(advantage)
    share = f.exp(held / (f.mean(held**2) ** 0.5 + 1e-8))
    log_prob = f.take(f.log_softmax(f.mlp(params["actor"][0], batch["observation"])), batch["action"])
    return {
        "actor": lambda: -f.mean(batch["weight"] * share * log_prob),
        "critic": lambda: 0.5 * f.mean(batch["weight"] * advantage**2),
    }, held


def iql(f: Any, params: Any, target_params: Any, batch: Any) -> Any:
    actor, log_std = params["actor"]
    value = f.mlp(params["state_value"][0], batch["observation"])[:, 0]
    with f.no_gradient():
        held = f.min_first(q_of(f, target_params["critic"][0], batch["observation"], batch["action"]))
        next_value = f.mlp(params["state_value"][0], batch["next_observation"])[:, 0]
        target = f.stop(batch["reward"] + batch["discount"] * next_value)
        share = f.stop(f.exp(f.clip(BETA * (held - value), -1e9, math.log(100.0))))
    above = held - value
    error = target - q_of(f, params["critic"][0], batch["observation"], batch["action"])
    bounded = f.clip(log_std, -5.0, 2.0)
    z = (batch["action"] - f.tanh(f.mlp(actor, batch["observation"]))) / f.exp(bounded)
    log_prob = f.sum(-0.5 * z**2 - bounded - HALF_LOG_TAU, -1)
    expectile = f.where(above < 0, 1 - EXPECTILE, EXPECTILE) * above**2
    return {
        "state_value": lambda: f.mean(batch["weight"] * expectile),
        "critic": lambda: 0.5 * f.mean(batch["weight"] * f.sum(error**2, 0)),
        "actor": lambda: -f.mean(batch["weight"] * share * log_prob),
    }, f.stop(f.mean(error, 0))


def cql(f: Any, params: Any, target_params: Any, batch: Any) -> Any:
    actor, critic = params["actor"][0], params["critic"][0]
    here = gaussian(f, actor, batch["observation"])
    with f.no_gradient():
        after = gaussian(f, actor, batch["next_observation"])
        next_action, _ = squashed(f, *after, batch["next_noise"])
        next_q = f.min_first(q_of(f, target_params["critic"][0], batch["next_observation"], next_action))
        target = f.stop(batch["reward"] + batch["discount"] * next_q)
        drawn = [
            squashed(f, m[:, None], s[:, None], batch[name]) for (m, s), name in ((here, "here"), (after, "after"))
        ]
        size = batch["action"].shape[-1]
        drawn.append((batch["uniform"], 0.0 * drawn[0][1] - size * math.log(2.0)))
        actions, log_density = (f.stop(f.concatenate(part, 1)) for part in zip(*drawn, strict=True))
    q = q_of(f, critic, batch["observation"], batch["action"])
    error = target - q
    many = 3 * CQL_ACTIONS
    repeated = f.repeat(batch["observation"], many)
    judged = f.reshape(q_of(f, critic, repeated, f.reshape(actions, (-1, size))), (2, -1, many))
    gap = f.mean(f.logsumexp(judged - log_density) - math.log(many) - q, 0)
    return {
        "critic": lambda: f.mean(batch["weight"] * (0.5 * f.sum(error**2, 0) + 2 * gap)),
        **soft_losses(f, params, batch, *here),
    }, f.stop(f.mean(error, 0))


def td3_bc(f: Any, params: Any, target_params: Any, batch: Any) -> Any:
    critic_loss, error = twin_loss(f, params, target_params, batch)

    def actor_loss() -> Any:
        action = f.tanh(f.mlp(params["actor"][0], batch["observation"]))
        q = first_q(f, params["critic"][0], batch["observation"], action)
        scale = f.stop(ALPHA / (f.mean(f.abs(q)) + 1e-8))
        return f.mean(batch["weight"] * (f.mean((action - batch["action"]) ** 2, -1) - scale * q))

    return {"critic": critic_loss, "actor": actor_loss}, error
