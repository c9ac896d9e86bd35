"""V-trace over a batch of unrolls, against a loop over one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from etude.algorithms import IMPALAConfig
from etude.algorithms.impala import corrected, flat
from etude.base.data import Batch

B, T = 3, 5
RNG = np.random.default_rng(0)
ENDED = np.array([[0, 0, 0, 0, 0], [0, 1, 0, 0, 2], [0, 0, 2, 1, 0]])  # 1: terminated, 2: truncated


def unrolls():
    normal = [RNG.standard_normal((B, T)).astype(np.float32) for _ in range(3)]
    discount = np.where(ENDED == 1, 0.0, 0.9).astype(np.float32)
    ones, none = np.ones((B, T), np.float32), np.zeros((B, T, 1), np.float32)
    extras = {"goes_on": (ENDED == 0).astype(np.float32)}
    batch = Batch(none, none, normal[0], discount, none, ones, np.zeros((B, T), np.int64), extras)
    return batch, normal[1], normal[2]


def by_loop(batch, value, following, ratio, config):
    """Espeholt et al. 2018, equation 1, written as the sum that it is."""
    target, advantage = np.zeros((B, T)), np.zeros((B, T))
    rho, c = np.minimum(ratio, config.rho_bar), config.trace_lambda * np.minimum(ratio, config.c_bar)
    error = batch.reward + batch.discount * following - value
    for b in range(B):
        for s in range(T):
            factor, total = 1.0, 0.0
            for t in range(s, T):
                total += factor * rho[b, t] * error[b, t]
                if ENDED[b, t]:
                    break
                factor *= batch.discount[b, t] * c[b, t]
            target[b, s] = value[b, s] + total
        for s in range(T):
            after = target[b, s + 1] - value[b, s + 1] if s + 1 < T and not ENDED[b, s] else 0.0
            advantage[b, s] = rho[b, s] * (error[b, s] + config.trace_lambda * batch.discount[b, s] * after)
    return target, advantage


@pytest.mark.parametrize("config", [IMPALAConfig(), IMPALAConfig(trace_lambda=0.8, rho_bar=1.2, c_bar=0.7)])
def test_targets_and_advantages_are_those_of_each_unroll_alone(config):
    batch, value, following = unrolls()
    ratio = np.exp(RNG.normal(0, 0.5, (B, T))).astype(np.float32)
    target, advantage = by_loop(batch, value, following, ratio, config)
    found = corrected(batch, flat(value), flat(following), flat(np.log(ratio)), config)
    np.testing.assert_allclose(found.target, target.reshape(-1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.advantage, advantage.reshape(-1), rtol=1e-4, atol=1e-5)


def test_of_the_present_policy_targets_are_the_rewards_up_to_the_end_and_the_value_there():
    batch, value, following = unrolls()
    following[:, :-1] = np.where(ENDED[:, :-1] == 0, value[:, 1:], following[:, :-1])  # they are of one network
    found = corrected(batch, flat(value), flat(following), np.zeros(B * T, np.float32), IMPALAConfig())
    expected = following[:, -1] * 0.0
    targets = np.zeros((B, T))
    for t in reversed(range(T)):
        last = (ENDED[:, t] != 0) | (t == T - 1)
        expected = batch.reward[:, t] + batch.discount[:, t] * np.where(last, following[:, t], expected)
        targets[:, t] = expected
    np.testing.assert_allclose(found.target, targets.reshape(-1), rtol=1e-4, atol=1e-5)
