"""Pools without failures: the same numbers as in one process."""

from pathlib import Path

import numpy as np
import pytest
from labelled import Adder, Labelled, Native, Noisy
from witness import Witness, assert_same

from etude.base.data import PolicyVersion
from etude.base.errors import ConfigError, EnvironmentFault, NetworkError
from etude.rollout import InProcess, LockstepPool, Pool, PoolOptions

CHUNKS = [
    (6, None), (1, range(2)), (1, range(2, 7)), (30, None), (1, range(5)), (1, range(5, 6)), (1, range(6, 7)), (4, None)
]  # fmt: skip


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


def in_process(environments: int = 7) -> InProcess:
    return InProcess(Labelled(range(environments)), Adder(), Noisy(), 1)


def pool(environments: int = 7, workers: int = 3, make=Labelled, **options) -> Pool:
    return Pool(make, Adder, Noisy(), 1, environments, workers, PoolOptions(**options))


def test_none_one_and_three_workers_collect_the_same_steps_bit_for_bit(opened):
    rollouts = [in_process(), opened(pool(workers=1)), opened(pool(workers=3))]
    rollouts.append(opened(LockstepPool(Labelled, Adder(), Noisy(), 1, 7, 3)))
    witness, step = Witness(), 0
    for i, (steps, chosen) in enumerate(CHUNKS):
        for rollout in rollouts:
            rollout.load({"weight": np.float32(i)}, PolicyVersion(100 * i, {}))
        parts = [rollout.collect(steps, step, chosen) for rollout in rollouts]
        witness.check(parts[0])
        for part in parts[1:]:
            assert_same(parts[0], part)
        step += len(parts[0])
    assert len(witness.seen) == step


@pytest.mark.parametrize("kind", ["acting", "stepping", "halves"])
def test_workers_step_the_environments_of_one_process_of_several(kind, opened):
    indices = range(3, 7)
    plain = InProcess(Labelled(indices), Adder(), Noisy(), 1)
    if kind == "acting":
        rollout = opened(Pool(Labelled, Adder, Noisy(), 1, indices, 2))
    else:
        rollout = opened(LockstepPool(Labelled, Adder(), Noisy(), 1, indices, 2, PoolOptions(halves=kind == "halves")))
    for steps, chosen in [(6, range(4)), (2, range(3)), (3, range(1)), (1, range(1, 4)), (2, range(3, 4))]:
        part = rollout.collect(steps, 7, chosen, stride=7)
        assert part.columns.tolist() == [indices[i] for i in chosen]
        assert_same(plain.collect(steps, 7, chosen, stride=7), part)
    for one, other in zip(plain.collect_episodes(70, stride=7), rollout.collect_episodes(70, stride=7), strict=True):
        assert_same(one, other)
    rollout.restore(plain.state())
    assert_same(plain.collect(6, 140, stride=7), rollout.collect(6, 140, stride=7))


def test_chunks_larger_than_the_shared_buffers_arrive_whole(opened):
    plain, small = in_process(), opened(pool(workers=2, buffer=2000))
    for steps in (100, 3, 57):
        assert_same(plain.collect(steps, 0), small.collect(steps, 0))


def test_a_buffer_too_small_for_one_time_step_is_refused_with_what_to_do(opened):
    with pytest.raises(ConfigError, match="more workers"):
        opened(pool(buffer=500)).collect(1, 0)


def test_a_chunk_does_not_change_while_later_ones_are_collected(opened):
    rollout = opened(pool(overlap=True))
    chunks = [rollout.collect(5, 35 * i, upcoming=5) for i in range(4)]
    again = in_process()
    for i, chunk in enumerate(chunks):
        assert_same(again.collect(5, 35 * i), chunk)


def test_overlapped_chunks_act_with_the_weights_from_before_they_started(opened):
    plain, ahead = in_process(), opened(pool(overlap=True))
    weights = [{"weight": np.float32(w)} for w in (0, 100, 200)]
    for i, used in enumerate([0, 0, 1]):
        plain.load(weights[used])
        ahead.load(weights[i])
        assert_same(plain.collect(4, 28 * i), ahead.collect(4, 28 * i, upcoming=4))


def test_a_chunk_ahead_that_is_not_wanted_is_dropped_whole_and_said_so(opened):
    rollout, witness = opened(pool(overlap=True)), Witness()
    witness.check(rollout.collect(5, 0, upcoming=5))
    part = rollout.collect(1, 35, range(4))
    assert part.shape == (1, 4)
    assert part.restarted.all()
    witness.check(part)
    rest = rollout.collect(2, 39)
    assert rest.restarted.tolist() == [False] * 4 + [True] * 3
    witness.check(rest)
    assert "35 steps" in rollout.warnings()[0]
    assert rollout.warnings() == []


@pytest.mark.parametrize("saved_with, restored_with", [(0, 2), (3, 0), (2, 3)])
def test_a_state_restores_with_any_number_of_workers(opened, saved_with, restored_with):
    one, other = (opened(pool(workers=w)) if w else in_process() for w in (saved_with, restored_with))
    one.collect(5, 0)
    one.collect(1, 35, range(3))
    other.collect(3, 0)
    assert other.restore(one.state()) == []
    assert_same(one.collect(6, 38), other.collect(6, 38))


