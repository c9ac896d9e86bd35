"""Samples that follow one another: each of the policy's distribution, alike from step to step of an episode."""

from __future__ import annotations

import numpy as np
import pytest

from etude.base.data import Choice
from etude.base.errors import ConfigError
from etude.base.spaces import Box
from etude.explore import CorrelatedSample, Sample
from etude.losses.distributions import TanhGaussian

COLUMNS, STEPS, SIZE = 2_000, 40, 2
BOX = Box(-1, 1, (SIZE,))


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def actions(explorer: CorrelatedSample, rng: np.random.Generator, begins: int = 0) -> np.ndarray:
    """[STEPS, COLUMNS, SIZE] before the squash, of mean 0.3 and deviation 1; at step `begins` all episodes start."""
    policy = TanhGaussian(np.full((COLUMNS, SIZE), 0.3, np.float32), np.zeros((COLUMNS, SIZE), np.float32))
    state, found = np.full((COLUMNS, explorer.state_size), np.nan), []
    for step in range(STEPS):
        if step == begins:
            state[:] = np.nan
        choice: Choice = explorer(policy, explorer.draw(rng, COLUMNS, BOX), step, state)
        assert choice.action.dtype == np.float32 and not choice.extras
        found.append(np.arctanh(np.clip(choice.action.astype(np.float64), -1 + 1e-7, 1 - 1e-7)))
    return np.stack(found)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.95, 1.0])
def test_each_sample_is_of_the_policy_and_k_steps_correlate_by_the_power_of_k(rho, rng):
    found = actions(CorrelatedSample(rho, SIZE), rng)
    for step in (0, 1, STEPS - 1):
        assert found[step].mean() == pytest.approx(0.3, abs=0.06)
        assert found[step].std() == pytest.approx(1.0, abs=0.05)
    for k in (1, 2, 10):
        assert np.corrcoef(found[5].ravel(), found[5 + k].ravel())[0, 1] == pytest.approx(rho**k, abs=0.06)


def test_an_episode_begins_anew(rng):
    found = actions(CorrelatedSample(0.99, SIZE), rng, begins=20)
    assert abs(np.corrcoef(found[19].ravel(), found[20].ravel())[0, 1]) < 0.06
    assert np.corrcoef(found[20].ravel(), found[21].ravel())[0, 1] > 0.9


def test_without_correlation_it_samples_as_sample_does(rng):
    policy = TanhGaussian(*(np.asarray(rng.normal(size=(7, SIZE)), np.float32) for _ in range(2)))
    explorer, state = CorrelatedSample(0.0, SIZE), np.full((7, SIZE), np.nan)
    for step in range(3):
        noise = explorer.draw(rng, 7, BOX)
        same = Sample(log_prob=False)(policy, noise, step, np.empty((7, 0)))
        np.testing.assert_array_equal(explorer(policy, noise, step, state).action, same.action)


@pytest.mark.parametrize(("rho", "size", "what"), [(1.5, 1, "correlation = 1.5"), (0.5, 0, "size = 0")])
def test_what_is_no_correlation_or_no_size_is_refused(rho, size, what):
    with pytest.raises(ConfigError, match=what):
        CorrelatedSample(rho, size)


def test_a_size_that_is_not_the_actions_is_refused(rng):
    policy = TanhGaussian(*np.zeros((2, 3, SIZE), np.float32))
    with pytest.raises(ConfigError, match=r"size = 3, the agent's actions have 2 numbers"):
        CorrelatedSample(0.5, 3)(policy, np.zeros((3, SIZE), np.float32), 0, np.zeros((3, 3)))
