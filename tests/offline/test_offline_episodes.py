"""Episodes become steps and steps episodes, and the replay's views see them as if they had been collected."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from invariants import check_ring
from recordings import SPACES, dataset, episode

from etude.base import trees
from etude.base.data import Episode, Steps
from etude.base.errors import DataError
from etude.offline import Dataset, EpisodeRecorder, to_steps
from etude.replay import (
    Advantages,
    NStep,
    OneStep,
    OneStepAndNextActions,
    OneStepAndReturns,
    Ring,
    Sequences,
    WholeReturns,
)
from etude.replay.ring import between

EXTRAS = {"log_prob": ((), np.dtype(np.float32)), "place": ((2,), np.dtype(np.float32))}


def filled(given: Dataset) -> Ring:
    ring = Ring(given.spaces, len(given) + 1, 1, EXTRAS)
    ring.add(to_steps(given.episodes))
    check_ring(ring)
    return ring


def batch(ring, view):
    rows = np.arange(len(ring))[None]
    return view(ring, rows, np.ones(rows.shape, np.float32))


def test_one_step_transitions_stay_within_their_episodes():
    found = batch(filled(dataset("box")), OneStep(0.9))
    assert found.observation[0].tolist() == [[1, 0], [1, 1], [1, 2], [1, 3], [2, 0], [2, 1], [2, 2], [3, 0], [4, 0],
                                             [4, 1]]  # fmt: skip
    np.testing.assert_array_equal(found.next_observation[0], found.observation[0] + [0, 1])
    np.testing.assert_allclose(found.discount[0], [0.9, 0.9, 0.9, 0, 0.9, 0.9, 0.9, 0.9, 0.9, 0])
    np.testing.assert_array_equal(found.extras["place"][0], found.observation[0] + 0.5)


def test_n_step_returns_are_those_of_the_episode():
    found = batch(filled(dataset("discrete")), NStep(0.5, 3))
    np.testing.assert_allclose(found.reward[0, 4:8], [200 + 100.5 + 50.5, 201 + 101, 202, 300])
    np.testing.assert_allclose(found.discount[0, 4:8], [0.125, 0.25, 0.5, 0.5])
    assert found.next_observation[0, 4:8].tolist() == [[2, 3], [2, 3], [2, 3], [3, 1]]


def test_monte_carlo_returns_bootstrap_from_the_true_final_observation_of_a_truncated_episode():
    found = batch(filled(dataset("box")), Advantages(0.5, 1.0, lambda x: 1000 * x[:, 0] + x[:, 1]))
    np.testing.assert_allclose(found.extras["return"][0, 2:4], [102 + 51.5, 103])  # terminated: nothing follows
    np.testing.assert_allclose(found.extras["return"][0, 7], 300 + 0.5 * 3001)  # truncated at (3, 1)


def doubled(view):
    """A view that doubles rewards."""
    view.reward_scale = 2.0
    return view


@pytest.mark.parametrize("capacity", [11, 7])
def test_whole_returns_are_n_step_returns_without_a_limit(capacity):
    """Also in a ring that has overwritten the first rows, and after gamma or the rows have changed."""
    given = dataset("discrete")
    ring, whole = Ring(given.spaces, capacity, 1, EXTRAS), WholeReturns(0.5)
    for episodes in (given.episodes[:2], given.episodes):
        ring.add(to_steps(episodes))
        for gamma in (0.5, 0.9):
            whole.adjust({"gamma": gamma, "reward_scale": 2.0})
            rows = ring.locate(np.arange(len(ring)))[None]
            mine, theirs = (view(ring, rows, np.ones(rows.shape)) for view in (whole, doubled(NStep(gamma, 50))))
            np.testing.assert_allclose(mine.reward, theirs.reward, rtol=1e-6)
            np.testing.assert_allclose(mine.discount, theirs.discount, rtol=1e-6)
            np.testing.assert_array_equal(mine.next_observation, theirs.next_observation)
            np.testing.assert_array_equal(mine.action, theirs.action)


def test_transitions_come_with_the_return_that_was_recorded_from_each_on():
    ring = filled(dataset("box"))
    rows = ring.locate(np.arange(len(ring)))[None]
    view, weight = OneStepAndReturns(0.5), np.ones(rows.shape)
    for gamma in (0.5, 0.9):
        view.adjust({"gamma": gamma, "reward_scale": 2.0})
        found = view(ring, rows, weight)
        np.testing.assert_allclose(found.extras["return"], doubled(WholeReturns(gamma))(ring, rows, weight).reward)
        expected = doubled(OneStep(gamma))(ring, rows, weight)
        np.testing.assert_array_equal(found.reward, expected.reward)
        np.testing.assert_array_equal(found.discount, expected.discount)
        np.testing.assert_array_equal(found.next_observation, expected.next_observation)


def test_transitions_come_with_the_action_that_was_recorded_next():
    ring = filled(dataset("box"))
    rows = ring.locate(np.arange(len(ring)))[None]
    found = OneStepAndNextActions(0.5)(ring, rows, np.ones(rows.shape))
    last = np.cumsum([len(episode.reward) for episode in dataset("box").episodes]) - 1
    goes_on = ~np.isin(np.arange(len(ring)), last)
    np.testing.assert_array_equal(found.extras["next_recorded"][0], goes_on)
    np.testing.assert_array_equal(found.extras["next_action"][0][goes_on], found.action[0][1:][goes_on[:-1]])


def test_sequences_stop_where_an_episode_does():
    found = batch(filled(dataset("multidiscrete")), Sequences(0.9, 3))
    assert found.extras["mask"][0, :, :].sum(-1).tolist() == [3, 3, 2, 1, 3, 2, 1, 1, 2, 1]
    assert found.extras["first"][0, :, 0].tolist() == [1, 0, 0, 0, 1, 0, 0, 1, 1, 0]
    assert found.observation["code"][0, 4].tolist() == [[2, 0], [2, 1], [2, 2]]


def test_an_open_episode_is_not_continued_by_the_next_one():
    spaces = SPACES["box"]
    first = episode(1, 2, spaces)
    open_ = Episode(first.observation, first.action, first.reward, False, False, first.extras)
    steps = to_steps([open_, episode(2, 1, spaces)])
    assert steps.truncated[:, 0].tolist() == [False, True, False]
    assert steps.final_observation.tolist() == [[1, 2], [2, 1]]


@pytest.mark.parametrize("fault", ["none", "empty", "extras"])
def test_episodes_that_cannot_be_put_together_are_refused(fault):
    good = episode(1, 2, SPACES["box"])
    lacking = Episode(good.observation, good.action, good.reward, True, False)
    empty = Episode(good.observation[:1], good.action[:0], good.reward[:0], True, False)
    given, message = {
        "none": ([], "no episodes"),
        "empty": ([good, empty], "Episode 1 has 0"),
        "extras": ([good, lacking], "Episode 1 has 2"),
    }[fault]
    with pytest.raises(DataError, match=message):
        to_steps(given)


def assert_equal(one: Episode, other: Episode):
    assert (one.terminated, one.truncated) == (other.terminated, other.truncated)
    for name in ("observation", "action", "reward", "extras"):
        for mine, theirs in zip(trees.leaves(getattr(one, name)), trees.leaves(getattr(other, name)), strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("chunk", [1, 2, 3, 10])
def test_a_recorder_puts_episodes_together_from_chunks_of_any_length(chunk):
    given = dataset("multidiscrete")
    steps, recorder = to_steps(given.episodes), EpisodeRecorder()
    for start in range(0, 10, chunk):
        recorder.add(_continued(between(steps, start, min(start + chunk, 10)), start > 0))
    assert len(recorder.episodes) == 4
    for mine, theirs in zip(recorder.episodes, given.episodes, strict=True):
        assert_equal(mine, theirs)


def _continued(steps: Steps, goes_on: bool) -> Steps:
    return dataclasses.replace(steps, restarted=np.full(1, not goes_on))


def test_a_recorder_drops_what_nothing_continues_and_cuts_what_is_open():
    steps = to_steps([episode(1, 4, SPACES["box"])])
    recorder = EpisodeRecorder()
    recorder.add(between(steps, 0, 2))
    recorder.add(_continued(between(steps, 0, 3), False))  # began anew
    recorder.cut()
    (found,) = recorder.episodes
    assert found.observation.tolist() == [[1, 0], [1, 1], [1, 2], [1, 3]]
    assert (found.terminated, found.truncated) == (False, True)
