"""Policies that imitate recorded steps, and discriminators."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium import spaces as gym

from slow_losses.given import Numbers, average, half_square, rows, sigmoid, vector
from slow_losses.policies import policy_at, ppo


def bc(given: Numbers, batch: Any) -> Any:
    found = rows(given, batch)
    if given.c.squared_error:
        error = lambda row: np.mean((np.tanh(given.net("actor.policy", row.o)) - row.a) ** 2)  # noqa: E731
        return {"actor": average(found, lambda row: row.w * error(row))}, {}, None
    for row in found:
        row.policy = policy_at(given, "actor", row, bounded=True)
    loss = average(found, lambda row: -row.w * row.policy.log_prob(row.a))
    return {"actor": loss}, {"policy_entropy": average(found, lambda row: row.policy.entropy())}, None


def marwil(given: Numbers, batch: Any) -> Any:
    found = rows(given, batch)
    for row in found:
        row.policy, row.value = policy_at(given, "actor", row, bounded=True), given.value("critic", row.o)
        row.advantage = row.r + row.d * given.value("critic", row.next_o) - row.value
    typical = math.sqrt(average(found, lambda row: row.advantage**2))
    weight = lambda row: math.exp(given.c.beta * row.advantage / typical)  # noqa: E731
    losses = {
        "actor": average(found, lambda row: -row.w * weight(row) * row.policy.log_prob(row.a)),
        "critic": average(found, lambda row: row.w * half_square(row.advantage)),
    }
    metrics = {"policy_entropy": average(found, lambda row: row.policy.entropy())}
    metrics |= {"mean_value": average(found, lambda row: row.value), "advantage_size": typical}
    return losses, metrics, [row.advantage for row in found]


def gail(given: Numbers, batch: Any) -> Any:
    return adversarial(given, batch, lambda seen, row: _judge(given, seen, row))


def _executed(given: Numbers, a: Any) -> np.ndarray:
    """An action as the discriminator reads it: as the environment executes it."""
    return np.clip(a, -1, 1) if isinstance(given.action, gym.Box) else vector(given.action, a, {})


def _judge(given: Numbers, seen: np.ndarray, row: Any) -> float:
    return given.value("discriminator", np.concatenate([seen, _executed(given, row.a)]))


def airl(given: Numbers, batch: Any) -> Any:
    def logit(seen: np.ndarray, row: Any) -> float:
        """f - log pi with f = g + discount h(next) - h. Fu et al. 2018, section 6."""
        judged = seen if given.c.state_only else np.concatenate([seen, _executed(given, row.a)])
        g, h = given.value("discriminator.reward", judged), given.value("discriminator.potential", seen)
        f = g + row.d * given.value("discriminator.potential", row.next_o) - h
        return f - policy_at(given, "model", row).log_prob(row.a)

    return adversarial(given, batch, logit)


def adversarial(given: Numbers, batch: Any, logit: Any) -> Any:
    losses, metrics, _ = ppo(given, batch)
    expert = batch.extras["expert"]
    shown = SimpleNamespace(**{**vars(batch), **expert, "extras": {}})
    own, theirs = ([logit(row.o, row) for row in rows(given, steps)] for steps in (batch, shown))
    # Cross entropy: D is the probability that a step is the expert's.
    entropy = -sum(math.log(sigmoid(x)) for x in theirs) - sum(math.log(1 - sigmoid(x)) for x in own)
    losses["discriminator"] = entropy / (len(own) + len(theirs))
    metrics["discriminator_reward"] = float(np.mean(batch.reward))
    metrics["expert_accuracy"] = np.mean([x > 0 for x in theirs])
    metrics["policy_accuracy"] = np.mean([x < 0 for x in own])
    return losses, metrics, None
