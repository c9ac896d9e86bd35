"""Workers that die, hang or raise, at any moment: exact counts, no mixed transitions, clear words."""

import contextlib
import multiprocessing.heap
import os
import random
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import labelled
import numpy as np
import pytest
from labelled import Adder, Faulty, Labelled, Long, Noisy
from witness import Witness

from etude.base.data import Choice
from etude.base.errors import ConfigError, EnvironmentFault
from etude.envs import make_environments
from etude.rollout import LockstepPool, Pool, PoolOptions
from etude.workers.process import Worker


class Left(Noisy):
    """The first action, always."""

    def __call__(self, output, noise, step, state):
        return Choice(np.zeros(len(output), np.int64), {})


def acting(make, **options) -> Pool:
    return Pool(make, Adder, Noisy(), 1, 5, 2, PoolOptions(**options))


def lockstep(make, **options) -> LockstepPool:
    return LockstepPool(make, Adder(), Noisy(), 1, 5, 2, PoolOptions(**options))


def collect_all(rollout, chunks=(3, 7, 4)) -> tuple[Witness, list[str]]:
    witness, step = Witness(), 0
    try:
        for steps in chunks:
            part = rollout.collect(steps, step, upcoming=0)
            assert part.shape == (steps, 5)
            witness.check(part)
            step += len(part)
    finally:
        rollout.close()
    assert len(witness.seen) == step
    return witness, rollout.warnings()


DEATHS = [
    (labelled.kill_itself, "ended by SIGKILL"),
    (labelled.exit_at_once, "exited with code 3"),
    (labelled.segfault, "ended by SIGSEGV"),
]


@pytest.mark.parametrize("kind, fault, words", [(acting, *death) for death in DEATHS] + [(lockstep, *DEATHS[0])])
def test_a_worker_that_dies_is_replaced_and_counts_stay_exact(tmp_path, kind, fault, words):
    witness, warnings = collect_all(kind(partial(Faulty, fault=fault, flag=str(tmp_path / "done"))))
    assert len(warnings) == 1
    assert words in warnings[0]
    assert "Worker 0 (environments 0 to 2)" in warnings[0]
    assert fault is not labelled.segfault or "in segfault" in warnings[0]  # where it happened
    assert witness.restarts == (3 if kind is acting else 5)


@pytest.mark.parametrize(
    "kind, fault, place",
    [
        (acting, labelled.stop_itself, ""),
        (acting, labelled.sleep_for_ever, "in sleep_for_ever"),
        (lockstep, labelled.stop_itself, ""),
    ],
)
def test_a_worker_that_hangs_is_replaced_and_where_it_hung_is_told(tmp_path, kind, fault, place):
    make = partial(Faulty, fault=fault, flag=str(tmp_path / "done"))
    witness, warnings = collect_all(kind(make, deadline=1.0))
    assert len(warnings) == 1
    assert "took no time step for " in warnings[0]
    assert place in warnings[0]
    assert witness.restarts == (3 if kind is acting else 5)


def test_memory_that_workers_cannot_share_is_named_with_its_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(multiprocessing.heap.Arena, "_choose_dir", lambda self, size: str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="missing.*Let this user write to /dev/shm"):
        acting(Labelled, buffer=1 << 23)


@pytest.mark.parametrize("kind, fault", [(acting, labelled.raise_end_of_file), (lockstep, labelled.raise_an_error)])
def test_an_exception_in_an_environment_is_raised_here_with_its_traceback(tmp_path, kind, fault):
    rollout = kind(partial(Faulty, fault=fault, flag=str(tmp_path / "done")))
    with pytest.raises(
        EnvironmentFault, match="Worker 0 .* raised (ValueError: the door is|EOFError: the user's)"
    ) as found:
        collect_all(rollout)
    assert f"in {fault.__name__}" in str(found.value.__cause__)
    with pytest.raises(ConfigError, match="closed"):
        rollout.collect(1, 0)


