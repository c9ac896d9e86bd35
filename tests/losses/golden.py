"""The rows of golden.json, and how each is computed: the same in NumPy and on every engine.

The numbers of temporal differences, returns, advantages, PPO, policy gradients and entropy are those of RLax's tests,
the advantages with more digits than there; those of distributions are worked by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from etude import ops
from etude.losses import policy, returns, soft, value
from etude.losses.distributions import Bernoullis, Categorical, Gaussian, TanhGaussian

ROWS = json.loads(Path(__file__).with_name("golden.json").read_text())


def _mean_ppo_clip(logits, old_logits, action, advantage, clip):
    log_ratio = Categorical(logits).log_prob(action) - Categorical(old_logits).log_prob(action)
    return ops.mean(policy.ppo_clip(log_ratio, advantage, clip))


def _mean_policy_gradient(logits, action, advantage, weight):
    return ops.mean(weight * policy.policy_gradient(Categorical(logits).log_prob(action), advantage))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "td": value.td,
    "q_learning": value.q_learning,
    "double_q": value.double_q,
    "huber": value.huber,
    "lambda_returns": returns.lambda_returns,
    "discounted_returns": returns.discounted_returns,
    "n_step_returns": returns.n_step_returns,
    "advantages": returns.advantages,
    "soft_target": soft.soft_target,
    "mean_ppo_clip": _mean_ppo_clip,
    "mean_policy_gradient": _mean_policy_gradient,
    "mean_entropy_loss": lambda logits, weight: -ops.mean(weight * Categorical(logits).entropy()),
    "categorical_kl": lambda logits, other: Categorical(logits).kl(Categorical(other)),
    "gaussian_kl": lambda mean, log_std, other_mean, other_log_std: Gaussian(mean, log_std).kl(
        Gaussian(other_mean, other_log_std)
    ),
    "gaussian_log_prob": lambda mean, log_std, action: Gaussian(mean, log_std).log_prob(action),
    "gaussian_entropy": lambda mean, log_std: Gaussian(mean, log_std).entropy(),
    "tanh_gaussian_log_prob": lambda mean, log_std, action: TanhGaussian(mean, log_std).log_prob(action),
    "bernoullis_log_prob": lambda logits, action: Bernoullis(logits).log_prob(action),
    "bernoullis_entropy": lambda logits: Bernoullis(logits).entropy(),
}


def evaluate(row: dict, to_array: Callable[[np.ndarray], Any]) -> Any:
    """What a row's function gives for its inputs; [T, B] where the row's inputs are written with time last."""
    arrays = {name: np.array(values) for name, values in row.get("inputs", {}).items()}
    arrays |= {name: np.array(values).T for name, values in row.get("time_last", {}).items()}
    choices = {"action"} if {"q", "logits"} & set(arrays) else set()
    inputs = {name: to_array(x.astype(np.int32 if name in choices else np.float32)) for name, x in arrays.items()}
    return FUNCTIONS[row["function"]](**inputs, **row.get("number", {}))


def check(row: dict, result: np.ndarray) -> None:
    """Compare a result with the row's expected numbers, which have at least six digits."""
    expected = np.array(row["expected"])
    np.testing.assert_allclose(result.T if "time_last" in row else result, expected, rtol=1e-5, atol=2e-6)
