"""Losses of critics of actions, and of actors that follow them."""

from __future__ import annotations

import math
from typing import Any

from cases import AGENTS, POLICY_COST, REACH, TARGET_NOISE

HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


def sac(f: Any, params: Any, target_params: Any, batch: Any) -> Any:
    actor, critic, log_temperature = params["actor"][0], params["critic"][0], params["temperature"][0]
    temperature = f.stop(f.exp(log_temperature))
    with f.no_gradient():
        next_action, next_log_prob = squashed(f, *gaussian(f, actor, batch["next_observation"]), batch["next_noise"])
        next_q = f.min_first(q_of(f, target_params["critic"][0], batch["next_observation"], next_action))
        target = f.stop(batch["reward"] + batch["discount"] * (next_q - temperature * next_log_prob))
    error = target - q_of(f, critic, batch["observation"], batch["action"])
    return {
        "critic": lambda: 0.5 * f.mean(batch["weight"] * f.sum(error**2, 0)),
        **soft_losses(f, params, batch, *gaussian(f, actor, batch["observation"])),
    }, f.stop(f.mean(error, 0))


def discrete_sac(f: Any, params: Any, target_params: Any, batch: Any) -> Any:
    actor, critic, log_temperature = params["actor"][0], params["critic"][0], params["temperature"][0]
    temperature = f.stop(f.exp(log_temperature))
    with f.no_gradient():
        logits = f.mlp(actor, batch["next_observation"])
        next_q = f.min_first(f.mlp(target_params["critic"][0], batch["next_observation"]))
        surprise = next_q - temperature * f.log_softmax(logits)
        target = f.stop(batch["reward"] + batch["discount"] * f.sum(f.softmax(logits) * surprise, -1))
    q = f.mlp(critic, batch["observation"])
    error = [target - f.take(q[i], batch["action"]) for i in (0, 1)]
    logits = f.mlp(actor, batch["observation"])
    probability, log_probability = f.softmax(logits), f.log_softmax(logits)
    value = f.sum(probability * (f.stop(f.min_first(q)) - temperature * log_probability), -1)
    surplus = f.stop(f.sum(probability * log_probability, -1) + 0.6 * math.log(logits.shape[-1]))
    return {
        "critic": lambda: 0.5 * f.mean(batch["weight"] * (error[0] ** 2 + error[1] ** 2)),
        "actor": lambda: -f.mean(batch["weight"] * value),
        "temperature": lambda: -log_temperature * f.mean(batch["weight"] * surplus),
    }, f.stop(0.5 * (error[0] + error[1]))


def ddpg(f: Any, params: Any, target_params: Any, batch: Any) -> Any:
    actor, critic = params["actor"][0], params["critic"][0]
    with f.no_gradient():
        next_action = f.tanh(f.mlp(target_params["actor"][0], batch["next_observation"]))
        next_q = q_of(f, target_params["critic"][0], batch["next_observation"], next_action)
        target = f.stop(batch["reward"] + batch["discount"] * next_q)
    error = target - q_of(f, critic, batch["observation"], batch["action"])
    chosen = f.tanh(f.mlp(actor, batch["observation"]))
    return {
        "critic": lambda: 0.5 * f.mean(batch["weight"] * error**2),
        "actor": lambda: -f.mean(batch["weight"] * q_of(f, critic, batch["observation"], chosen)),
    }, f.stop(error)


def td3(f: Any, params: Any, target_params: Any, batch: Any) -> Any:
    critic_loss, error = twin_loss(f, params, target_params, batch)

    def actor_loss() -> Any:
        action = f.tanh(f.mlp(params["actor"][0], batch["observation"]))
        return -f.mean(batch["weight"] * first_q(f, params["critic"][0], batch["observation"], action))

    return {"critic": critic_loss, "actor": actor_loss}, error


