"""The rows of golden.json, and how each is computed: the same in NumPy and on every engine.

The numbers of temporal differences, returns, advantages, PPO, policy gradients, entropy, C51, quantile regression,
expectiles, V-trace and Retrace are those of RLax's tests, the advantages with more digits than there; those of
distributions of actions and all others are worked by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from etude import ops
from etude.losses import adversarial, distributional, offline, policy, preferences, returns, soft, value
from etude.losses.distributions import Bernoullis, Categorical, Gaussian, TanhGaussian

ROWS = json.loads(Path(__file__).with_name("golden.json").read_text())


def _mean_ppo_clip(logits, old_logits, action, advantage, clip):
    log_ratio = Categorical(logits).log_prob(action) - Categorical(old_logits).log_prob(action)
    return ops.mean(policy.ppo_clip(log_ratio, advantage, clip))


def _mean_policy_gradient(logits, action, advantage, weight):
    return ops.mean(weight * policy.policy_gradient(Categorical(logits).log_prob(action), advantage))


def _q_error(q, action, reward, discount, next_value):
    return value.td(ops.take_last(q, action), reward, discount, next_value)


def _persistent_q(q, action, reward, discount, next_q, persistence):
    best, same = ops.max(next_q, -1), ops.take_last(next_q, action)
    return _q_error(q, action, reward, discount, (1 - persistence) * best + persistence * same)


def _lambda_error(present, reward, discount, next_value, lambda_):
    return returns.lambda_returns(reward, discount, next_value, lambda_) - present


def _vtrace(old_logits, logits, action, reward, discount, value_, next_value, lambda_):
    log_ratio = Categorical(logits).log_prob(action) - Categorical(old_logits).log_prob(action)
    error = value.td(value_, reward, discount, next_value)
    return returns.vtrace(error, discount, ops.ones_like(discount), log_ratio, lambda_, 1.0, 1.0)


def _retrace_loss(q, target_q, next_q, action, reward, discount, next_probability, probability, behaviour, lambda_):
    target_q_of_action = ops.take_last(target_q, action)
    error = value.td(target_q_of_action, reward, discount, ops.sum(next_probability * next_q, -1))
    log_ratio = ops.log(ops.take_last(probability, action) / behaviour)
    correction = returns.retrace(error, discount, ops.ones_like(discount), log_ratio, lambda_)
    return value.squared(target_q_of_action + correction - ops.take_last(q, action))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "td": value.td,
    "q_learning": value.q_learning,
    "double_q": value.double_q,
    "sarsa": lambda q, action, reward, discount, next_q, next_action: _q_error(
        q, action, reward, discount, ops.take_last(next_q, next_action)
    ),
    "expected_sarsa": lambda q, action, reward, discount, next_q, probability: _q_error(
        q, action, reward, discount, ops.sum(probability * next_q, -1)
    ),
    "persistent_q": _persistent_q,
    "td_lambda": _lambda_error,
    "q_lambda": lambda q, action, reward, discount, next_q, lambda_: _lambda_error(
        ops.take_last(q, action), reward, discount, ops.max(next_q, -1), lambda_
    ),
    "sarsa_lambda": lambda q, action, reward, discount, next_q, next_action, lambda_: _lambda_error(
        ops.take_last(q, action), reward, discount, ops.take_last(next_q, next_action), lambda_
    ),
    "vtrace": _vtrace,
    "retrace_loss": _retrace_loss,
    "project": distributional.project,
    "two_hot": lambda x, support: distributional.project(x[:, None], ops.ones_like(x[:, None]), support),
    "expected_values": distributional.expected_values,
    "categorical_td": distributional.categorical_td,
    "categorical_q_learning": distributional.categorical_q_learning,
    "quantile_regression": distributional.quantile_regression,
    "quantile_error": distributional.quantile_error,
    "expectile": offline.expectile,
    "ilql": offline.ilql,
    "exponential_weight": offline.exponential_weight,
    "marwil": offline.marwil,
    "running_square": offline.running_square,
    "action_error": offline.action_error,
    "negative_log_likelihood": offline.negative_log_likelihood,
    "td3_bc": offline.td3_bc,
    "squared_distance": offline.squared_distance,
    "rebrac_actor": offline.rebrac_actor,
    "gradient_similarity": offline.gradient_similarity,
    "cql_gap": offline.cql_gap,
    "cql_sampled_gap": offline.cql_sampled_gap,
    "ppo_penalty": policy.ppo_penalty,
    "deterministic_policy_gradient": policy.deterministic_policy_gradient,
    "smoothed": policy.smoothed,
    "reweighted": policy.reweighted,
    "temperature_dual": policy.temperature_dual,
    "multiplier_dual": policy.multiplier_dual,
    "soft_value": lambda q, logits, temperature: soft.soft_value(q, Categorical(logits), temperature),
    "soft_discrete_actor": lambda q, logits, temperature: soft.soft_discrete_actor(q, Categorical(logits), temperature),
    "soft_temperature": soft.soft_temperature,
    "rescaled": value.rescaled,
    "unscaled": value.unscaled,
    "sequence_priority": value.sequence_priority,
    "binary_cross_entropy": distributional.binary_cross_entropy,
    "gail_reward": adversarial.gail_reward,
    "log_reward": adversarial.log_reward,
    "log_odds_reward": adversarial.log_odds_reward,
    "airl_logits": adversarial.airl_logits,
    "bradley_terry": preferences.bradley_terry,
    "dpo": preferences.dpo,
    "reference_kl": preferences.reference_kl,
    "group_advantages": preferences.group_advantages,
    "mean_advantages": lambda returns, size: preferences.group_advantages(returns, size, False),
    "token_advantages": preferences.token_advantages,
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
    """What a row's function gives for its inputs; [T, B] where the row's inputs are written with time after batch."""
    arrays = {name: np.array(values) for name, values in row.get("inputs", {}).items()}
    arrays |= {name: np.array(values).swapaxes(0, 1) for name, values in row.get("time_last", {}).items()}
    choices = {"action", "next_action"} if {"q", "logits"} & set(arrays) else set()
    inputs = {
        name: to_array(x.astype(np.int32 if name in choices and x.dtype.kind == "i" else np.float32))
        for name, x in arrays.items()
    }
    return FUNCTIONS[row["function"]](**inputs, **row.get("number", {}))


def check(row: dict, result: np.ndarray) -> None:
    """Compare a result with the row's expected numbers, which have at least six digits."""
    expected = np.array(row["expected"])
    np.testing.assert_allclose(result.T if "time_last" in row else result, expected, rtol=1e-5, atol=2e-6)
