"""Rollouts that collect whole episodes: one of each environment, and the same with any number of workers."""

import numpy as np
import pytest
from labelled import Adder, Counting, Labelled, Long, Native, Noisy
from witness import Witness, assert_same

from etude.rollout import InProcess, LockstepPool, Pool, PoolOptions

N = 7


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


def in_process(make=Labelled, environments: int = N, explorer=None) -> InProcess:
    return InProcess(make(range(environments)), Adder(), explorer or Noisy(), 1)


def pool(workers: int, make=Labelled, environments: int = N, **options) -> Pool:
    return Pool(make, Adder, Noisy(), 1, environments, workers, PoolOptions(**options))


def lockstep(workers: int, make=Labelled, environments: int = N, **options) -> LockstepPool:
    return LockstepPool(make, Adder(), Noisy(), 1, environments, workers, PoolOptions(**options))


def assert_same_parts(parts, others) -> None:
    assert len(parts) == len(others)
    for part, other in zip(parts, others, strict=True):
        assert_same(part, other)


def count(parts) -> int:
    return sum(len(part) for part in parts)


def test_every_environment_ends_exactly_one_episode_and_stops_right_there():
    rollout, witness, step = in_process(), Witness(), 0
    for round_ in range(4):
        parts = rollout.collect_episodes(step)
        assert [part.columns.tolist() for part in parts] == [[i] for i in range(N)]
        assert [part.shape for part in parts] == [(2 + (i + round_) % 3, 1) for i in range(N)]
        for i, part in enumerate(parts):
            assert [(end.environment, end.episode, end.length) for end in part.episodes] == [(i, round_, len(part))]
            assert part.final_index.tolist() == [[len(part) - 1, 0]]
            assert part.next_observation.tolist() == [[i, round_ + 1, 0]]
            assert part.episodes[0].total == float(part.reward.sum())
            witness.check(part)
        step += count(parts)
    assert len(witness.seen) == step
    assert witness.restarts == 0


def test_an_episode_that_a_chunk_left_open_is_gone_on_with_and_reported_whole():
    rollout, witness = in_process(), Witness()
    witness.check(rollout.collect(1, 0))
    witness.check(rollout.collect(1, N, range(3)))
    parts = rollout.collect_episodes(N + 3)
    assert [len(part) for part in parts] == [3, 1, 2, 1, 2, 3, 1]  # environment 0 had ended its first
    for part in parts:
        witness.check(part)
    assert parts[1].episodes[0].length == 3
    witness.check(rollout.collect(5, N + 3 + count(parts)))
    assert witness.restarts == 0


def test_none_to_three_workers_that_act_or_step_play_the_same_episodes_bit_for_bit(opened):
    rollouts = [in_process(), *(opened(pool(w)) for w in (1, 2, 3)), *(opened(lockstep(w)) for w in (1, 3))]
    rollouts += [opened(lockstep(w, halves=True)) for w in (2, 3)]
    witness, step = Witness(), 0
    for i in range(3):
        for rollout in rollouts:
            rollout.load({"weight": np.float32(i)})
        whole = [rollout.collect_episodes(step) for rollout in rollouts]
        for part in whole[0]:
            witness.check(part)
        for parts in whole[1:]:
            assert_same_parts(whole[0], parts)
        step += count(whole[0])
        for steps, chosen in ((2, None), (1, range(3)), (1, range(3, 7)), (3, range(6))):
            chunks = [rollout.collect(steps, step, chosen) for rollout in rollouts]
            witness.check(chunks[0])
            for chunk in chunks[1:]:
                assert_same(chunks[0], chunk)
            step += len(chunks[0])
    assert len(witness.seen) == step
    assert witness.restarts == 0


@pytest.mark.parametrize("make", [Long, Labelled])
def test_episodes_longer_than_the_shared_buffers_arrive_whole(opened, make):
    rollouts = [in_process(make), opened(pool(2, make, buffer=2000)), opened(lockstep(2, make))]
    step = 0
    for _ in range(3):
        whole = [rollout.collect_episodes(step) for rollout in rollouts]
        for parts in whole[1:]:
            assert_same_parts(whole[0], parts)
        step += count(whole[0])
    assert (max(len(part) for part in whole[0]) == 402) == (make is Long)


def test_an_environment_draws_the_same_noise_whether_it_waits_for_others_or_not():
    together, rounds = in_process().collect(60, 0), in_process()
    played = [rounds.collect_episodes(0) for _ in range(4)]
    for i in range(N):
        noise = np.concatenate([parts[i].extras["log_prob"][:, 0] for parts in played])
        assert np.array_equal(noise, together.extras["log_prob"][: len(noise), i])
    after = rounds.collect(3, 0).extras["log_prob"]
    for i in range(N):
        begun = sum(len(parts[i]) for parts in played)
        assert np.array_equal(after[:, i], together.extras["log_prob"][begun : begun + 3, i])