@pytest.mark.parametrize(
    "fault, words",
    [
        (labelled.raise_unprintable, r"raised Unprintable: \(no text: its __str__ raised RuntimeError\)"),
        (labelled.raise_megabytes, r"raised ValueError: the door!+ \[... \d+ characters left out ...\] !+is stuck"),
        (labelled.exit_by_sys, "raised SystemExit: that was all"),
    ],
)
def test_an_exception_that_is_no_common_one_is_raised_here_in_clear_and_bounded_words(tmp_path, fault, words):
    with pytest.raises(EnvironmentFault, match=rf"{words} \(.*labelled.py:\d+\)$") as found:
        collect_all(acting(partial(Faulty, fault=fault, flag=str(tmp_path / "done"))))
    assert f"in {fault.__name__}" in str(found.value.__cause__) or fault is labelled.raise_megabytes
    assert len(str(found.value)) < 2000
    assert len(str(found.value.__cause__)) < 30_000


@pytest.mark.usefixtures("spawned_workers")
@pytest.mark.parametrize(
    "kind, fault",
    [
        (acting, labelled.write_no_message),
        (acting, labelled.write_another_message),
        (acting, labelled.write_less_than_it_says),
        (lockstep, labelled.write_no_message),
    ],
)
@pytest.mark.long_but("write_less_than_it_says", "lockstep")
def test_a_worker_that_writes_into_our_pipe_is_replaced(tmp_path, kind, fault, monkeypatch):
    monkeypatch.setattr("etude.workers.process._CUT_OFF", 1)
    witness, warnings = collect_all(kind(partial(Faulty, fault=fault, flag=str(tmp_path / "done"))))
    assert len(warnings) == 1
    assert "Worker 0 (environments 0 to 2) wrote into the pipe to this process" in warnings[0]
    assert witness.restarts == (3 if kind is acting else 5)


class WithChild(Labelled):
    """Starts a process, which it forgets, and a thread that never ends."""

    def __init__(self, columns, folder):
        super().__init__(columns)
        child = subprocess.Popen(["sleep", "1000"])
        (folder / str(child.pid)).touch()
        threading.Thread(target=time.sleep, args=(1000,)).start()


def wait_for_the_end_of(pids) -> None:
    until = time.monotonic() + 120
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < until
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_an_environment_in_a_worker_started_ends_with_the_worker(tmp_path):
    rollout = acting(partial(WithChild, folder=tmp_path))
    rollout.collect(3, 0)
    first = [int(path.name) for path in tmp_path.iterdir()]
    assert len(first) == 2
    for worker in rollout._supervisor.workers:
        os.kill(worker.process.pid, signal.SIGKILL)
    rollout.collect(3, 15)
    wait_for_the_end_of(first)
    rollout.close()
    everyone = [int(path.name) for path in tmp_path.iterdir()]
    assert len(everyone) == 4
    wait_for_the_end_of(everyone)


class Slow(Labelled):
    """Takes a while to close, and says that it has closed."""

    def __init__(self, columns, folder):
        super().__init__(columns)
        self.folder = folder

    def close(self):
        time.sleep(1.5)
        (self.folder / f"{self.columns[0]}").touch()


def test_a_worker_is_not_ended_while_it_closes_its_environments(tmp_path):
    rollout = acting(partial(Slow, folder=tmp_path))
    rollout.collect(3, 0)
    rollout.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "3"]


class Noting(Labelled):
    """Has something to report after its first step, once."""

    def __init__(self, columns):
        super().__init__(columns)
        self.steps, self.reported = 0, False

    def step(self, action, at=None):
        self.steps += 1
        return super().step(action, at)

    def warnings(self):
        new = self.steps > 0 and not self.reported
        self.reported = self.reported or new
        return ["It draws."] if new else []


