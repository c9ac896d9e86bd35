"""Workers that die, hang or raise, and Ctrl-C, while agents of one's own train with a pool of processes."""

from __future__ import annotations

import functools
import gc
import os
import signal
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from invariants import check_ring
from solo_agents import NotDense, agent_for, discrete, on_policy, once, pool_of, train
from solo_agents_worlds import Faulty, Walk

from etude.base.errors import EnvironmentFault
from etude.base.stacks import descendants
from etude.solo import LambdaCallback, session

# Pools and interruptions know no engine.
pytestmark = [pytest.mark.usefixtures("workers_step"), pytest.mark.variant]
OVERLAPPING = "acting while this process learns"
MODES = {OVERLAPPING: ((), {}), "acting": ((), {"parallel_store_and_training": False}), "stepping": ((NotDense,), {})}
each_mode = pytest.mark.parametrize("mode", MODES)


def workers():
    """The worker processes of this one."""
    commands = {child: Path(f"/proc/{child}/cmdline") for child in descendants(os.getpid())}
    return [child for child, command in commands.items() if command.exists() and "spawn_main" in command.read_text()]


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """No process, and no shared memory with a name."""
    named = sorted(Path("/dev/shm").iterdir())
    yield
    assert workers() == []
    assert sorted(Path("/dev/shm").iterdir()) == named


@pytest.fixture
def short_deadline(monkeypatch, workers_step):
    monkeypatch.setattr(session, "PoolOptions", functools.partial(session.PoolOptions, deadline=1.0))


def faulty(fault, tmp_path, at=8):
    """A factory of environments of which the first to get to its eighth step fails: in its second episode."""
    return functools.partial(Faulty, fault, str(tmp_path / "flag"), at)


def agent_in(mode, engine_name, env, kind="DQN", settings=None):
    """An agent, and how to train it with two processes."""
    mixins, options = MODES[mode]
    agent = agent_for(engine_name, kind, *mixins, env=env)
    agent.set(**(discrete() if settings is None else settings))
    return agent, functools.partial(train, agent, engine_name, processes=2, **options)


def check_pool(agent, rounds):
    """Every round gave a whole episode of both environments, and every transition is a step of one."""
    ring = pool_of(agent).ring
    assert len(pool_of(agent)) == rounds * 2 * 5
    check_ring(ring)
    batch = pool_of(agent).sample(1, 200)
    now, following = (np.rint(5 * x[0, :, 0]).astype(int) for x in (batch.observation, batch.next_observation))
    assert (following == now + 1).all(), "the first number of an observation tells the time in its episode"


