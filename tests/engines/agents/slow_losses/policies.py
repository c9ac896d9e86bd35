"""Stochastic policies and critics of states."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from slow_losses.given import Normal, Numbers, Row, average, distribution, gru, network, part_of, rows


def policy_at(given: Numbers, part: str, row: Row, bounded: bool = False) -> Any:
    """The distribution of a policy, whose weights begin with `part.`, at one step."""
    if f"{part}.mean.dense0.weight" in given.w:  # noise that depends on the state
        z = network(part_of(given.w, f"{part}.features"), row.o, given.act, features=True)
        std = np.sqrt(np.exp(2 * given.w[f"{part}.log_std.value"]) @ z**2 + 1e-6)
        return Normal(given.net(f"{part}.mean", z), std, squashed=part == "actor")
    x = given.net(f"{part}.policy", row.o)
    return distribution(given.action, x, row.mask, given.w.get(f"{part}.log_std.value"), bounded)


def standardised(found: list, x: list[float]) -> list[float]:
    """With mean 0 and deviation 1, in which each row counts by its weight."""
    total = sum(row.w for row in found)
    mean = sum(row.w * own for row, own in zip(found, x, strict=True)) / total
    variance = sum(row.w * (own - mean) ** 2 for row, own in zip(found, x, strict=True)) / total
    return [(own - mean) / math.sqrt(variance) for own in x]


def clipped_surrogate(ratio: float, advantage: float, clip: float) -> float:
    return -min(ratio * advantage, min(max(ratio, 1 - clip), 1 + clip) * advantage)


def actor_critic(given: Numbers, found: list, policy_loss: Any, **more: Any) -> Any:
    """Losses and metrics of steps with a `policy` and an `error` of the critic. policy_loss: of each."""
    c, weighted = given.c, {"policy_loss": policy_loss, "value_loss": lambda row: row.error}
    weighted |= {"entropy": lambda row: row.policy.entropy(), **more}
    metrics = {name: average(found, lambda row, of=of: row.w * of(row)) for name, of in weighted.items()}
    loss = metrics["policy_loss"] + c.value_coefficient * metrics["value_loss"]
    return {"model": loss - c.entropy_coefficient * metrics["entropy"]}, metrics, None


def a2c(given: Numbers, batch: Any) -> Any:
    found = rows(given, batch)
    advantages = [float(row.extras["advantage"]) for row in found]
    for row, advantage in zip(
        found, standardised(found, advantages) if given.c.normalize_advantage else advantages, strict=True
    ):
        row.policy, row.advantage = policy_at(given, "model", row), advantage
        row.error = (given.value("model.critic", row.o) - row.extras["return"]) ** 2
    return actor_critic(given, found, lambda row: -row.policy.log_prob(row.a) * row.advantage)


def trpo(given: Numbers, batch: Any) -> Any:
    """Of a step of no length."""
    found = rows(given, batch)
    advantages = [float(row.extras["advantage"]) for row in found]
    for row, row.advantage in zip(found, standardised(found, advantages), strict=True):
        row.policy = policy_at(given, "actor", row)
        row.gain = math.exp(row.policy.log_prob(row.a) - row.extras["log_prob"]) * row.advantage
        row.error = (given.value("critic", row.o) - row.extras["return"]) ** 2
    losses = {
        "actor": average(found, lambda row: -row.w * row.gain),
        "critic": average(found, lambda row: row.w * row.error),
    }
    metrics = {"entropy": average(found, lambda row: row.w * row.policy.entropy())}
    return losses, metrics | {"actor_kl": 0.0}, None


def v_mpo(given: Numbers, batch: Any) -> Any:
    """Song et al. 2019, equations 3 to 5."""
    c, found = given.c, rows(given, batch)
    duals = {name.split(".")[1]: math.exp(x) for name, x in given.w.items() if name.startswith("dual.")}
    eta, metrics = duals["temperature"], {"entropy": 0.0}
    for row, row.advantage in zip(found, standardised(found, [row.extras["advantage"] for row in found]), strict=True):
        row.policy, row.before = policy_at(given, "actor", row), policy_at(given, "before", row)
    better = sorted(found, key=lambda row: row.advantage)[len(found) // 2 :]
    total = sum(row.w for row in better)
    psi = [row.w / total * math.exp(row.advantage / eta) for row in better]
    fit = -sum(x * row.policy.log_prob(row.a) for x, row in zip(psi, better, strict=True)) / sum(psi)
    dual = eta * (c.epsilon + math.log(sum(psi)))
    for name, multiplier in duals.items():
        if name == "temperature":
            continue

        def kl(row: Row, name: str = name) -> float:
            now, before = row.policy, row.before
            part = {"mean": lambda: Normal(now.mean, before.std), "std": lambda: Normal(before.mean, now.std)}
            return before.kl(part.get(name, lambda: now)())

        metrics[f"{name}_kl"] = divergence = average(found, lambda row, kl=kl: row.w * kl(row))
        metrics[f"{name}_multiplier"] = multiplier
        bound = c.epsilon_std if name == "std" else c.epsilon_mean
        fit += multiplier * divergence
        dual += multiplier * (average(found, lambda row: row.w) * bound - divergence)
    metrics |= {"entropy": average(found, lambda row: row.w * row.policy.entropy()), "temperature": eta}
    error = lambda row: (given.value("critic", row.o) - row.extras["return"]) ** 2  # noqa: E731
    return {"actor": fit, "dual": dual, "critic": average(found, lambda row: row.w * error(row))}, metrics, None


def ppo(given: Numbers, batch: Any, found: Any = None) -> Any:
    """found: rows that have their `policy` and `value` already."""
    c = given.c
    if found is None:
        found = rows(given, batch)
        for row in found:
            row.policy, row.value = policy_at(given, "model", row), given.value("model.critic", row.o)
    penalised, scale = getattr(c, "objective", "clip") == "penalty", 1.0
    if getattr(c, "normalize_value", False):
        mean, scale, _ = given.w["value_normaliser.moments"]
    advantages = [float(row.extras["advantage"]) for row in found]
    for row, advantage in zip(
        found, standardised(found, advantages) if c.normalize_advantage else advantages, strict=True
    ):
        row.ratio = math.exp(row.policy.log_prob(row.a) - row.extras["log_prob"])
        row.kl, row.advantage = row.ratio - 1 - math.log(row.ratio), advantage
        value, target, old = row.value, row.extras["return"] / scale, row.extras["value"] / scale
        if scale != 1.0:
            value = value + mean / scale
        row.error = (value - target) ** 2
        if getattr(c, "value_clip_range", None) is not None:
            near = old + min(max(value - old, -c.value_clip_range), c.value_clip_range)
            row.error = max(row.error, (near - target) ** 2)
    more = {"approx_kl": lambda row: row.kl}
    if not penalised:
        more["clip_fraction"] = lambda row: abs(row.ratio - 1) > c.clip_range
        return actor_critic(given, found, lambda row: clipped_surrogate(row.ratio, row.advantage, c.clip_range), **more)
    beta = float(given.w["objective.kl_coefficient"])
    losses, metrics, _ = actor_critic(given, found, lambda row: beta * row.kl - row.ratio * row.advantage, **more)
    moments = {
        "return_mean": average(found, lambda row: row.w * row.extras["return"]),
        "return_squared_deviation": average(found, lambda row: row.w * (row.extras["return"] - mean) ** 2),
    }
    return losses, {**metrics, "kl_coefficient": beta, **moments}, None


def recurrent_ppo(given: Numbers, batch: Any) -> Any:
    found, first = [], batch.extras["first"]
    for i in range(len(first)):
        start = np.asarray(batch.extras["recurrent_state"][i], np.float64)
        states = dict(zip(("policy", "critic"), np.split(start, 2), strict=True))
        for t in range(first.shape[1]):
            row = Row(given, batch, (i, t))
            for part, state in states.items():
                state = np.zeros_like(state) if first[i, t] else state
                x, states[part] = gru(part_of(given.w, f"model.{part}"), row.o, state, given.act)
                if part == "policy":
                    row.policy = distribution(given.action, x, row.mask, given.w.get("model.log_std.value"))
            row.value = float(x[0])
            found.append(row)
    return ppo(given, batch, found)


def reinforce(given: Numbers, batch: Any) -> Any:
    found, c = rows(given, batch), given.c
    for row in found:
        row.policy = policy_at(given, "model", row)
        row.value = given.value("model.critic", row.o) if c.baseline else 0.0
        row.error = (row.value - row.extras["return"]) ** 2
    advantages = [row.extras["return"] - row.value for row in found]
    for row, advantage in zip(
        found, standardised(found, advantages) if c.normalize_advantage else advantages, strict=True
    ):
        row.advantage = advantage
    losses, metrics, _ = actor_critic(given, found, lambda row: -row.policy.log_prob(row.a) * row.advantage)
    if not c.baseline:
        losses["model"] -= c.value_coefficient * metrics.pop("value_loss")
    return losses, metrics, None


def vtrace(given: Numbers, batch: Any, before: str) -> list:
    """Rows with V-trace targets `v` and advantages of the policy gradient, for the importance ratios of the policy
    whose weights begin with `before.`. Espeholt et al. 2018, equation 1, with c = lambda min(c_bar, ratio)."""
    c, found = given.c, []
    for i in range(len(batch.weight)):
        steps = [Row(given, batch, (i, t)) for t in range(batch.weight.shape[1])]
        for row in steps:
            row.policy, row.before = policy_at(given, "model", row), policy_at(given, before, row)
            row.value, row.next_value = given.value("model.critic", row.o), given.value("model.critic", row.next_o)
            row.log_ratio = row.before.log_prob(row.a) - row.extras["log_prob"]
            row.rho = min(c.rho_bar, math.exp(row.log_ratio))
            row.c = c.trace_lambda * min(c.c_bar, math.exp(row.log_ratio))
            row.delta = row.r + row.d * row.next_value - row.value
        for s, row in enumerate(steps):
            row.correction, product = 0.0, 1.0
            for later in steps[s:]:
                row.correction += product * later.rho * later.delta
                product *= later.d * later.c
                if not later.extras["goes_on"]:
                    break
        for row, following in zip(steps, [*steps[1:], None], strict=True):
            ahead = following.correction if following is not None and row.extras["goes_on"] else 0.0
            row.advantage = row.rho * (row.delta + row.d * c.trace_lambda * ahead)
            row.error = (row.value - (row.value + row.correction)) ** 2
        found += steps
    return found


def impala(given: Numbers, batch: Any) -> Any:
    found = vtrace(given, batch, "model")
    more = {
        "approx_kl": lambda row: math.exp(row.log_ratio) - 1 - row.log_ratio,
        "rho_clipped": lambda row: math.exp(row.log_ratio) > 1.001 * given.c.rho_bar,
    }
    losses, metrics, _ = actor_critic(given, found, lambda row: -row.policy.log_prob(row.a) * row.advantage)
    return losses, metrics | {name: average(found, of) for name, of in more.items()}, None


def appo(given: Numbers, batch: Any) -> Any:
    c, found = given.c, vtrace(given, batch, "before")
    advantages = [row.advantage for row in found]
    if c.normalize_advantage:
        advantages = list((np.array(advantages) - np.mean(advantages)) / np.std(advantages))
    for row, advantage in zip(found, advantages, strict=True):
        row.advantage = advantage
        now, before, acted = row.policy.log_prob(row.a), row.before.log_prob(row.a), row.extras["log_prob"]
        row.ratio = math.exp(now - acted) * min(math.exp(acted - before), 2.0)  # Luo et al. 2020
    loss = lambda row: clipped_surrogate(row.ratio, row.advantage, c.clip_range)  # noqa: E731
    losses, metrics, _ = actor_critic(given, found, loss, kl=lambda row: row.before.kl(row.policy))
    losses["model"] += c.kl_coefficient * metrics["kl"]
    metrics["clip_fraction"] = average(found, lambda row: abs(row.ratio - 1) > c.clip_range)
    return losses, metrics, None