@pytest.mark.parametrize("kind", [acting, lockstep])
def test_a_warning_that_all_workers_send_is_reported_once(kind):
    _, warnings = collect_all(kind(Noting))
    assert warnings == ["It draws."]


def test_a_warning_of_a_step_arrives_with_the_step_also_at_a_process_that_reads_late(monkeypatch):
    receive = Worker.receive

    def receive_late(worker, seconds):
        time.sleep(0.05)  # by now the worker has written all that it writes
        return receive(worker, seconds)

    monkeypatch.setattr(Worker, "receive", receive_late)
    rollout = lockstep(Noting)
    rollout.collect(1, 0)
    assert rollout.warnings() == ["It draws."]
    rollout.close()


def test_an_exception_in_an_environment_may_restart_it_instead(tmp_path):
    make = partial(Faulty, fault=labelled.raise_an_error, flag=str(tmp_path / "done"))
    witness, warnings = collect_all(acting(make, on_error="restart"))
    assert witness.restarts == 3
    assert "raised ValueError: the door is stuck (" in warnings[0]
    assert "in raise_an_error" in warnings[0]


def test_an_error_that_etude_raised_in_a_worker_keeps_its_class_and_words():
    def make(columns):
        raise ConfigError("too many doors")

    with pytest.raises(ConfigError, match="^too many doors$"):
        acting(make)


class DiesAtFirst(Labelled):
    """Dies the first time that it is made."""

    def __init__(self, columns, flag):
        super().__init__(columns)
        if 0 in self.columns and not flag.exists():
            flag.touch()
            labelled.exit_at_once()


def test_a_worker_that_dies_while_it_makes_its_environments_is_replaced(tmp_path):
    _, warnings = collect_all(acting(partial(DiesAtFirst, flag=tmp_path / "done")))
    assert len(warnings) == 1
    assert "Worker 0 (environments 0 to 2) exited with code 3; replaced" in warnings[0]


def test_a_worker_that_fails_again_and_again_ends_the_rollout():
    make = partial(Faulty, fault=labelled.exit_at_once, flag="", after=1)
    with pytest.raises(
        EnvironmentFault, match="2 times in a row; the last time it exited with code 3.* without workers"
    ):
        acting(make, restarts=1).collect(1, 0)


def test_an_episode_that_was_lost_is_not_played_again(tmp_path):
    rollout = acting(partial(Faulty, fault=labelled.exit_at_once, flag=str(tmp_path / "done"), after=9))
    witness, _ = collect_all(rollout, (1, 20))
    begun = sorted({label[:2] for label in witness.seen if label[0] == 1})
    assert begun[0] == (1, 0)
    assert begun[1][1] > 1  # in eight steps environment 1 had come as far as episode 2


def test_workers_killed_between_calls_are_replaced():
    rollout, witness = acting(Labelled, overlap=True), Witness()
    witness.check(rollout.collect(3, 0))
    for worker in rollout._supervisor.workers:
        os.kill(worker.process.pid, signal.SIGKILL)
    witness.check(rollout.collect(3, 15, upcoming=4))
    for worker in rollout._supervisor.workers:
        os.kill(worker.process.pid, signal.SIGKILL)
    rollout.state()
    witness.check(rollout.collect(4, 30))
    rollout.close()
    assert len(witness.seen) == 50


class Struck(Labelled):
    """Raises where there is a file with the number of its process, which it removes."""

    def __init__(self, columns, folder):
        super().__init__(columns)
        self.flag = folder / str(os.getpid())

    def step(self, action, at=None):
        if self.flag.exists():
            self.flag.unlink()
            labelled.raise_an_error()
        return super().step(action, at)