def maddpg(f: Any, params: Any, target_params: Any, batch: Any) -> Any:
    n, choices = len(AGENTS), params["a.actor"][0][-1][0].shape[-1]
    here = 0.0 * batch["reward"] + 1.0
    seen, following = (f.reshape(batch[name], (here.shape[0], -1)) for name in ("observation", "next_observation"))
    taken = [f.one_hot(batch["action"][:, i], choices) for i in range(n)]

    def relaxed(x: Any, gumbel: Any) -> Any:
        soft = f.softmax(x + gumbel)
        return soft + f.stop(f.one_hot(f.argmax(soft), choices) - soft)

    with f.no_gradient():
        later = [
            f.mlp(target_params[f"{agent}.actor"][0], batch["next_observation"][:, i]) for i, agent in enumerate(AGENTS)
        ]
        later = [relaxed(x, batch["next_gumbel"][:, i]) for i, x in enumerate(later)]
        after = f.concatenate([following, *later, here], -1)
    now, losses, errors = f.concatenate([seen, *taken, here], -1), {}, 0.0
    for i, agent in enumerate(AGENTS):
        critic = params[f"{agent}.critic"][0]
        with f.no_gradient():
            next_q = f.mlp(target_params[f"{agent}.critic"][0], after)[0, :, 0]
            target = f.stop(batch["reward"][:, i] + batch["discount"][:, i] * next_q)
        error = target - f.mlp(critic, now)[0, :, 0]
        x = f.mlp(params[f"{agent}.actor"][0], batch["observation"][:, i])
        chosen = [*taken[:i], relaxed(x, batch["gumbel"][:, i]), *taken[i + 1 :]]
        judged = f.mlp(critic, f.concatenate([seen, *chosen, here], -1))[0, :, 0]
        actor = POLICY_COST * f.mean(x**2, -1) - judged
        losses[f"{agent}.critic"] = lambda error=error: 0.5 * f.mean(batch["weight"] * error**2)
        losses[f"{agent}.actor"] = lambda actor=actor: f.mean(batch["weight"] * actor)
        errors = errors + f.stop(f.abs(error)) / n
    return losses, errors


def gaussian(f: Any, actor: Any, observation: Any) -> Any:
    """Mean and log deviation before tanh."""
    mean, log_std = f.halves(f.mlp(actor, observation))
    return mean, f.clip(log_std, -20.0, 2.0)


def squashed(f: Any, mean: Any, log_std: Any, noise: Any) -> Any:
    """An action and its log probability."""
    raw = mean + f.exp(log_std) * noise
    squash = 2 * (math.log(2) - raw - f.softplus(-2 * raw))
    return f.tanh(raw), f.sum(-0.5 * noise**2 - log_std - HALF_LOG_TAU - squash, -1)


def q_of(f: Any, critic: Any, observation: Any, action: Any) -> Any:
    return f.mlp(critic, f.concatenate([observation, action], -1))[..., 0]


def first_q(f: Any, critics: Any, observation: Any, action: Any) -> Any:
    """What the first of stacked critics says."""
    return q_of(f, [[w[0], b[0]] for w, b in critics], observation, action)


def soft_losses(f: Any, params: Any, batch: Any, mean: Any, log_std: Any) -> Any:
    """SAC's losses of actor and temperature."""
    critic, log_temperature = params["critic"][0], params["temperature"][0]
    action, log_prob = squashed(f, mean, log_std, batch["noise"])
    lower = f.min_first(q_of(f, critic, batch["observation"], action))
    surplus = f.stop(log_prob - action.shape[-1])
    temperature = f.stop(f.exp(log_temperature))
    return {
        "actor": lambda: f.mean(batch["weight"] * (temperature * log_prob - lower)),
        "temperature": lambda: -log_temperature * f.mean(batch["weight"] * surplus),
    }


def twin_loss(f: Any, params: Any, target_params: Any, batch: Any) -> Any:
    """TD3's loss of the critics, and the error."""
    with f.no_gradient():
        noise = f.clip(TARGET_NOISE * batch["target_noise"], -REACH, REACH)
        action = f.tanh(f.mlp(target_params["actor"][0], batch["next_observation"]))
        action = f.clip(action + noise, -1.0, 1.0)
        next_q = f.min_first(q_of(f, target_params["critic"][0], batch["next_observation"], action))
        target = f.stop(batch["reward"] + batch["discount"] * next_q)
    error = target - q_of(f, params["critic"][0], batch["observation"], batch["action"])
    return lambda: 0.5 * f.mean(batch["weight"] * f.sum(error**2, 0)), f.stop(f.mean(error, 0))
