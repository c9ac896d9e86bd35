"""What stepping workers share with the parent, and when they are worth it."""

import gc
import os
import signal
import time

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Tuple
from labelled import Adder, Labelled, Noisy
from witness import assert_same

from etude.base.errors import ConfigError
from etude.base.spaces import Discrete, Spaces
from etude.rollout import InProcess, LockstepPool, PoolOptions, acting_in_process, lockstep, workers_pay_off
from etude.rollout.lockstep import OVERHEAD, OVERHEAD_PER_WORKER, Board, as_places, seconds_saved, step_seconds
from etude.rollout.pool import AboutEnvironments

TREE = Dict({"a": Box(-1, 1, (2,), np.float32), "b": Tuple((Box(0, 255, (2, 2), np.uint8), Discrete(5)))})


def some(rng, n):
    image = rng.integers(0, 255, (n, 2, 2), np.uint8)
    return {"a": rng.normal(size=(n, 2)).astype(np.float32), "b": (image, rng.integers(0, 5, n))}


@pytest.mark.parametrize("positions", [(0, 1, 2, 3, 4), (1, 2), (0, 2, 4), (3,)])
def test_a_board_gives_back_trees_and_final_observations_at_any_places(positions):
    rng, buffer = np.random.default_rng(0), bytearray(4000)
    about = AboutEnvironments(Spaces(TREE, Discrete(3)), False, (2,), ())
    theirs, ours = (Board(buffer, about, np.zeros(0, np.int64), 5) for _ in range(2))
    n, places = len(positions), as_places(positions)
    observation, last = some(rng, n), some(rng, 1)
    flags = np.arange(n) == n - 1, np.zeros(n, bool)
    final = {n - 1: {"a": last["a"][0], "b": (last["b"][0][0], last["b"][1][0])}}
    theirs.write(places, (observation, rng.normal(size=(n, 2)).astype(np.float32), *flags, final))
    read = ours.read(places)
    theirs.write(places, (some(rng, n), np.zeros((n, 2), np.float32), *flags, final))  # what was read is a copy
    assert np.array_equal(read[0]["a"], observation["a"])
    assert np.array_equal(read[0]["b"][0], observation["b"][0])
    assert np.array_equal(read[0]["b"][1], observation["b"][1])
    assert read[1].shape == (n, 2)
    assert read[2].tolist() == flags[0].tolist()
    assert list(read[4]) == [n - 1]
    assert np.array_equal(read[4][n - 1]["b"][0], last["b"][0][0])
    assert not ours.read(as_places((0,)))[4] or positions[-1] == 0


def test_a_board_that_is_too_small_is_refused_with_what_to_do():
    with pytest.raises(ConfigError, match="fewer environments"):
        LockstepPool(Labelled, Adder(), Noisy(), 1, 4, 2, PoolOptions(buffer=100))


class Changing(Noisy):
    """Actions that are of another kind after a while."""

    kind = np.int64

    def __call__(self, output, noise, step, state):
        choice = super().__call__(output, noise, step, state)
        return choice._replace(action=choice.action.astype(np.int32 if step >= 20 else np.int64))


@pytest.mark.parametrize("halves", [False, True])
def test_workers_get_actions_of_the_kind_that_the_explorer_gives(halves):
    plain = InProcess(Labelled(range(4)), Adder(), Changing(), 1)
    pool = LockstepPool(Labelled, Adder(), Changing(), 1, 4, 2, PoolOptions(halves=halves))
    try:
        assert_same(plain.collect(10, 0), pool.collect(10, 0))
        for chosen in (range(3), range(1, 4), range(3, 4)):
            assert_same(plain.collect(4, 40, chosen), pool.collect(4, 40, chosen))
    finally:
        pool.close()


@pytest.mark.parametrize("halves, batches", [(False, [4]), (True, [2, 2])])
def test_halves_are_acted_for_one_after_the_other(halves, batches):
    class Watched(Adder):
        seen: list[int] = []

        state_size = 0

        def act(self, observation):
            self.seen.append(len(observation))
            return super().act(observation)

    pool = LockstepPool(Labelled, Watched(), Noisy(), 1, 4, 2, PoolOptions(halves=halves))
    try:
        pool.collect(1, 0)
        Watched.seen.clear()
        pool.collect(3, 4)
        assert Watched.seen == batches * 3
    finally:
        pool.close()


def test_workers_are_worth_it_where_they_save_more_than_their_hand_over():
    assert seconds_saved(1e-3, environments=2, workers=2, cores=2) == pytest.approx(
        1e-3 - OVERHEAD - 2 * OVERHEAD_PER_WORKER
    )
    assert seconds_saved(200e-6, environments=2, workers=2, cores=2) < 0
    assert seconds_saved(4e-6, environments=2, workers=2, cores=2) < 0
    assert seconds_saved(4e-6, environments=16, workers=2, cores=2) < 0
    assert seconds_saved(1.0, environments=7, workers=7, cores=2) == pytest.approx(3.0, rel=1e-3)
    assert seconds_saved(1.0, environments=4, workers=1, cores=2) < 0


class Slow(Labelled):
    def step(self, action, at=None):
        time.sleep(0.002)
        return super().step(action, at)


@pytest.mark.parametrize(
    ("make", "asked", "kind"),
    [(Labelled, None, InProcess), (Slow, None, LockstepPool), (Labelled, True, LockstepPool), (Slow, False, InProcess)],
)
def test_workers_step_where_that_is_quicker_or_asked_for(make, asked, kind, monkeypatch):
    monkeypatch.setattr(lockstep, "usable_cores", lambda: 2)
    rollout = acting_in_process(make, Adder(), Noisy(), 1, 4, 2, PoolOptions(remote_environments=asked))
    assert type(rollout) is kind
    rollout.close()


def test_what_a_step_takes_is_measured_and_the_environment_is_closed():
    made = []

    def make(columns):
        made.append(Slow(columns))
        return made[-1]

    assert step_seconds(make) >= 0.002
    assert workers_pay_off(make, 8, 2, cores=2)
    assert not workers_pay_off(Labelled, 2, 2, cores=1)
    assert all(each.closed for each in made)
    assert [each.columns.tolist() for each in made] == [[0], [0]]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="reads /proc")
def test_workers_that_are_replaced_and_closed_leave_no_open_files():
    def open_files():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    LockstepPool(Labelled, Adder(), Noisy(), 1, 4, 2).close()  # what Python opens once, such as its resource tracker
    before = open_files()
    pool = LockstepPool(Labelled, Adder(), Noisy(), 1, 4, 2)
    pool.collect(1, 0)
    held = open_files()
    for number in [worker.process.pid for worker in pool._supervisor.workers]:
        os.kill(number, signal.SIGKILL)
        pool.collect(1, 0)
    assert open_files() == held
    pool.close()
    del pool
    assert open_files() <= before