STRIKES = {
    "SIGKILL": "was ended by SIGKILL",
    "SIGTERM": None,  # which is the parent's to decide on
    "SIGSTOP": "took no time step for",
    "exception": "raised ValueError",
}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", [acting, lockstep])
@pytest.mark.parametrize("strike", STRIKES)
def test_no_step_is_lost_and_no_process_left_whatever_strikes_a_worker_at_a_random_moment(
    strike, kind, tmp_path, request
):
    options = {"on_error": "restart", "deadline": 0.5 if strike == "SIGSTOP" else None}
    options |= {"overlap": True, "buffer": 2000} if kind is acting else {}
    rollout = kind(partial(Struck, folder=tmp_path), **options)
    rng, witness, step, pids, said = random.Random(f"{strike} {kind.__name__}"), Witness(), 0, set(), STRIKES[strike]

    def hit(worker):
        with contextlib.suppress(ProcessLookupError):
            if strike == "exception":
                (tmp_path / str(worker)).touch()
            else:
                os.kill(worker, getattr(signal, strike))

    for _ in range(20 if request.config.getoption("--whole") else 2):
        running = {worker.process.pid for worker in rollout._supervisor.workers}
        timer = threading.Timer(rng.uniform(0, 0.05), hit, [rng.choice(sorted(running))])
        timer.start()
        until, warnings, after = time.monotonic() + 60, [], 0
        while after < 3 if said is None else not warnings:
            assert time.monotonic() < until
            part = rollout.collect(20, step, upcoming=20)
            witness.check(part)
            warnings, step, after = warnings + rollout.warnings(), step + len(part), after + (not timer.is_alive())
        timer.join()
        assert not warnings if said is None else all(said in each for each in warnings)
        pids |= running | {worker.process.pid for worker in rollout._supervisor.workers}
    rollout.close()
    assert len(witness.seen) == step and not any(map(is_alive, pids))


def test_closing_does_not_wait_for_a_worker_that_hangs(tmp_path):
    rollout = acting(partial(Faulty, fault=labelled.stop_itself, flag=str(tmp_path / "done"), after=4), overlap=True)
    rollout.collect(3, 0, upcoming=3)
    while not (tmp_path / "done").exists():
        time.sleep(0.01)
    processes = [worker.process.pid for worker in rollout._supervisor.workers]
    rollout.close()
    for pid in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


class EndsAndDies(Long):
    """Dies at step `after` of its process, the first `times` times."""

    def __init__(self, columns, folder, after, times):
        super().__init__(columns)
        self.folder, self.after, self.times, self.steps = folder, after, times, 0

    def step(self, action, at=None):
        self.steps += 1
        died = len(list(self.folder.iterdir()))
        if 0 in self.columns and self.steps == self.after and died < self.times:
            (self.folder / str(died)).touch()
            labelled.exit_at_once()
        return super().step(action, at)


@pytest.mark.parametrize("kind", [acting, lockstep])
def test_failures_are_in_a_row_only_as_long_as_nothing_is_whole_between_them(tmp_path, kind):
    rollout = kind(partial(EndsAndDies, folder=tmp_path, after=150, times=3), restarts=1)
    episodes = rollout.collect_episodes(0)  # one ends after two steps each time, and another goes on
    rollout.close()
    assert len(episodes) == 5 and len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("kind", [acting, lockstep])
def test_a_worker_that_always_fails_after_some_steps_ends_the_rollout(tmp_path, kind):
    rollout = kind(partial(EndsAndDies, folder=tmp_path, after=3, times=50), restarts=2)
    with pytest.raises(EnvironmentFault, match="3 times in a row"):
        rollout.collect(10, 0)
    assert len(list(tmp_path.iterdir())) == 3


def test_every_simulator_that_replaces_another_has_a_seed_of_its_own():
    def make(columns):
        return make_environments("CartPole-v1", columns, 7, "native")

    rollout, first = Pool(make, Adder, Left(), 7, 2, 1), []
    for step in range(3):
        first.append(rollout.collect(1, 2 * step).observation[0])
        os.kill(rollout._supervisor.workers[0].process.pid, signal.SIGKILL)
    rollout.close()
    assert len({observation.tobytes() for observation in first}) == 3
