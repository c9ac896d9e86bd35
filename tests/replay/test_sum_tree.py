"""Sums in a tree: found where a plain running total says, and never a value of 0."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invariants import check_tree

from etude.base.errors import ConfigError
from etude.replay.selectors import SumTree


def tree_of(*values: float) -> SumTree:
    tree = SumTree(len(values))
    tree.fill(np.array(values, np.float64))
    return tree


def test_masses_are_found_by_hand():
    tree = tree_of(1, 2, 0, 4, 0.5)
    assert tree.total == 7.5
    assert tree.find(np.array([0, 0.99, 1, 2.99, 3, 6.99, 7, 7.49])).tolist() == [0, 0, 1, 1, 3, 3, 4, 4]
    assert tree.values(np.array([3, 0])).tolist() == [4, 1]


def test_a_mass_on_the_border_of_two_values_belongs_to_the_later_one():
    tree = tree_of(*[1.0] * 5000)
    everywhere = np.arange(5000)
    np.testing.assert_array_equal(tree.find(everywhere * 1.0), everywhere)
    np.testing.assert_array_equal(tree.find(everywhere + 0.999), everywhere)


@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([1, 2, 3, 17, 1000, 1024, 1025, 9000]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_changes_at_random_leave_exact_sums_and_the_values_of_a_plain_array(seed, size):
    rng = np.random.default_rng(seed)
    tree, plain = SumTree(size), np.zeros(size)
    for _ in range(8):
        m = int(rng.integers(1, rng.choice([3, 40, 2 * size + 2])))
        leaves = rng.integers(0, size, m)
        values = rng.exponential(size=m) ** rng.choice([1, 8]) * (rng.random(m) < 0.7)
        tree.set(leaves, values)
        for leaf, value in zip(leaves.tolist(), values.tolist(), strict=True):
            plain[leaf] = value
        check_tree(tree)
        np.testing.assert_array_equal(tree.values(np.arange(size)), plain)
        if plain.any():
            assert_found(tree, plain, rng)


def assert_found(tree: SumTree, plain: np.ndarray, rng: np.random.Generator) -> None:
    """Where the plain running total passes the masses, up to the rounding of either sum."""
    ends = np.cumsum(plain)
    masses = np.sort(rng.random(50)) * ends[-1]
    leaves = tree.find(masses)
    slack = 1e-9 * ends[-1]
    assert (plain[leaves] > 0).all()
    assert ((ends - plain)[leaves] <= masses + slack).all() and (masses <= ends[leaves] + slack).all()


@pytest.mark.parametrize("size", [5, 64, 4000, 70_000])
def test_no_rounding_finds_a_value_of_zero(size):
    rng = np.random.default_rng(size)
    for density in (0.001, 0.1, 0.5):
        values = np.where(rng.random(size) < density, 10.0 ** rng.integers(-18, 3, size), 0.0) * rng.random(size)
        values[rng.integers(size)] = 0.1
        tree = tree_of(*values)
        ends = np.cumsum(values)
        edges = np.concatenate([ends, np.nextafter(ends, np.inf), np.nextafter(ends, 0), [0.0, tree.total]])
        masses = np.concatenate([edges, [np.nextafter(tree.total, np.inf), 1.001 * tree.total]])
        assert (tree.values(tree.find(masses)) > 0).all()


def test_of_a_leaf_that_is_named_twice_the_last_value_counts():
    tree = SumTree(5000)
    leaves = np.array([7, 4000, 7, 7, 4000, 9])
    tree.set(leaves, np.array([1.0, 2, 3, 4, 5, 6]))
    assert tree.values(np.array([7, 4000, 9])).tolist() == [4, 5, 6]
    assert tree.total == 15
    check_tree(tree)


def test_a_million_changes_do_not_drift():
    rng, tree = np.random.default_rng(0), SumTree(3000)
    for _ in range(1000):
        tree.set(rng.integers(0, 3000, 1000), 10.0 ** rng.integers(-9, 9, 1000))
    tree.set(np.arange(3000), np.full(3000, 0.25))
    assert tree.total == 750.0


@pytest.mark.parametrize(
    ("leaves", "values", "words"),
    [
        ([0, 10], [1.0, 1.0], "from 0 to 10; expected numbers from 0 to 9"),
        ([-1], [1.0], "from -1"),
        ([0, 3], [1.0, np.nan], "finite numbers"),
        ([3], [np.inf], "finite numbers"),
        ([3], [-1e-9], "at least 0"),
    ],
)
def test_what_is_no_value_or_no_leaf_is_refused_and_changes_nothing(leaves, values, words):
    tree = tree_of(*range(10))
    before = tree.nodes.copy()
    with pytest.raises(ConfigError, match=words):
        tree.set(np.array(leaves), np.array(values))
    np.testing.assert_array_equal(tree.nodes, before)


def test_nothing_is_found_where_there_is_nothing():
    with pytest.raises(ConfigError, match="every value is 0"):
        SumTree(4).find(np.array([0.0]))
    with pytest.raises(ConfigError, match="at least 1"):
        SumTree(0)


def test_a_node_that_is_no_sum_is_noticed():
    tree = tree_of(1, 2, 3)
    tree.nodes[2] += 1e-12
    with pytest.raises(AssertionError):
        check_tree(tree)
