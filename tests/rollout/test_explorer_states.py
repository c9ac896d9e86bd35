"""Explorers that keep something from step to step: where it is kept, when it is forgotten, and that it is saved."""

import numpy as np
import pytest
from labelled import Labelled, Native
from witness import Witness, assert_same

from etude.base.data import Choice
from etude.base.errors import ConfigError
from etude.base.spaces import Box, Spaces
from etude.explore import Each, OrnsteinUhlenbeckProcess
from etude.rollout import InProcess, LockstepPool, Pool, PoolOptions
from etude.rollout.collector import Collector

ENVIRONMENTS = 7


class Counts:
    """Actions are 10 times the steps that it remembers of the episode, plus the noise's first digit; `mark` is kept."""

    state_size = 2

    def __init__(self, mark: float = 1.0):
        self.mark = mark

    def of(self, columns):
        return self

    def draw(self, rng, steps, action_space):
        return rng.random((steps, 1), np.float32)

    def __call__(self, output, noise, step, state):
        begins = np.isnan(state)
        assert (begins.all(1) == begins.any(1)).all()
        state[:] = np.where(begins, [0, self.mark], state + [1, 0])
        return Choice((10 * state[:, 0] + 10 * noise[:, 0]).astype(np.int64), {"mark": state[:, 1].copy()})


class Still:
    """Acts with an output of its own for every environment: [N, 2], the same at every step."""

    state_size = 0

    def act(self, observation):
        return np.zeros((len(observation), 2), np.float32)

    def weights(self):
        return {"none": np.zeros(1, np.float32)}

    def load(self, weights, version):
        pass


class Moved(Labelled):
    """`Labelled` with actions of two real numbers; the reward is the first."""

    spaces = Spaces(Labelled.spaces.observation, Box(-np.inf, np.inf, (2,), np.float32))

    def step(self, action, *at):
        assert action.shape[1:] == (2,)
        return super().step(action[:, 0], *at)


def positions() -> OrnsteinUhlenbeckProcess:
    return OrnsteinUhlenbeckProcess(theta=5.0, sigma=300.0, dt=0.01, size=2)


@pytest.fixture
def opened():
    """Makes rollouts that are closed at the end of the test."""
    rollouts = []

    def keep(rollout):
        rollouts.append(rollout)
        return rollout

    yield keep
    for rollout in rollouts:
        rollout.close()


def rollout(workers=0, explorer=None, make=Labelled, environments=ENVIRONMENTS, **options):
    explorer = Counts() if explorer is None else explorer
    if workers == 0:
        return InProcess(make(range(environments)), Still(), explorer, 1)
    return Pool(make, Still, explorer, 1, environments, workers, PoolOptions(**options))


def remembered(steps):
    """What `Counts` remembered at each step, [T, N]."""
    return steps.action // 10


@pytest.mark.parametrize("workers", [0, 2])
def test_memory_is_of_the_episode_and_forgotten_at_its_end(opened, workers):
    collected, witness = opened(rollout(workers)), Witness()
    for steps, chosen in [(5, None), (2, range(4)), (2, range(4, ENVIRONMENTS)), (1, None), (30, None)]:
        part = collected.collect(steps, 0, chosen)
        witness.check(part)
        assert (remembered(part) == part.observation[..., 2]).all()  # the label's step of the episode


def test_each_environment_has_a_memory_of_its_own():
    explorer = Each([Counts(1.0), Counts(2.0), Counts(3.0)])
    steps = rollout(explorer=explorer).collect(9, 0)
    assert steps.extras["mark"].tolist() == [[1, 2, 3, 1, 2, 3, 1]] * 9
    assert (remembered(steps) == steps.observation[..., 2]).all()


EXPLORERS = {
    "positions": positions,
    "each": lambda: Each([positions(), OrnsteinUhlenbeckProcess(theta=0.1, sigma=50.0, size=2)]),
}


@pytest.mark.parametrize("name", EXPLORERS)
def test_none_one_and_three_workers_move_alike(opened, name):
    explorer = EXPLORERS[name]()
    rollouts = [opened(rollout(workers, explorer, Moved)) for workers in (0, 1, 3)]
    rollouts.append(opened(LockstepPool(Moved, Still(), explorer, 1, ENVIRONMENTS, 3)))
    for steps, chosen in [(6, None), (1, range(2)), (1, range(2, ENVIRONMENTS)), (30, None), (1, range(5)), (4, None)]:
        parts = [one.collect(steps, 0, chosen) for one in rollouts]
        for part in parts[1:]:
            assert_same(parts[0], part)


