"""Workers that die, hang or raise while whole episodes are collected: only what was open in them is lost."""

import os
import random
import signal
import time
from functools import partial

import labelled
import numpy as np
import pytest
from labelled import Adder, Faulty, Labelled, Long, Native, Noisy
from witness import Witness

from etude.base.errors import EnvironmentFault
from etude.rollout import LockstepPool, Pool, PoolOptions


def acting(make, environments: int = 5, **options) -> Pool:
    return Pool(make, Adder, Noisy(), 1, environments, 2, PoolOptions(**options))


def lockstep(make, environments: int = 5, **options) -> LockstepPool:
    return LockstepPool(make, Adder(), Noisy(), 1, environments, 2, PoolOptions(**options))


halves = partial(lockstep, halves=True)
KINDS = [acting, lockstep, halves]


def collect_rounds(rollout, rounds: int = 4) -> tuple[Witness, list[list[int]], list[str]]:
    """The witness of all rounds, the restarted environments of each, and warnings."""
    witness, step, restarted = Witness(), 0, []
    try:
        for _ in range(rounds):
            parts = rollout.collect_episodes(step)
            assert [part.columns.tolist() for part in parts] == [[i] for i in range(rollout.environments)]
            for part in parts:
                witness.check(part)
                assert len(part.episodes) == 1
                assert part.final_index.tolist() == [[len(part) - 1, 0]]
            restarted.append([int(part.columns[0]) for part in parts if part.restarted[0]])
            step += sum(len(part) for part in parts)
    finally:
        rollout.close()
    assert len(witness.seen) == step
    return witness, restarted, rollout.warnings()


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_dies_loses_only_the_episodes_that_were_open_in_it(tmp_path, kind):
    # At its fifth step environment 1 is in the second step of its second episode, which is of four steps.
    make = partial(Faulty, fault=labelled.kill_itself, flag=str(tmp_path / "done"))
    witness, restarted, warnings = collect_rounds(kind(make))
    assert len(warnings) == 1
    assert "Worker 0 (environments 0 to 2) was ended by SIGKILL" in warnings[0]
    assert restarted == [[], [0, 1, 2], [], []]
    played = sorted(witness.episodes)
    assert (1, 1) not in played  # the one that was lost is not played again
    assert [episode for i, episode in played if i == 3] == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_an_episode_that_had_ended_before_its_worker_died_is_kept(tmp_path, kind):
    # Environment 0 ends with the second step; environment 1 goes on to the 202nd, and kills the process at the 150th.
    make = partial(FaultyAfterLong, fault=labelled.kill_itself, flag=str(tmp_path / "done"), after=150)
    rollout = kind(make, environments=4, buffer=4000)
    parts = rollout.collect_episodes(0)
    assert parts[0].episodes[0][:3] == (0, 0, 2)
    assert not parts[0].restarted.any()
    assert parts[1].restarted.all()
    assert parts[1].episodes[0].episode > 0
    witness = Witness()
    for part in parts:
        witness.check(part)
    following = rollout.collect_episodes(1000)
    assert [bool(part.restarted[0]) for part in following] == [True, False, False, False]
    for part in following:
        witness.check(part)
    rollout.close()


class FaultyAfterLong(Faulty, Long):
    """Fails in a long episode."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_hangs_is_replaced_and_the_round_goes_on(tmp_path, kind):
    make = partial(Faulty, fault=labelled.stop_itself, flag=str(tmp_path / "done"))
    _, restarted, warnings = collect_rounds(kind(make, deadline=1.0))
    assert "took no time step for " in warnings[0]
    assert sum(map(len, restarted)) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_is_raised_here_or_restarts_its_environments(tmp_path, kind):
    with pytest.raises(EnvironmentFault, match="Worker 0 .* raised ValueError: the door is stuck"):
        collect_rounds(kind(partial(Faulty, fault=labelled.raise_an_error, flag=str(tmp_path / "one"))))
    make = partial(Faulty, fault=labelled.raise_an_error, flag=str(tmp_path / "two"))
    _, restarted, warnings = collect_rounds(kind(make, on_error="restart"))
    assert "the door is stuck (" in warnings[0]
    assert sum(map(len, restarted)) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_workers_killed_at_random_moments_lose_and_double_nothing_else(kind):
    rollout, witness, rng, step = kind(Long, overlap=True), Witness(), random.Random(1), 0
    for _ in range(5):
        parts = rollout.collect_episodes(step, ahead=True)
        for part in parts:
            witness.check(part)
        step += sum(len(part) for part in parts)
        chunk = rollout.collect(7, step) if rng.random() < 0.5 else None
        if chunk is not None:
            witness.check(chunk)
            step += len(chunk)
        time.sleep(rng.random() * 0.01)
        os.kill(rng.choice(rollout._supervisor.workers).process.pid, signal.SIGKILL)
    assert len(rollout.state()["environments"]) == 5
    rollout.close()
    assert len(witness.seen) == step


@pytest.mark.parametrize("kind", [lockstep, halves])
def test_a_worker_killed_between_calls_does_not_end_the_episodes_of_others_in_a_saved_state(kind):
    rollout, witness = kind(Labelled), Witness()
    witness.check(rollout.collect(1, 0))
    os.kill(rollout._supervisor.workers[0].process.pid, signal.SIGKILL)
    state = rollout.state()["environments"]
    assert [state[str(i)]["episode"] for i in range(5)] == [1, 1, 1, 0, 0]
    parts = rollout.collect_episodes(5)
    assert [bool(part.restarted[0]) for part in parts] == [True, True, True, False, False]
    for part in parts:
        witness.check(part)
    rollout.close()


def test_what_a_stepping_worker_did_not_do_is_no_step_of_anybody(tmp_path):
    make = partial(Faulty, fault=labelled.kill_itself, flag=str(tmp_path / "done"))
    rollout = lockstep(make)
    rollout.collect_episodes(0)
    parts = rollout.collect_episodes(20)
    assert all(np.array_equal(part.reward, part.action.astype(np.float32)) for part in parts)
    assert [part.episodes[0].length for part in parts] == [len(part) for part in parts]
    assert [part.episodes[0].total for part in parts] == [float(part.reward.sum()) for part in parts]
    rollout.close()


class FaultyNative(Faulty, Native):
    """Fails as one simulator."""


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_native_simulator_and_those_beside_it_lost_is_marked(tmp_path, kind):
    rollout = kind(partial(FaultyNative, fault=labelled.kill_itself, flag=str(tmp_path / "done")))
    restarted = []
    for _ in range(4):
        parts = rollout.collect_episodes(0)
        for part in parts:
            assert {int(n) for _, n in part.final_index} == set(range(part.shape[1]))
        restarted.append(sum(int(part.restarted.sum()) for part in parts))
    rollout.close()
    assert restarted == [0, 5 if kind is lockstep else 3, 0, 0]  # the fifth step is of the second round
    assert len(rollout.warnings()) == 1
