"""What signals do to a run that trains: never more than end it, with a checkpoint."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import time

import pytest
from run_makers import tiny
from run_worlds import Counted

from etude.base.events import Saved
from etude.checkpoint.run_directory import RunDirectory

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP and no SIGUSR1")


@pytest.fixture
def directory(tmp_path):
    with RunDirectory.create(tmp_path / "run", "run") as made:
        yield made


def sending(step, *names):
    """A reporter that sends signals to this process at a step, once."""
    left = [getattr(signal, name) for name in names]

    def report(event):
        while event.step == step and left:
            os.kill(os.getpid(), left.pop(0))

    return report


@pytest.fixture
def restored():
    """The dispositions of signals are to be what they were."""
    names = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1]
    before = [signal.getsignal(name) for name in names]
    yield
    assert [signal.getsignal(name) for name in names] == before


@pytest.mark.parametrize("names", [["SIGHUP"], ["SIGHUP", "SIGHUP"], ["SIGTERM", "SIGHUP"]], ids="-".join)
def test_a_closed_terminal_ends_a_run_with_a_checkpoint_however_often_it_says_so(names, directory, restored):
    with tiny(run_dir=directory) as run:
        finished = run.train(400, callbacks=[sending(40, *names)])
    assert (finished.reason, finished.step) == ("interrupted", 40)
    assert list(directory.saved()) == [40]


def test_an_ignored_hang_up_stays_ignored(directory):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with tiny(run_dir=directory) as run:
            assert run.train(80, callbacks=[sending(40, "SIGHUP")]).reason == "steps"
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_handler_of_the_programs_own_stays(directory):
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        with tiny(run_dir=directory) as run:
            run.train(80, callbacks=[sending(40, "SIGUSR1")])
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [signal.SIGUSR1]
    assert list(directory.saved()) == [80]


def test_sigusr1_saves_and_the_run_goes_on(directory, restored):
    with tiny(run_dir=directory) as run:
        events = []
        finished = run.train(120, callbacks=[events.append, sending(40, "SIGUSR1")])
    assert finished.reason == "steps"
    assert [event.step for event in events if isinstance(event, Saved)] == [40, 120]


def test_a_signal_while_the_run_begins_is_not_forgotten(directory, restored):
    with tiny(run_dir=directory) as run:
        finished = run.train(400, callbacks=[sending(0, "SIGTERM")])
    assert finished.reason == "interrupted"
    assert finished.step < 40


class Signalled(Counted):
    """Signals the whole group of its process at one of its steps, once."""

    def __init__(self, once, names):
        super().__init__()
        self.once, self.names, self.taken = once, names, 0

    def step(self, action):
        self.taken += 1
        if self.taken == 30 and not self.once.exists():
            self.once.touch()
            for name in self.names:
                os.kill(os.getpid(), getattr(signal, name))
        return super().step(action)


def test_a_signal_to_the_whole_group_ends_no_worker(directory, tmp_path):
    names = ["SIGINT", "SIGTERM", "SIGHUP", *["SIGUSR1"] * 100]  # more stacks than a pipe holds
    with tiny(functools.partial(Signalled, tmp_path / "once", names), workers=2, run_dir=directory) as run:
        told = []
        assert run.train(400, callbacks=[told.append]).reason == "steps"
    assert (tmp_path / "once").exists()
    assert [event.message for event in told if hasattr(event, "message")] == []


class Forking(Counted):
    """Has a process of its own from its first reset on, as simulators have, and terminates it at its end."""

    children: list[multiprocessing.Process]

    def __init__(self, children):
        super().__init__()
        self.children, self.own = children, None

    def reset(self, **options):
        if self.own is None:
            self.own = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), daemon=True)
            self.own.start()
            self.children.append(self.own)
        return super().reset(**options)

    def close(self):
        self.own.terminate()


def test_processes_that_environments_fork_end_where_they_are_terminated(restored):
    children = []
    with tiny(lambda: Forking(children)) as run:
        run.train(80, evaluate_every=40, evaluate_episodes=1)
    for child in children:
        child.join(20)
    assert len(children) > 4 and {child.exitcode for child in children} == {-signal.SIGTERM}


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_programs_own_handler_is_called_once_the_run_is_saved(name, directory):
    number, seen = getattr(signal, name), []
    before = signal.signal(number, lambda *_: seen.append(list(directory.saved())))
    try:
        with tiny(run_dir=directory) as run:
            assert run.train(400, callbacks=[sending(40, name)]).reason == "interrupted"
    finally:
        signal.signal(number, before)
    assert seen == [[40]]