@pytest.mark.parametrize("name", EXPLORERS)
def test_chunks_of_any_length_move_alike(name):
    whole = rollout(0, EXPLORERS[name](), Moved).collect(8, 0)
    parts = rollout(0, EXPLORERS[name](), Moved)
    actions = [parts.collect(steps, 0).action for steps in (3, 5)]
    np.testing.assert_array_equal(np.concatenate(actions), whole.action)


@pytest.mark.parametrize("saved_with, restored_with", [(0, 0), (0, 2), (3, 0), (2, 3)])
def test_a_resumed_rollout_moves_as_an_uninterrupted_one(opened, saved_with, restored_with):
    one, other = (opened(rollout(w, positions(), Moved)) for w in (saved_with, restored_with))
    one.collect(5, 0)
    other.collect(3, 0)
    assert other.restore(one.state()) == []
    expected = one.collect(8, 0)
    assert_same(expected, other.collect(8, 0))
    assert np.unique(expected.action[0, :, 0]).size == ENVIRONMENTS


def test_a_state_saved_while_a_chunk_is_under_way_holds_the_memory_after_it(opened):
    one, other = opened(rollout(2, positions(), Moved, overlap=True)), rollout(0, positions(), Moved)
    one.collect(5, 0, upcoming=5)
    other.restore(one.state())
    for _ in range(2):
        assert_same(one.collect(5, 0, upcoming=5), other.collect(5, 0))


@pytest.mark.parametrize("name", EXPLORERS)
def test_whole_episodes_move_alike_with_any_number_of_workers(opened, name):
    explorer = EXPLORERS[name]()
    rollouts = [opened(rollout(workers, explorer, Moved)) for workers in (0, 3)]
    for _ in range(3):
        for parts in zip(*(one.collect_episodes(0) for one in rollouts), strict=True):
            assert_same(*parts)


def test_memory_is_of_the_episode_where_some_environments_wait_for_others():
    collected = rollout()
    for _ in range(3):
        for part in collected.collect_episodes(0):
            assert remembered(part).tolist() == [[t] for t in range(len(part.reward))]


def test_a_state_without_memory_or_with_that_of_another_explorer_begins_as_an_episode_does():
    for change in (
        lambda column: column.pop("explorer_state"),
        lambda column: column.update(explorer_state=np.zeros(1)),
    ):
        one, other = rollout(), rollout()
        one.collect(1, 0)
        state = one.state()
        for column in state["environments"].values():
            change(column)
        other.restore(state)
        part = other.collect(1, 0)
        assert (part.observation[0, :, 2] == 1).all()
        assert (remembered(part) == 0).all()


def test_an_episode_that_cannot_be_replayed_is_forgotten():
    one = rollout(environments=3)
    other = InProcess(Labelled(range(3), forgets=[1]), Still(), Counts(), 1)
    one.collect(1, 0)
    other.restore(one.state())
    assert remembered(other.collect(1, 0)).tolist() == [[1, 0, 1]]


def test_memory_is_forgotten_where_what_follows_is_no_continuation():
    collector = Collector(Labelled(range(3)), Still(), Counts(), 1)
    collector.explorer_state[:] = 5
    collector.cut()
    assert np.isnan(collector.explorer_state).all()


def test_columns_of_a_native_simulator_forget_with_the_rows_that_they_lose():
    collected = InProcess(Native(range(3)), Still(), Counts(), 1)
    collected.collect(1, 0, range(1))
    assert remembered(collected.collect(1, 0)).tolist() == [[1, 0, 0]]


@pytest.mark.parametrize("workers", [0, 7])
def test_explorers_that_draw_differently_are_refused_for_any_number_of_workers(opened, workers):
    other = Counts()
    other.draw = lambda rng, steps, action_space: rng.random((steps, 3), np.float32)
    with pytest.raises(ConfigError, match="draw as many numbers"):
        opened(rollout(workers, Each([Counts(), other]))).collect(1, 0)


def test_each_environment_gets_the_numbers_that_its_own_explorer_draws():
    nines = Counts()
    nines.draw = lambda rng, steps, action_space: np.full((steps, 1), 0.95, np.float32)
    digits = rollout(explorer=Each([Counts(), nines])).collect(20, 0).action % 10
    assert (digits[:, 1::2] == 9).all()
    assert set(digits[:, ::2].ravel().tolist()) == set(range(10))
