"""The rescaling of values and its inverse, and priorities of sequences."""

import numpy as np
import pytest

from etude.losses.value import rescaled, sequence_priority, unscaled

VALUES = np.concatenate([sign * np.logspace(-6, 6, 200) for sign in (-1, 1)]).astype(np.float32)


@pytest.mark.parametrize("epsilon", [1e-3, 1e-2])
def test_values_come_back_from_the_other_scale_in_float32(epsilon):
    np.testing.assert_allclose(unscaled(rescaled(VALUES, epsilon), epsilon), VALUES, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(rescaled(unscaled(VALUES, epsilon), epsilon), VALUES, rtol=1e-5, atol=1e-6)


def test_the_scale_is_that_of_the_paper_and_keeps_signs():
    x = VALUES.astype(np.float64)
    np.testing.assert_allclose(rescaled(x), np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 1e-3 * x, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(rescaled(VALUES), rescaled(x), rtol=1e-6)
    assert rescaled(np.float32([0.0])) == 0
    assert unscaled(np.float32([0.0])) == 0
    assert (np.diff(rescaled(np.sort(VALUES))) > 0).all()


def test_a_priority_mixes_the_largest_and_the_mean_error_of_what_counts():
    error, mask = np.float32([[1, -5, 3, 100], [0, 0, 2, 2]]), np.float32([[1, 1, 1, 0], [1, 1, 1, 1]])
    np.testing.assert_allclose(sequence_priority(error, mask, 0.9), [0.9 * 5 + 0.1 * 3, 0.9 * 2 + 0.1 * 1])
    np.testing.assert_allclose(sequence_priority(error, mask, 0.0), [3, 1])
    np.testing.assert_allclose(sequence_priority(error, 0 * mask, 0.9), 0)
