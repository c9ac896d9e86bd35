"""Every loss refuses arrays of other shapes than it documents, in NumPy; `test_losses_check_shapes` on the engines."""

from __future__ import annotations

import numpy as np
import pytest
from wrong_shapes import fitting_arguments, public_losses, wrong_arguments

from etude.base.errors import ConfigError
from etude.losses import value
from etude.losses.distributions import Categorical
from etude.losses.masks import masked

LOSSES = public_losses()
RNG = np.random.default_rng(0)


def with_policy(arguments):
    """The policy of some losses is a distribution of these logits."""
    return {name: Categorical(x) if name == "policy" else x for name, x in arguments.items()}


@pytest.mark.parametrize("name", LOSSES)
def test_arguments_of_the_documented_shapes_are_taken(name):
    LOSSES[name](**with_policy(fitting_arguments(LOSSES[name], RNG)))


@pytest.mark.parametrize("name", LOSSES)
def test_an_argument_of_another_shape_is_refused_by_name(name):
    for argument, arguments in wrong_arguments(LOSSES[name], RNG):
        with pytest.raises(ConfigError, match=f"{name}: .* has shape"):
            LOSSES[name](**with_policy(arguments))
        assert argument in LOSSES[name].shapes


def test_a_column_of_values_is_not_broadcast_against_a_row_of_rewards():
    row = np.ones(3, np.float32)
    with pytest.raises(ConfigError, match=r"td: value has shape \[3, 1\]; expected \[\*E, \*B\] with .*\*B = \[3\]"):
        value.td(row[:, None], row, row, row)


def test_values_of_several_critics_share_rewards_and_those_with_a_mask_have_the_shape_of_the_values():
    row = np.ones(3, np.float32)
    assert value.td(np.ones((2, 3), np.float32), row, row, row).shape == (2, 3)
    next_q = masked(np.ones((2, 4), np.float32), np.ones((2, 4)))
    with pytest.raises(ConfigError, match="q_learning: next_q has shape"):
        value.q_learning(np.ones((3, 4), np.float32), np.zeros(3, int), row, row, next_q)
