"""Environments that contribute in turn: in this process and in workers, with which weights, and after failures."""

from functools import partial

import labelled
import numpy as np
import pytest
from labelled import Adder, Faulty, Labelled, Noisy

from etude.base.data import WorkerGradients
from etude.rollout import (
    AsyncGradients,
    LocalActorLearners,
    PoolOptions,
    RemoteActorLearners,
    split_environments,
)

LENGTH, COUNT = 4, 3


class Telling(Adder):
    """Contributes its weight, the sum of the rewards and the labels of what it saw."""

    def gradients(self, steps):
        assert steps.shape == (LENGTH, 1)
        told = {"weight": np.full(2, self.weight, np.float32), "reward": np.float32([steps.reward.sum()])}
        labels = steps.observation[:, 0].reshape(-1)
        seen = {f"seen{i}": float(label) for i, label in enumerate(labels)}
        return WorkerGradients(LENGTH, steps.episodes, told, {"loss": float(self.weight)}, seen, int(self.weight))


LIKE = {"weight": np.float32([0.0, 0.0]), "reward": np.float32([0.0])}


class Weighted(Telling):
    """What is loaded are two numbers, as what is sent back."""

    def load(self, weights):
        self.weight = weights["weight"][0]


def here(make=Labelled, **_):
    return AsyncGradients(LocalActorLearners(make(range(COUNT)), Weighted(), Noisy(), 1), COUNT, LENGTH)


def elsewhere(make=Labelled, workers=2, **options):
    parts = split_environments(COUNT, workers)
    return AsyncGradients(
        RemoteActorLearners(make, Weighted, Noisy(), 1, LIKE, parts, PoolOptions(**options)), COUNT, LENGTH
    )


def load(turns, weight):
    turns.load({"weight": np.float32([weight, weight]), "reward": np.float32([0.0])})


def take(turns, times, start=0):
    """Contributions, with new weights after each: the number of those that were taken."""
    found = []
    for i in range(start, start + times):
        load(turns, i)
        found.append(turns.collect(LENGTH, i * LENGTH))
    return found


def plain(found):
    return [
        (len(each), each.episodes, {name: value.tolist() for name, value in each.gradients.items()}, each.metrics)
        for each in found
    ]


@pytest.fixture(scope="module")
def expected():
    turns = here()
    found = take(turns, 9)
    turns.close()
    return found


def test_each_environment_starts_again_with_the_weights_after_its_own_contribution(expected):
    assert [int(each.metrics["seen0"]) for each in expected] == [0, 1, 2] * 3, "in the order of their numbers"
    # The first three start together with weights 0; the one whose turn was i starts again with the weights i + 1.
    assert [each.gradient_steps for each in expected] == [0, 0, 0, 1, 2, 3, 4, 5, 6]
    assert [each.gradients["weight"].tolist() for each in expected[3:5]] == [[1.0, 1.0], [2.0, 2.0]]
    # Environment 0: episodes of 2, 3 and 4 steps; a rollout goes on where the last one stopped.
    labels = [[expected[turn].metrics[f"seen{3 * t + i}"] for i in (1, 2)] for turn in (0, 3) for t in range(LENGTH)]
    assert labels == [[0, 0], [0, 1], [1, 0], [1, 1], [1, 2], [2, 0], [2, 1], [2, 2]]
    assert [(end.episode, end.length) for end in expected[0].episodes] == [(0, 2)]


def test_any_number_of_workers_contributes_the_same(expected):
    for workers in (1, 2, 3):
        turns = elsewhere(workers=workers)
        assert plain(take(turns, 9)) == plain(expected)
        turns.close()


@pytest.mark.parametrize("first, second", [(here, elsewhere), (elsewhere, here)])
def test_what_waits_for_its_turn_is_saved_and_goes_on_in_other_hands(first, second, expected):
    one, other = first(), second()
    begun = take(one, 4)
    load(one, 4)
    state = one.state()
    assert len(state["worker_gradients"]) == COUNT - 1
    one.close()
    load(other, 4)
    assert other.restore(state) == []
    assert plain(begun + take(other, 5, 4)) == plain(expected)
    other.close()


def test_saving_changes_nothing_of_what_comes(expected):
    turns = elsewhere()
    found = []
    for i in range(9):
        found += take(turns, 1, i)
        turns.state()
    assert plain(found) == plain(expected)
    turns.close()


def test_a_part_of_a_rollout_counts_steps_and_its_gradients_come_with_the_last_of_them(expected):
    turns = here()
    load(turns, 0)
    part, rest = turns.collect(3, 0), turns.collect(1, 3)
    assert (len(part), part.gradients, part.episodes) == (3, {}, ())
    assert len(rest) == 1
    assert plain([rest])[0][1:] == plain(expected)[0][1:]
    turns.close()


@pytest.mark.parametrize("fault", [labelled.kill_itself, labelled.sleep_for_ever])
def test_a_worker_that_dies_or_hangs_is_replaced_and_the_others_contribute_what_they_would_have(
    fault, tmp_path, expected
):
    make = partial(Faulty, fault=fault, flag=str(tmp_path / "done"), after=6)
    turns = elsewhere(make, deadline=1.0)
    found = take(turns, 9)
    (warning,) = turns.warnings()
    assert "Worker 0 (environments 0 to 1)" in warning and "replaced" in warning
    assert turns.warnings() == []
    assert [each.gradient_steps for each in found] == [each.gradient_steps for each in expected], (
        "with the weights that it had"
    )
    assert plain(found[2::3]) == plain(expected[2::3]), "environment 2 is in the other worker"
    labels = [found[turn].metrics[f"seen{3 * t + 1}"] for turn in (0, 3, 6) for t in range(LENGTH)]
    assert labels == sorted(labels), "no episode is begun again"
    turns.close()
