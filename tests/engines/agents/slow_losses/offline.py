"""Actors and critics that learn from recorded steps."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium import spaces as gym

from slow_losses.actor_critics import ensemble_loss, sac, squashed_at, twin_deterministic
from slow_losses.given import Numbers, Row, average, best, huber, members, network, part_of, rows
from slow_losses.policies import policy_at


def edac(given: Numbers, batch: Any) -> Any:
    losses, metrics, errors = sac(given, batch)

    def similarity(row: Row) -> float:
        gradients = []
        for w in members(part_of(given.w, "critic")):
            q = lambda a, w=w: network(w, np.concatenate([row.o, a]))[0]  # noqa: E731
            steps = 1e-6 * np.eye(len(row.a))
            gradient = np.array([(q(row.a + e) - q(row.a - e)) / 2e-6 for e in steps])
            gradients.append(gradient / np.linalg.norm(gradient))
        n = len(gradients)
        return sum(gradients[i] @ gradients[j] for i in range(n) for j in range(n) if i != j) / (n - 1)

    metrics["gradient_similarity"] = average(rows(given, batch), lambda row: row.w * similarity(row))
    losses["critic"] += 0.5 * given.c.diversity * metrics["gradient_similarity"]
    return losses, metrics, errors


def cql(given: Numbers, batch: Any) -> Any:
    if isinstance(given.action, gym.Discrete):
        return discrete_cql(given, batch)
    found, size = rows(given, batch), len(batch.action[0])
    losses, metrics, errors = sac(given, batch, entropy_in_target=False)

    def gap(row: Row) -> float:
        """Appendix F, a mean over the critics: the log of an integral, estimated from samples of three sources."""
        noise, total = {name: x[row.number] for name, x in given.noise.items()}, 0.0
        drawn = [(*squashed_at(given, row).sample(e), True) for e in noise["here"]]
        drawn += [(*squashed_at(given, row, True).sample(e), True) for e in noise["after"]]
        square = np.sum(noise["uniform"] ** 2, 0)  # of two normal numbers: exponential, its exp uniform
        drawn += [(1 - 2 * np.exp(-0.5 * x), -size * math.log(2), False) for x in square]
        for i, q in enumerate(given.qs("critic", row.o, row.a)):
            weights = []
            for action, log_prob, own in drawn:
                value = given.qs("critic", row.o, action)[i]
                if own and "return" in row.extras:  # Cal-QL: not below the recorded return
                    value = max(value, row.extras["return"])
                weights.append(math.exp(value - log_prob))
            total += math.log(sum(weights) / len(weights)) - q
        return total / 2

    metrics["gap"] = average(found, lambda row: row.w * gap(row))
    return _conservative(given, losses, metrics, errors, 2)


def _conservative(given: Numbers, losses: dict, metrics: dict, errors: list, critics: int) -> Any:
    alpha = math.exp(given.w["weight.value"]) if "weight.value" in given.w else given.c.cql_alpha
    losses["critic"] += critics * alpha * metrics["gap"]
    if "weight.value" in given.w:
        losses["weight"], metrics["cql_alpha"] = alpha * (given.c.target_gap - metrics["gap"]), alpha
    return losses, metrics, errors


def discrete_cql(given: Numbers, batch: Any) -> Any:
    found = rows(given, batch)
    for row in found:
        q, online, target = (
            given.net("critic", row.o),
            given.net("critic", row.next_o),
            given.net("critic_target", row.next_o),
        )
        row.q = q[row.a]
        row.error = row.r + row.d * target[best(online, row.next_mask)] - row.q
        row.gap = math.log(sum(math.exp(q[i]) for i in range(len(q)) if row.mask is None or row.mask[i])) - row.q
    losses = {"critic": average(found, lambda row: row.w * huber(row.error))}
    metrics = {"q_value": average(found, lambda row: row.q), "gap": average(found, lambda row: row.w * row.gap)}
    return _conservative(given, losses, metrics, [row.error for row in found], 1)


def td3_bc(given: Numbers, batch: Any) -> Any:
    losses, metrics, errors, found = twin_deterministic(given, batch)
    size = average(found, lambda row: abs(row.own_qs[0]))
    error = lambda row: np.mean((row.own - row.a) ** 2)  # noqa: E731
    losses["actor"] = average(found, lambda row: row.w * (error(row) - given.c.alpha / size * row.own_qs[0]))
    metrics["action_error"] = average(found, error)
    return losses, metrics, errors


def rebrac(given: Numbers, batch: Any) -> Any:
    distance = lambda one, other: np.sum((one - other) ** 2)  # noqa: E731

    def penalty(row: Row, action: np.ndarray) -> float:
        following = np.asarray(batch.extras["next_action"][row.number], np.float64)
        return given.c.critic_penalty * row.extras["next_recorded"] * distance(action, following)

    losses, metrics, errors, found = twin_deterministic(given, batch, penalty)
    size = average(found, lambda row: abs(min(row.own_qs)))
    actor = lambda row: given.c.actor_penalty * distance(row.own, row.a) - min(row.own_qs) / size  # noqa: E731
    losses["actor"] = average(found, lambda row: row.w * actor(row))
    metrics["action_distance"] = average(found, lambda row: distance(row.own, row.a))
    return losses, metrics, errors


def awac(given: Numbers, batch: Any) -> Any:
    found = rows(given, batch)
    for row in found:
        noise = {name: x[row.number] for name, x in given.noise.items()}
        row.policy, row.qs = policy_at(given, "actor", row, bounded=True), given.qs("critic", row.o, row.a)
        following = policy_at(given, "actor", SimpleNamespace(o=row.next_o, mask=None), bounded=True)
        next_a = np.clip(following.sample(noise["next_action"])[0], -1, 1)
        row.target = row.r + row.d * min(given.qs("critic_target", row.next_o, next_a))
        value = min(given.qs("critic", row.o, np.clip(row.policy.sample(noise["action"])[0], -1, 1)))
        row.weight = min(math.exp(given.c.beta * (min(row.qs) - value)), 100.0)
    critic, q_value, errors = ensemble_loss(found)
    losses = {"critic": critic, "actor": average(found, lambda row: -row.w * row.weight * row.policy.log_prob(row.a))}
    metrics = {"q_value": q_value, "imitation_weight": average(found, lambda row: row.weight)}
    return losses, {**metrics, "policy_entropy": average(found, lambda row: row.policy.entropy())}, errors


def xql(given: Numbers, batch: Any) -> Any:
    def gumbel(x: float) -> float:
        z = min(x / given.c.gumbel_temperature, given.c.gumbel_clip)
        return math.exp(z) - z - 1

    return iql(given, batch, gumbel)


def iql(given: Numbers, batch: Any, regression: Any = None) -> Any:
    c, found = given.c, rows(given, batch)
    regression = regression or (lambda x: abs(c.expectile - (x < 0)) * x**2)

    def qs(part: str, row: Row) -> list[float]:
        if isinstance(given.action, gym.Box):
            return given.qs(part, row.o, row.a)
        return [q[row.a] for q in given.critics(part, row.o)]

    for row in found:
        row.value = given.value("state_value", row.o)
        row.target, row.qs = row.r + row.d * given.value("state_value", row.next_o), qs("critic", row)
        row.advantage = min(qs("critic_target", row)) - row.value
        row.weight = min(math.exp(c.beta * row.advantage), 100.0)
        row.log_prob = policy_at(given, "actor", row, bounded=True).log_prob(row.a)
    critic, q_value, errors = ensemble_loss(found)
    losses = {
        "state_value": average(found, lambda row: row.w * regression(row.advantage)),
        "critic": critic,
        "actor": average(found, lambda row: -row.w * row.weight * row.log_prob),
    }
    metrics = {"mean_value": average(found, lambda row: row.value), "q_value": q_value}
    return losses, {**metrics, "imitation_weight": average(found, lambda row: row.weight)}, errors
