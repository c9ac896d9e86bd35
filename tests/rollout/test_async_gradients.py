"""Asynchronous gradients of local and remote actor-learners: their order, their weights, and failures."""

from functools import partial

import labelled
import numpy as np
import pytest
from labelled import Adder, Faulty, Labelled, Noisy

from etude.base.data import PolicyVersion, WorkerGradients
from etude.rollout import LocalActorLearners, PoolOptions, RemoteActorLearners

LENGTH, COUNT = 4, 3


class Reporting(Adder):
    """Its gradients are its weight and the sum of the rewards, its metrics the labels of its observations and a
    hyperparameter."""

    def gradients(self, steps):
        assert steps.shape == (LENGTH, 1)
        told = {"weight": np.full(2, self.weight, np.float32), "reward": np.float32([steps.reward.sum()])}
        labels = steps.observation[:, 0].reshape(-1)
        seen = {f"seen{i}": float(label) for i, label in enumerate(labels)} | self.version.hyper
        losses = {"loss": float(self.weight)}
        return WorkerGradients(LENGTH, steps.episodes, told, losses, seen, self.version.gradient_steps)


LIKE = {"weight": np.float32([0.0, 0.0]), "reward": np.float32([0.0])}


class Weighted(Reporting):
    """Loads two numbers, as many as it sends back."""

    def load(self, weights, version):
        self.weight, self.version = weights["weight"][0], version


def local(make=Labelled, **_):
    return LocalActorLearners(make(range(COUNT)), Weighted(), Noisy(), 1, LENGTH)


def remote(make=Labelled, workers=2, **options):
    return RemoteActorLearners(make, Weighted, Noisy(), 1, LENGTH, LIKE, COUNT, workers, PoolOptions(**options))


def load(rollout, weight):
    version = PolicyVersion(weight, {"gamma": weight / 10})
    rollout.load({"weight": np.float32([weight, weight]), "reward": np.float32([0.0])}, version)


def take(rollout, times, start=0):
    """Gradients, with new weights after each: their number so far."""
    found = []
    for i in range(start, start + times):
        load(rollout, i)
        found.append(rollout.collect(LENGTH, i * LENGTH))
    return found


def plain(found):
    return [
        (len(each), each.episodes, {name: value.tolist() for name, value in each.gradients.items()}, each.metrics)
        for each in found
    ]


@pytest.fixture(scope="module")
def expected():
    rollout = local()
    found = take(rollout, 9)
    rollout.close()
    return found


def test_each_environment_starts_again_with_the_weights_after_its_own_gradients(expected):
    assert [int(each.metrics["seen0"]) for each in expected] == [0, 1, 2] * 3, "in the order of their numbers"
    # The first three start together with weights 0; the one whose turn was i starts again with the weights i + 1.
    assert [each.gradient_steps for each in expected] == [0, 0, 0, 1, 2, 3, 4, 5, 6]
    assert [each.metrics["gamma"] for each in expected] == [0, 0, 0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert [each.gradients["weight"].tolist() for each in expected[3:5]] == [[1.0, 1.0], [2.0, 2.0]]
    # Environment 0: episodes of 2, 3 and 4 steps; a rollout goes on where the last one stopped.
    labels = [[expected[turn].metrics[f"seen{3 * t + i}"] for i in (1, 2)] for turn in (0, 3) for t in range(LENGTH)]
    assert labels == [[0, 0], [0, 1], [1, 0], [1, 1], [1, 2], [2, 0], [2, 1], [2, 2]]
    assert [(end.episode, end.length) for end in expected[0].episodes] == [(0, 2)]


def test_gradients_do_not_depend_on_the_number_of_workers(expected):
    for workers in (1, 2, 3):
        rollout = remote(workers=workers)
        assert plain(take(rollout, 9)) == plain(expected)
        rollout.close()


@pytest.mark.parametrize("first, second", [(local, remote), (remote, local)])
def test_gradients_that_wait_are_saved_and_restored_by_other_actor_learners(first, second, expected):
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
    rollout = remote()
    found = []
    for i in range(9):
        found += take(rollout, 1, i)
        rollout.state()
    assert plain(found) == plain(expected)
    rollout.close()


def test_a_part_of_a_rollout_counts_steps_and_its_gradients_come_with_the_last_of_them(expected):
    rollout = local()
    load(rollout, 0)
    part, rest = rollout.collect(3, 0), rollout.collect(1, 3)
    assert (len(part), part.gradients, part.episodes) == (3, {}, ())
    assert len(rest) == 1
    assert plain([rest])[0][1:] == plain(expected)[0][1:]
    rollout.close()


@pytest.mark.parametrize("fault", [labelled.kill_itself, labelled.sleep_for_ever])
def test_a_worker_that_dies_or_hangs_is_replaced_and_the_others_send_the_gradients_that_they_would_have(
    fault, tmp_path, expected
):
    make = partial(Faulty, fault=fault, flag=str(tmp_path / "done"), after=6)
    rollout = remote(make, deadline=1.0)
    found = take(rollout, 9)
    (warning,) = rollout.warnings()
    assert "Worker 0 (environments 0 to 1)" in warning and "replaced" in warning
    assert rollout.warnings() == []
    assert [each.gradient_steps for each in found] == [each.gradient_steps for each in expected], (
        "with the weights that it had"
    )
    assert plain(found[2::3]) == plain(expected[2::3]), "environment 2 is in the other worker"
    labels = [found[turn].metrics[f"seen{3 * t + 1}"] for turn in (0, 3, 6) for t in range(LENGTH)]
    assert labels == sorted(labels), "no episode is begun again"
    rollout.close()
