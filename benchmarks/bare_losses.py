"""The losses of the bare loops, each written once. `f` holds the operations of a framework, named as in `bare_jax.py`.

A loss returns what trains each group of weights, as functions, so that one that is not due costs nothing, and the
error of each step for priorities. `params` and `lagged` hold lists of networks by group.
"""

from __future__ import annotations

import math
from typing import Any

from cases import (
    AGENTS,
    ALPHA,
    ATOMS,
    BETA,
    CLIP,
    CQL_ACTIONS,
    ENTROPY,
    EXPECTILE,
    HIGHEST,
    LOWEST,
    POLICY_COST,
    QUANTILES,
    REACH,
    TARGET_NOISE,
    VALUE_COST,
)

HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


def dqn(f: Any, params: Any, lagged: Any, batch: Any) -> Any:
    q = f.take(f.mlp(params["q"][0], batch["observation"]), batch["action"])
    with f.no_gradient():
        next_q = f.max_last(f.mlp(lagged["q"][0], batch["next_observation"]))
        target = f.stop(batch["reward"] + batch["discount"] * next_q)
    return {"q": lambda: f.mean(batch["weight"] * f.huber(q - target))}, f.stop(target - q)


def c51(f: Any, params: Any, lagged: Any, batch: Any) -> Any:
    shape = (-1, params["q"][0][-1][0].shape[-1] // ATOMS, ATOMS)
    support = f.linspace(LOWEST, HIGHEST, ATOMS)
    logits = f.row(f.reshape(f.mlp(params["q"][0], batch["observation"]), shape), batch["action"])
    with f.no_gradient():
        probabilities = f.softmax(f.reshape(f.mlp(lagged["q"][0], batch["next_observation"]), shape))
        best = f.row(probabilities, f.argmax(f.sum(probabilities * support, -1)))
        atoms = f.clip(batch["reward"][:, None] + batch["discount"][:, None] * support, LOWEST, HIGHEST)
        target = f.stop(f.project(atoms, best, (HIGHEST - LOWEST) / (ATOMS - 1), LOWEST))
    error = -f.sum(target * f.log_softmax(logits), -1)
    return {"q": lambda: f.mean(batch["weight"] * error)}, f.stop(error)


def qr_dqn(f: Any, params: Any, lagged: Any, batch: Any) -> Any:
    shape = (-1, params["q"][0][-1][0].shape[-1] // QUANTILES, QUANTILES)
    quantile = f.row(f.reshape(f.mlp(params["q"][0], batch["observation"]), shape), batch["action"])
    with f.no_gradient():
        following = f.reshape(f.mlp(lagged["q"][0], batch["next_observation"]), shape)
        best = f.row(following, f.argmax(f.mean(following, -1)))
        target = f.stop(batch["reward"][:, None] + batch["discount"][:, None] * best)
    fraction = f.linspace(0.5 / QUANTILES, 1 - 0.5 / QUANTILES, QUANTILES)[:, None]
    difference = target[:, None, :] - quantile[:, :, None]
    share = f.where(difference < 0, 1 - fraction, fraction)
    loss = f.sum(f.mean(share * f.huber(difference), -1), -1)
    error = f.stop(f.mean(target, -1) - f.mean(quantile, -1))
    return {"q": lambda: f.mean(batch["weight"] * loss)}, error


def discrete_sac(f: Any, params: Any, lagged: Any, batch: Any) -> Any:
    actor, critic, log_temperature = params["actor"][0], params["critic"][0], params["temperature"][0]
    temperature = f.stop(f.exp(log_temperature))
    with f.no_gradient():
        logits = f.mlp(actor, batch["next_observation"])
        next_q = f.min_first(f.mlp(lagged["critic"][0], batch["next_observation"]))
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


def ppo(f: Any, params: Any, lagged: Any, batch: Any) -> Any:
    actor, critic, log_std = params["model"]
    z = (batch["action"] - f.mlp(actor, batch["observation"], f.tanh)) / f.exp(log_std)
    log_prob = f.sum(-0.5 * z**2 - log_std - HALF_LOG_TAU, -1)
    ratio, advantage = f.exp(log_prob - batch["log_prob"]), _standard(f, batch["advantage"])
    policy = -f.minimum(ratio * advantage, f.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage)
    value = f.mlp(critic, batch["observation"], f.tanh)[:, 0]
    entropy = f.sum(log_std + 0.5 + HALF_LOG_TAU, -1)
    total = policy + VALUE_COST * (value - batch["return"]) ** 2 - ENTROPY * entropy
    return {"model": lambda: f.mean(batch["weight"] * total)}, None


def a2c(f: Any, params: Any, lagged: Any, batch: Any) -> Any:
    log_prob, entropy, value = _actor_critic(f, params["model"], batch["observation"], batch["action"])
    total = VALUE_COST * (value - batch["return"]) ** 2 - log_prob * batch["advantage"] - ENTROPY * entropy
    return {"model": lambda: f.mean(batch["weight"] * total)}, None


def impala(f: Any, params: Any, lagged: Any, batch: Any) -> Any:
    flat = _flat(f, batch)
    log_prob, entropy, value = _actor_critic(f, params["model"], flat["observation"], flat["action"])
    with f.no_gradient():
        next_value = f.mlp(params["model"][1], flat["next_observation"], f.tanh)[:, 0]
        target, advantage = _vtrace(f, batch, value, next_value, log_prob - flat["log_prob"])
    total = VALUE_COST * (value - target) ** 2 - log_prob * advantage - ENTROPY * entropy
    return {"model": lambda: f.mean(flat["weight"] * total)}, None


def appo(f: Any, params: Any, lagged: Any, batch: Any) -> Any:
    flat = _flat(f, batch)
    log_prob, entropy, value = _actor_critic(f, params["model"], flat["observation"], flat["action"])
    with f.no_gradient():
        before = f.take(f.log_softmax(f.mlp(lagged["model"][0], flat["observation"], f.tanh)), flat["action"])
        next_value = f.mlp(params["model"][1], flat["next_observation"], f.tanh)[:, 0]
        target, advantage = _vtrace(f, batch, value, next_value, before - flat["log_prob"])
        advantage = _standard(f, advantage)
        bounded = f.clip(flat["log_prob"] - before, -1e9, math.log(2.0))
    ratio = f.exp(log_prob - flat["log_prob"] + bounded)
    policy = -f.minimum(ratio * advantage, f.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage)
    total = policy + VALUE_COST * (value - target) ** 2 - ENTROPY * entropy
    return {"model": lambda: f.mean(flat["weight"] * total)}, None


def sac(f: Any, params: Any, lagged: Any, batch: Any) -> Any:
    actor, critic, log_temperature = params["actor"][0], params["critic"][0], params["temperature"][0]
    temperature = f.stop(f.exp(log_temperature))
    with f.no_gradient():
        next_action, next_log_prob = _squashed(f, *_policy(f, actor, batch["next_observation"]), batch["next_noise"])
        next_q = f.min_first(_judged(f, lagged["critic"][0], batch["next_observation"], next_action))
        target = f.stop(batch["reward"] + batch["discount"] * (next_q - temperature * next_log_prob))
    error = target - _judged(f, critic, batch["observation"], batch["action"])
    return {
        "critic": lambda: 0.5 * f.mean(batch["weight"] * f.sum(error**2, 0)),
        **_soft(f, params, batch, *_policy(f, actor, batch["observation"])),
    }, f.stop(f.mean(error, 0))


def ddpg(f: Any, params: Any, lagged: Any, batch: Any) -> Any:
    actor, critic = params["actor"][0], params["critic"][0]
    with f.no_gradient():
        next_action = f.tanh(f.mlp(lagged["actor"][0], batch["next_observation"]))
        next_q = _judged(f, lagged["critic"][0], batch["next_observation"], next_action)
        target = f.stop(batch["reward"] + batch["discount"] * next_q)
    error = target - _judged(f, critic, batch["observation"], batch["action"])
    chosen = f.tanh(f.mlp(actor, batch["observation"]))
    return {
        "critic": lambda: 0.5 * f.mean(batch["weight"] * error**2),
        "actor": lambda: -f.mean(batch["weight"] * _judged(f, critic, batch["observation"], chosen)),
    }, f.stop(error)


def td3(f: Any, params: Any, lagged: Any, batch: Any) -> Any:
    critic_loss, error = _twin(f, params, lagged, batch)

    def actor_loss() -> Any:
        action = f.tanh(f.mlp(params["actor"][0], batch["observation"]))
        return -f.mean(batch["weight"] * _first(f, params["critic"][0], batch["observation"], action))

    return {"critic": critic_loss, "actor": actor_loss}, error


def td3_bc(f: Any, params: Any, lagged: Any, batch: Any) -> Any:
    critic_loss, error = _twin(f, params, lagged, batch)

    def actor_loss() -> Any:
        action = f.tanh(f.mlp(params["actor"][0], batch["observation"]))
        q = _first(f, params["critic"][0], batch["observation"], action)
        scale = f.stop(ALPHA / (f.mean(f.abs(q)) + 1e-8))
        return f.mean(batch["weight"] * (f.mean((action - batch["action"]) ** 2, -1) - scale * q))

    return {"critic": critic_loss, "actor": actor_loss}, error


def bc(f: Any, params: Any, lagged: Any, batch: Any) -> Any:
    log_prob = f.take(f.log_softmax(f.mlp(params["actor"][0], batch["observation"])), batch["action"])
    return {"actor": lambda: -f.mean(batch["weight"] * log_prob)}, None


def marwil(f: Any, params: Any, lagged: Any, batch: Any) -> Any:
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


def iql(f: Any, params: Any, lagged: Any, batch: Any) -> Any:
    actor, log_std = params["actor"]
    value = f.mlp(params["state_value"][0], batch["observation"])[:, 0]
    with f.no_gradient():
        held = f.min_first(_judged(f, lagged["critic"][0], batch["observation"], batch["action"]))
        next_value = f.mlp(params["state_value"][0], batch["next_observation"])[:, 0]
        target = f.stop(batch["reward"] + batch["discount"] * next_value)
        share = f.stop(f.exp(f.clip(BETA * (held - value), -1e9, math.log(100.0))))
    above = held - value
    error = target - _judged(f, params["critic"][0], batch["observation"], batch["action"])
    bounded = f.clip(log_std, -5.0, 2.0)
    z = (batch["action"] - f.tanh(f.mlp(actor, batch["observation"]))) / f.exp(bounded)
    log_prob = f.sum(-0.5 * z**2 - bounded - HALF_LOG_TAU, -1)
    expectile = f.where(above < 0, 1 - EXPECTILE, EXPECTILE) * above**2
    return {
        "state_value": lambda: f.mean(batch["weight"] * expectile),
        "critic": lambda: 0.5 * f.mean(batch["weight"] * f.sum(error**2, 0)),
        "actor": lambda: -f.mean(batch["weight"] * share * log_prob),
    }, f.stop(f.mean(error, 0))


def cql(f: Any, params: Any, lagged: Any, batch: Any) -> Any:
    actor, critic = params["actor"][0], params["critic"][0]
    here = _policy(f, actor, batch["observation"])
    with f.no_gradient():
        after = _policy(f, actor, batch["next_observation"])
        next_action, _ = _squashed(f, *after, batch["next_noise"])
        next_q = f.min_first(_judged(f, lagged["critic"][0], batch["next_observation"], next_action))
        target = f.stop(batch["reward"] + batch["discount"] * next_q)
        drawn = [
            _squashed(f, m[:, None], s[:, None], batch[name]) for (m, s), name in ((here, "here"), (after, "after"))
        ]
        size = batch["action"].shape[-1]
        drawn.append((batch["uniform"], 0.0 * drawn[0][1] - size * math.log(2.0)))
        actions, log_density = (f.stop(f.concatenate(part, 1)) for part in zip(*drawn, strict=True))
    q = _judged(f, critic, batch["observation"], batch["action"])
    error = target - q
    many = 3 * CQL_ACTIONS
    repeated = f.repeat(batch["observation"], many)
    judged = f.reshape(_judged(f, critic, repeated, f.reshape(actions, (-1, size))), (2, -1, many))
    gap = f.mean(f.logsumexp(judged - log_density) - math.log(many) - q, 0)
    return {
        "critic": lambda: f.mean(batch["weight"] * (0.5 * f.sum(error**2, 0) + 2 * gap)),
        **_soft(f, params, batch, *here),
    }, f.stop(f.mean(error, 0))


def maddpg(f: Any, params: Any, lagged: Any, batch: Any) -> Any:
    n, choices = len(AGENTS), params["a.actor"][0][-1][0].shape[-1]
    here = 0.0 * batch["reward"] + 1.0
    seen, following = (f.reshape(batch[name], (here.shape[0], -1)) for name in ("observation", "next_observation"))
    taken = [f.one_hot(batch["action"][:, i], choices) for i in range(n)]

    def relaxed(x: Any, gumbel: Any) -> Any:
        soft = f.softmax(x + gumbel)
        return soft + f.stop(f.one_hot(f.argmax(soft), choices) - soft)

    with f.no_gradient():
        later = [f.mlp(lagged[f"{agent}.actor"][0], batch["next_observation"][:, i]) for i, agent in enumerate(AGENTS)]
        later = [relaxed(x, batch["next_gumbel"][:, i]) for i, x in enumerate(later)]
        after = f.concatenate([following, *later, here], -1)
    now, losses, errors = f.concatenate([seen, *taken, here], -1), {}, 0.0
    for i, agent in enumerate(AGENTS):
        critic = params[f"{agent}.critic"][0]
        with f.no_gradient():
            next_q = f.mlp(lagged[f"{agent}.critic"][0], after)[0, :, 0]
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


def _standard(f: Any, x: Any) -> Any:
    return (x - f.mean(x)) / (f.std(x) + 1e-8)


def _actor_critic(f: Any, networks: Any, observation: Any, action: Any) -> Any:
    """Log probability of the actions, entropy, value; each [N]."""
    log_probabilities = f.log_softmax(f.mlp(networks[0], observation, f.tanh))
    entropy = -f.sum(f.exp(log_probabilities) * log_probabilities, -1)
    return f.take(log_probabilities, action), entropy, f.mlp(networks[1], observation, f.tanh)[:, 0]


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


def _policy(f: Any, actor: Any, observation: Any) -> Any:
    """Mean and log deviation before tanh."""
    mean, log_std = f.halves(f.mlp(actor, observation))
    return mean, f.clip(log_std, -20.0, 2.0)


def _squashed(f: Any, mean: Any, log_std: Any, noise: Any) -> Any:
    """An action and its log probability."""
    raw = mean + f.exp(log_std) * noise
    squash = 2 * (math.log(2) - raw - f.softplus(-2 * raw))
    return f.tanh(raw), f.sum(-0.5 * noise**2 - log_std - HALF_LOG_TAU - squash, -1)


def _judged(f: Any, critic: Any, observation: Any, action: Any) -> Any:
    return f.mlp(critic, f.concatenate([observation, action], -1))[..., 0]


def _first(f: Any, critics: Any, observation: Any, action: Any) -> Any:
    """What the first of stacked critics says."""
    return _judged(f, [[w[0], b[0]] for w, b in critics], observation, action)


def _soft(f: Any, params: Any, batch: Any, mean: Any, log_std: Any) -> Any:
    """SAC's losses of actor and temperature."""
    critic, log_temperature = params["critic"][0], params["temperature"][0]
    action, log_prob = _squashed(f, mean, log_std, batch["noise"])
    lower = f.min_first(_judged(f, critic, batch["observation"], action))
    surplus = f.stop(log_prob - action.shape[-1])
    temperature = f.stop(f.exp(log_temperature))
    return {
        "actor": lambda: f.mean(batch["weight"] * (temperature * log_prob - lower)),
        "temperature": lambda: -log_temperature * f.mean(batch["weight"] * surplus),
    }


def _twin(f: Any, params: Any, lagged: Any, batch: Any) -> Any:
    """TD3's loss of the critics, and the error."""
    with f.no_gradient():
        noise = f.clip(TARGET_NOISE * batch["target_noise"], -REACH, REACH)
        action = f.tanh(f.mlp(lagged["actor"][0], batch["next_observation"]))
        action = f.clip(action + noise, -1.0, 1.0)
        next_q = f.min_first(_judged(f, lagged["critic"][0], batch["next_observation"], action))
        target = f.stop(batch["reward"] + batch["discount"] * next_q)
    error = target - _judged(f, params["critic"][0], batch["observation"], batch["action"])
    return lambda: 0.5 * f.mean(batch["weight"] * f.sum(error**2, 0)), f.stop(f.mean(error, 0))


LOSSES = {
    loss.__name__: loss
    for loss in (
        dqn,
        c51,
        qr_dqn,
        discrete_sac,
        ppo,
        a2c,
        impala,
        appo,
        sac,
        ddpg,
        td3,
        td3_bc,
        bc,
        marwil,
        iql,
        cql,
        maddpg,
    )
}
