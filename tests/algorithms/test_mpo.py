"""What MPO and V-MPO reweight, and by how much: the temperature, and the better half of a batch."""

import numpy as np
import pytest

import etude
from etude.algorithms import VMPOConfig
from etude.algorithms.v_mpo import better_half
from etude.base.errors import ConfigError
from etude.losses.policy import reweighted, temperature_dual


def test_the_temperature_of_the_least_dual_moves_the_distribution_by_the_bound():
    rng = np.random.default_rng(0)
    value, log_prior = rng.normal(size=7), np.log(rng.dirichlet(np.ones(7)))
    for bound in (0.01, 0.1, 1.0):
        candidates = np.exp(np.linspace(-4, 4, 4_001))
        dual = [temperature_dual(value, log_prior, temperature, bound) for temperature in candidates]
        share = reweighted(value, log_prior, candidates[np.argmin(dual)])
        assert np.sum(share * (np.log(share) - log_prior)) == pytest.approx(bound, rel=0.01)


def test_the_better_half_are_the_steps_of_the_larger_advantages_among_those_with_a_weight():
    advantage = np.float32([3, -1, 4, 1, 5])
    for weight, expected in (
        ([1, 1, 1, 1, 1], [1 / 3, 0, 1 / 3, 0, 1 / 3]),  # 3 of 5
        ([1, 1, 3, 1, 0], [0.25, 0, 0.75, 0, 0]),  # 2 of 4, by their weights
        ([0, 2, 0, 0, 0], [0, 1, 0, 0, 0]),
    ):
        np.testing.assert_allclose(np.exp(better_half(advantage, np.float32(weight))), expected, rtol=1e-6)
    np.testing.assert_allclose(np.exp(better_half(advantage[:2] * 0, np.ones(2, np.float32))), 0.5)  # ties
    assert np.isfinite(better_half(advantage, np.zeros(5, np.float32))).all()


def test_the_multipliers_rise_where_the_policy_moves_further_than_its_bounds():
    """Bounds that are never kept, and one of a temperature that is always."""
    with etude.Run(
        "mpo", "Pendulum-v1", network=etude.Mlp((8,)), batch_size=16, learning_starts=20, samples=4, seed=1,
        engine="torch", epsilon=2.0, epsilon_mean=1e-12, epsilon_std=1e3, temperature=5.0, multiplier=5.0,
    ) as run:  # fmt: skip
        run.train(60)
        found = {name: float(np.exp(x)) for name, x in run.engine.weights().items() if name.startswith("dual.")}
    assert found["dual.mean.value"] > 5.0 > found["dual.temperature.value"]
    assert found["dual.std.value"] < 5.0


def test_v_mpo_refuses_minibatches():
    with pytest.raises(ConfigError, match="better half"):
        VMPOConfig(minibatch_size=64)
