"""100 random inputs of each loss with what RLax, d3rlpy and Stable-Baselines3 contrib make of them (the scripts beside
the arrays in `oracle/` wrote them), and how etude computes the same: in NumPy and on every engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from etude import ops
from etude.losses import distributional, offline, returns, soft, value
from etude.losses.distributions import Categorical
from etude.losses.value import td

TEMPERATURE = math.exp(-0.7)


def _vtrace(lambda_, rho_bar, advantage_bar):
    def both(value, reward, discount, next_value, log_ratio, goes_on):
        error = td(value, reward, discount, next_value)
        correction = returns.vtrace(error, discount, goes_on, log_ratio, lambda_, rho_bar, 1.0)
        advantage = returns.vtrace_advantages(error, correction, discount, goes_on, log_ratio, lambda_, advantage_bar)
        return ops.stack([correction, advantage])

    return both


def _retrace(q, target_q, next_q, logits, next_logits, action, behaviour, reward, discount, goes_on):
    target_q_of_action = ops.take_last(target_q, action)
    error = td(target_q_of_action, reward, discount, ops.sum(ops.softmax(next_logits) * next_q, -1))
    log_ratio = Categorical(logits).log_prob(action) - ops.log(behaviour)
    return target_q_of_action + returns.retrace(error, discount, goes_on, log_ratio, 0.9) - ops.take_last(q, action)


def _categorical_q_learning(logits, action, reward, discount, next_logits, chooser):
    support = ops.linspace(-2.0, 2.0, 9, logits)
    return distributional.categorical_q_learning(logits, action, reward, discount, next_logits, chooser, support)


def _quantile_regression(width):
    return lambda quantile, fraction, target: distributional.quantile_regression(quantile, target, fraction, width)


def _quantile_huber(quantile, target):
    return distributional.quantile_regression(quantile, target, ops.linspace(1 / 16, 15 / 16, 8, quantile), 1.0)


def _cql_sampled_gap(policy_q, next_q, random_q, policy_log_prob, next_log_prob, q):
    uniform = ops.ones_like(policy_log_prob) * 3 * math.log(0.5)
    sampled = ops.concatenate([policy_q, next_q, random_q])
    log_prob = ops.concatenate([policy_log_prob, next_log_prob, uniform])
    # d3rlpy leaves out the number of samples, which changes no gradient: its gap is larger by a constant.
    return offline.cql_sampled_gap(sampled, log_prob, q) + math.log(15)


FUNCTIONS: dict[str, dict[str, Callable[..., Any]]] = {
    "rlax": {
        "vtrace": _vtrace(1.0, 1.0, 1.0),
        "vtrace mixed": _vtrace(0.8, 1.5, 1.2),
        "retrace": _retrace,
        "project": lambda atoms, weight: distributional.project(atoms, weight, ops.linspace(-2.0, 2.0, 9, atoms)),
        "categorical_q_learning": _categorical_q_learning,
        "quantile_regression 0.0": _quantile_regression(0.0),
        "quantile_regression 0.7": _quantile_regression(0.7),
        "quantile_regression 1.0": _quantile_regression(1.0),
        "expectile": lambda prediction, target: offline.expectile(target - prediction, 0.8),
        "rescaled": value.rescaled,
        "unscaled": value.unscaled,
    },
    "d3rlpy": {
        "expectile": lambda q, value: offline.expectile(q - value, 0.7),
        "exponential_weight": lambda q, value: offline.exponential_weight(q - value, 3.0, 20.0),
        "cql_sampled_gap": _cql_sampled_gap,
        "cql_gap": offline.cql_gap,
        "mean td3_bc": lambda q, action, data_action: ops.mean(offline.td3_bc(q, action, data_action, 2.5)),
        "soft_value": lambda q, logits: soft.soft_value(q, Categorical(logits), TEMPERATURE),
        "soft_discrete_actor": lambda q, logits: soft.soft_discrete_actor(q, Categorical(logits), TEMPERATURE),
        "quantile_regression": _quantile_huber,
    },
    "sb3_contrib": {"quantile_regression": _quantile_huber},
}


def _read(library: str) -> dict[str, dict[str, np.ndarray]]:
    cases: dict[str, dict[str, np.ndarray]] = {}
    with np.load(Path(__file__).parent / "oracle" / f"{library}.npz") as file:
        for name in file.files:
            case, _, part = name.rpartition("/")
            cases.setdefault(case, {})[part] = file[name]
    return cases


CASES = [(library, case, arrays) for library in FUNCTIONS for case, arrays in _read(library).items()]
NAMES = [f"{library}: {case}" for library, case, _ in CASES]


def evaluate(case: tuple[str, str, dict[str, np.ndarray]], to_array: Callable[[np.ndarray], Any]) -> Any:
    """What etude makes of a case's inputs."""
    library, name, arrays = case
    inputs = {part: to_array(array) for part, array in arrays.items() if part != "expected"}
    return FUNCTIONS[library][name](**inputs)


def check(case: tuple[str, str, dict[str, np.ndarray]], result: np.ndarray) -> None:
    """Compare with what the library made of them, in float32."""
    np.testing.assert_allclose(result, case[2]["expected"], rtol=2e-5, atol=2e-5)