@each_mode
@pytest.mark.parametrize("fault, told", [("die", "was ended by SIGKILL"), ("hang", "took no time step for")])
def test_of_a_worker_that_dies_or_hangs_only_open_episodes_are_lost(
    fault, told, mode, engine_name, tmp_path, short_deadline
):
    if mode != OVERLAPPING:
        once(engine_name)
    agent, go = agent_in(mode, engine_name, faulty(fault, tmp_path))
    with pytest.warns(UserWarning, match=f"(?s)Worker [01].*{told}.*replaced, its open episodes dropped"):
        go(4)
    assert agent.reward_list == [5.0] * 4
    check_pool(agent, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        go(2)
    assert agent.reward_list == [5.0] * 6


@each_mode
def test_an_exception_in_an_environment_ends_training_and_it_can_go_on(mode, engine_name, tmp_path):
    if mode != OVERLAPPING:
        once(engine_name)
    agent, go = agent_in(mode, engine_name, faulty("fail", tmp_path))
    agent.path = str(tmp_path / "model.dat")
    with pytest.raises(EnvironmentFault, match=r"environment [01], episode 1, step 3: .* raised ValueError: the door"):
        go(4)
    assert agent.reward_list == [5.0], "the first round is kept, and learned from"
    assert len(agent.loss_list) == 1
    check_pool(agent, 1)
    go(3)
    assert agent.reward_list == [5.0] * 4
    check_pool(agent, 4)
    other = agent_for(engine_name, env=Walk)
    other.restore(agent.path)
    assert other.total_episode == 4


def test_an_exception_in_this_process_ends_training_and_it_can_go_on(engine_name, tmp_path):
    once(engine_name)
    agent = agent_for(engine_name, env=faulty("fail", tmp_path))
    agent.set(**discrete())
    with pytest.raises(EnvironmentFault, match="the door is stuck"):
        train(agent, engine_name, 4)
    assert agent.reward_list == [5.0]
    train(agent, engine_name, 2)
    assert agent.reward_list == [5.0] * 3


def interrupt(*_):
    """What Ctrl-C does: the terminal interrupts this process and all of its children."""
    for worker in workers():
        os.kill(worker, signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)


@each_mode
def test_ctrl_c_ends_training_after_the_episode_at_hand(mode, engine_name, tmp_path):
    if mode != OVERLAPPING:
        once(engine_name)
    agent, go = agent_in(mode, engine_name, Walk)
    agent.path = str(tmp_path / "model.dat")
    heard = []

    def begin(episode, logs):
        if episode == 1:
            interrupt()

    with pytest.raises(KeyboardInterrupt):
        go(50, callbacks=[LambdaCallback(on_episode_begin=begin, on_train_end=heard.append)])
    assert Path(agent.path).exists()
    done = agent.total_episode
    assert done in (1, 2)
    assert len(heard) == 1, "whoever listens is told that training ends"
    check_pool(agent, done)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    go(2)
    assert agent.total_episode == done + 2
    check_pool(agent, done + 2)


@pytest.mark.parametrize("episodes", [1, 50])
def test_ctrl_c_ends_a_program_that_trains_in_this_process_too(episodes, engine_name, tmp_path):
    once(engine_name)
    agent = agent_for(engine_name)
    agent.set(**discrete())
    agent.path, agent.save_freq = str(tmp_path / "model.dat"), 1_000
    with pytest.raises(KeyboardInterrupt, match="interrupted after 1 episodes"):
        train(agent, engine_name, episodes, callbacks=[LambdaCallback(on_episode_end=interrupt)])
    restored = agent_for(engine_name)
    restored.restore(agent.path)
    assert agent.reward_list == restored.reward_list == [5.0]
    train(agent, engine_name, 1)
    assert agent.reward_list == [5.0] * 2


def test_a_closed_terminal_ends_training_after_the_episode_at_hand(engine_name, tmp_path):
    once(engine_name)
    agent = agent_for(engine_name)
    agent.set(**discrete())
    agent.path = str(tmp_path / "model.dat")

    def hang_up(*_):
        for _ in range(2):  # the kernel's and the shell's
            os.kill(os.getpid(), signal.SIGHUP)

    with pytest.raises(KeyboardInterrupt):
        train(agent, engine_name, 50, callbacks=[LambdaCallback(on_episode_end=hang_up)])
    assert agent.reward_list == [5.0]
    assert (tmp_path / "model.dat").exists()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_sigusr1_saves_an_agent_that_trains_on(engine_name, tmp_path):
    once(engine_name)
    agent = agent_for(engine_name)
    agent.set(**discrete())
    agent.path, agent.save_freq = str(tmp_path / "model.dat"), 1_000
    saved = []

    def ended(episode, logs):
        saved.append((tmp_path / "model.dat").exists())
        if episode == 1:
            os.kill(os.getpid(), signal.SIGUSR1)

    train(agent, engine_name, 4, callbacks=[LambdaCallback(on_episode_end=ended)])
    assert saved == [False, False, True, True]


@each_mode
def test_a_second_ctrl_c_ends_training_at_once_also_where_an_environment_hangs(mode, engine_name, tmp_path):
    if mode != OVERLAPPING:
        once(engine_name)
    agent, go = agent_in(mode, engine_name, faulty("hang", tmp_path))

    over = threading.Event()

    def interrupt_twice():
        while not (tmp_path / "flag").exists() and not over.wait(0.02):
            pass
        if not over.wait(0.2):
            interrupt()
        while signal.getsignal(signal.SIGINT) is not signal.default_int_handler and not over.wait(0.02):
            pass  # the first has not been heard: two at once are one
        if not over.wait(0.2):
            interrupt()

    thread = threading.Thread(target=interrupt_twice)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            go(50)
    finally:
        over.set()
        thread.join()
    done = agent.total_episode
    assert done <= 1, "the second round is the one that hangs; the first may still have been learned from"
    assert workers() == []
    go(2)
    assert agent.reward_list == [5.0] * (done + 2)


def test_whoever_interrupts_twice_does_not_wait_for_workers(engine_name, monkeypatch):
    agent = agent_for(engine_name)
    agent.set(**discrete())

    def interrupted(batch, logs):
        raise KeyboardInterrupt

    def asked(rollout):
        raise AssertionError("a worker that hangs would not answer")

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(session.InProcess, "state", asked)
        train(agent, engine_name, 2, callbacks=[LambdaCallback(on_batch_end=interrupted)])
    train(agent, engine_name, 2)
    assert agent.reward_list == [5.0] * 2


def test_on_policy_a_worker_that_dies_is_replaced(engine_name, tmp_path):
    once(engine_name)
    agent, go = agent_in("acting", engine_name, faulty("die", tmp_path), "PPO", on_policy())
    with pytest.warns(UserWarning, match="replaced"):
        go(3)
    assert agent.reward_list == [5.0] * 3
    assert len(pool_of(agent)) == 0, "every ten steps the old policy follows"


def test_trainings_one_after_the_other_hold_no_more_files_open(engine_name):
    once(engine_name)
    agent, go = agent_in("acting", engine_name, Walk)
    go(1)
    opened = []
    for _ in range(2):
        go(1)
        gc.collect()
        opened.append(len(os.listdir("/proc/self/fd")))
    assert opened[0] == opened[1]