def test_schedules_see_every_environment_at_every_time_step_of_a_round():
    parts = in_process().collect_episodes(100)
    for part in parts:
        assert part.extras["at"][:, 0].tolist() == [100 + N * t for t in range(len(part))]


def test_explorers_of_each_environment_and_their_memory_go_with_those_that_still_play(opened):
    rollouts = [in_process(explorer=Counting())]
    rollouts.append(opened(Pool(Labelled, Adder, Counting(), 1, N, 3)))
    rollouts.append(opened(LockstepPool(Labelled, Adder(), Counting(), 1, N, 3, PoolOptions(halves=True))))
    for rollout in rollouts:
        rollout.collect(1, 0)
        for _ in range(3):
            for part in rollout.collect_episodes(0):
                assert np.array_equal(part.extras["column"], part.observation[..., 0])
                assert np.array_equal(part.extras["t"], part.observation[..., 2])


def test_native_simulators_go_on_until_all_have_ended_an_episode(opened):
    for rollout, parts_of in [
        (in_process(Native, 4), [[0, 1, 2, 3]]),
        (opened(pool(2, Native, 4)), [[0, 1], [2, 3]]),
        (opened(lockstep(2, Native, 4, halves=True)), [[0, 1], [2, 3]]),
    ]:
        witness, step = Witness(), 0
        for _ in range(3):
            parts = rollout.collect_episodes(step)
            assert [part.columns.tolist() for part in parts] == parts_of
            for part in parts:
                witness.check(part)
                assert {int(n) for _, n in part.final_index} == set(range(part.shape[1]))
                last = part.final_index[part.final_index[:, 0] == len(part.reward) - 1]
                earlier = {int(n) for t, n in part.final_index if t < len(part.reward) - 1}
                assert any(int(n) not in earlier for _, n in last)  # it stopped as soon as it could
            step += count(parts)
        witness.check(rollout.collect(4, step))
        assert witness.restarts == 0
        assert len(witness.seen) == step + 16


def test_episodes_ahead_act_with_the_weights_from_before_they_started(opened):
    plain, ahead = in_process(), opened(pool(2, overlap=True))
    weights = [{"weight": np.float32(w)} for w in (0, 100, 200)]
    step = 0
    for i, used in enumerate([0, 0, 1]):
        plain.load(weights[used])
        ahead.load(weights[i])
        expected = plain.collect_episodes(step)
        assert_same_parts(expected, ahead.collect_episodes(step, ahead=True))
        step += count(expected)


@pytest.mark.parametrize("restored_with", [0, 2, "lockstep"])
def test_a_state_saved_while_episodes_are_under_way_holds_them(opened, restored_with):
    one = opened(pool(3, overlap=True))
    step = count(one.collect_episodes(0, ahead=True))
    other = {0: in_process, 2: lambda: opened(pool(2)), "lockstep": lambda: opened(lockstep(2))}[restored_with]()
    assert other.restore(one.state()) == []
    for _ in range(3):
        expected = one.collect_episodes(step, ahead=True)
        assert_same_parts(expected, other.collect_episodes(step))
        step += count(expected)


@pytest.mark.parametrize("saved_with, restored_with", [(in_process, lockstep), (pool, in_process), (lockstep, pool)])
def test_a_state_saved_between_rounds_goes_on_with_the_same_episodes(opened, saved_with, restored_with):
    one, other = (opened(make() if make is in_process else make(3)) for make in (saved_with, restored_with))
    one.collect(1, 0)
    one.collect_episodes(N)
    one.collect(1, 20, range(4))
    other.collect_episodes(3)
    assert other.restore(one.state()) == []
    assert_same_parts(one.collect_episodes(30), other.collect_episodes(30))
    assert_same(one.collect(3, 50), other.collect(3, 50))


def test_episodes_ahead_that_are_not_wanted_are_dropped_whole_and_said_so(opened):
    rollout, witness = opened(pool(3, overlap=True)), Witness()
    for part in rollout.collect_episodes(0, ahead=True):
        witness.check(part)
    chunk = rollout.collect(2, 20, upcoming=2)
    witness.check(chunk)
    assert chunk.restarted.all()
    assert f"{sum(2 + (i + 1) % 3 for i in range(N))} steps collected ahead are dropped" in rollout.warnings()[0]
    for part in rollout.collect_episodes(34):
        witness.check(part)
        assert part.restarted.all()
    assert f"{2 * N} steps" in rollout.warnings()[0]


def test_episodes_do_not_change_while_later_ones_are_collected(opened):
    for rollout in (in_process(), opened(pool(2, overlap=True)), opened(lockstep(2))):
        first = rollout.collect_episodes(0, ahead=True)
        copies = [(part.observation.copy(), part.final_observation.copy(), part.action.copy()) for part in first]
        rollout.collect_episodes(0, ahead=True)
        rollout.collect_episodes(0)
        for part, kept in zip(first, copies, strict=True):
            assert np.array_equal(part.observation, kept[0])
            assert np.array_equal(part.final_observation, kept[1])
            assert np.array_equal(part.action, kept[2])
