"""Selection of parents."""

import math

import numpy as np
import pytest

from etude.base.errors import ConfigError
from etude.tuning.evolution import Tournament


def test_the_best_member_keeps_its_place_and_good_ones_have_more_children():
    histories = [[1.0], [5.0], [3.0], [9.0], [2.0]]
    rng = np.random.default_rng(0)
    chosen = [Tournament(size=2)(histories, rng) for _ in range(400)]
    assert all(parents[0] == 3 and len(parents) == 5 for parents in chosen)
    counts = np.bincount(np.concatenate([parents[1:] for parents in chosen]), minlength=5) / 1600
    expected = np.array([1, 7, 5, 9, 3]) / 25  # with rank r of n from the bottom: (2 r + 1) / n^2
    np.testing.assert_allclose(counts, expected, atol=0.05)


def test_without_elitism_every_place_is_drawn_for():
    rng = np.random.default_rng(0)
    first = {Tournament(size=1, elitism=False)([[1.0], [2.0]], rng)[0] for _ in range(30)}
    assert first == {0, 1}


def test_fitness_is_the_mean_of_the_last_values():
    histories = [[0.0, 10.0], [9.0, 9.0], [100.0, 0.0, 0.0]]
    assert Tournament(over_last=1).best(histories) == 0
    assert Tournament(over_last=2).best(histories) == 1
    assert Tournament(over_last=3).best(histories) == 2


def test_members_without_fitness_are_replaced_by_others():
    histories = [[math.nan], [1.0], []]
    rng = np.random.default_rng(0)
    tournament = Tournament(size=3)
    assert tournament.fitness(histories) == [-math.inf, 1.0, -math.inf]
    assert all(1 in tournament(histories, rng) for _ in range(20))
    wins = [parent for _ in range(200) for parent in tournament(histories, rng)]
    assert wins.count(1) > 0.6 * len(wins)


def test_ties_go_to_the_first_and_the_same_seed_gives_the_same_parents():
    assert Tournament().best([[2.0], [2.0]]) == 0
    histories = [[float(i)] for i in range(6)]
    assert Tournament()(histories, np.random.default_rng(3)) == Tournament()(histories, np.random.default_rng(3))


@pytest.mark.parametrize("given", [{"size": 0}, {"over_last": 0}, {"size": 1.5}])
def test_bad_settings_raise_one_error(given):
    with pytest.raises(ConfigError, match="Tournament"):
        Tournament(**given)