@pytest.mark.parametrize("restored_with", [0, 2])
def test_a_state_saved_while_a_chunk_is_under_way_holds_that_chunk(opened, restored_with):
    one = opened(pool(overlap=True))
    other = opened(pool(workers=2, overlap=True)) if restored_with else in_process()
    one.collect(5, 0, upcoming=5)
    other.restore(one.state())
    for i in (1, 2):
        assert_same(one.collect(5, 35 * i, upcoming=5), other.collect(5, 35 * i, upcoming=5))


def test_a_chunk_that_was_dropped_is_not_forgotten_in_a_saved_state(opened):
    one = opened(pool(overlap=True))
    one.collect(5, 0, upcoming=5)
    one.collect(1, 35, range(4))
    other = in_process()
    other.restore(one.state())
    assert other.collect(1, 39).restarted.tolist() == [False] * 4 + [True] * 3


def test_the_state_of_stepping_workers_is_that_of_acting_ones(opened):
    one, other = opened(LockstepPool(Labelled, Adder(), Noisy(), 1, 5, 2)), opened(pool(5, 3))
    one.collect(5, 0)
    other.restore(one.state())
    expected = other.collect(6, 25)
    assert_same(expected, one.collect(6, 25))


def test_weights_are_copied_when_they_are_loaded(opened):
    rollout, weight = opened(pool()), np.array(5, np.float32)
    rollout.load({"weight": weight})
    weight[...] = 700
    plain = in_process()
    plain.load({"weight": np.float32(5)})
    assert_same(plain.collect(3, 0), rollout.collect(3, 0))


def test_the_weights_that_were_loaded_last_count_whether_workers_collected_or_rested_meanwhile(opened):
    plain, ahead = in_process(), opened(pool(overlap=True))
    ahead.collect(4, 0, upcoming=4)
    ahead.load({"weight": np.float32(100)})  # while they collect
    ahead.collect(4, 28)
    ahead.load({"weight": np.float32(200)})  # while they rest
    plain.collect(4, 0)
    plain.collect(4, 28)
    plain.load({"weight": np.float32(200)})
    assert_same(plain.collect(4, 56), ahead.collect(4, 56))


class Large(Adder):
    """Has 32 MB of weights more, and keeps what it loads."""

    def __init__(self):
        super().__init__()
        self.large = np.zeros(8_000_000, np.float32)

    def weights(self):
        return {**super().weights(), "large": self.large}

    def load(self, weights, version):
        super().load(weights, version)
        self.large = weights["large"]

    def act(self, observation):
        return super().act(observation) + self.large.max()


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads /proc")
def test_workers_read_the_one_copy_of_the_weights_and_have_none_of_their_own(opened):
    rollout = opened(Pool(Labelled, Large, Noisy(), 1, 4, 2))
    for i in range(3):
        rollout.load({"weight": np.float32(i), "large": np.full(8_000_000, i, np.float32)})
        actions = rollout.collect(1, 0).action
    plain = InProcess(Labelled(range(4)), Adder(4), Noisy(), 1)
    for _ in range(3):
        expected = plain.collect(1, 0).action
    assert np.array_equal(actions, expected)
    for worker in rollout._supervisor.workers:
        lines = Path(f"/proc/{worker.process.pid}/smaps_rollup").read_text().splitlines()
        own = sum(int(line.split()[1]) for line in lines if line.startswith("Private"))
        assert own < 32_000, "kB"


def test_weights_that_do_not_fit_are_refused_by_name(opened):
    rollout = opened(pool())
    with pytest.raises(NetworkError, match="no weight named 'wait'"):
        rollout.load({"wait": np.float32(1)})
    with pytest.raises(NetworkError, match=r"'weight' has shape \(2,\); the actor's has \(\)"):
        rollout.load({"weight": np.zeros(2, np.float32)})


def test_native_simulators_in_workers_mark_the_columns_that_lost_rows(opened):
    rollout, witness = opened(pool(4, 2, Native)), Witness()
    for steps, chosen in [(5, None), (2, range(3)), (4, None), (1, range(1, 3)), (2, None)]:
        witness.check(rollout.collect(steps, 0, chosen))
    assert witness.restarts == 1 + 2


def test_more_workers_than_environments_are_refused():
    with pytest.raises(ConfigError, match="3 workers cannot share 2 environments"):
        pool(2, 3)


def test_an_environment_that_cannot_be_made_says_why():
    def make(columns):
        raise FileNotFoundError("maze.txt")

    with pytest.raises(EnvironmentFault, match="FileNotFoundError: maze.txt"):
        pool(make=make)


def test_a_closed_pool_says_so(opened):
    rollout = pool(2, 1)
    rollout.close()
    rollout.close()
    with pytest.raises(ConfigError, match="closed"):
        rollout.collect(1, 0)
