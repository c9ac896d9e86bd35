"""A process that is forked from one with runs computes where it can, says what to do where it cannot, and leaves what
belongs to the other one alone."""

import gc
import os
import select
import subprocess
import sys

import gymnasium as gym
import pytest
from run_cases import PPO_TINY, differences

from etude import Mlp, Run
from etude.base.errors import ConfigError
from etude.base.forks import home_of
from etude.checkpoint.run_directory import RunDirectory

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system forks no processes"),
    pytest.mark.filterwarnings("ignore:os.fork", "ignore:This process .* is multi-threaded"),
]
# Torch gives a part of such work to threads.
WIDE = {"config": None, "network": Mlp((512, 512)), "rollout_length": 64}


def in_fork(function, seconds=40):
    """What a function returns in a fork of this process, as text, or the error that it raises."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            text = str(function())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    ready = select.select([reading], [], [], seconds)[0]
    text = os.read(reading, 65536).decode() if ready else "it hangs"
    os.close(reading)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return text


def made(engine_name, **more):
    given = {"config": PPO_TINY, "environments": 2, "seed": 1, "engine": engine_name, **more}
    return Run("ppo", "CartPole-v1", **given)


def test_a_run_in_a_fork_learns_or_says_how_to_start_processes(engine_name):
    more = WIDE if engine_name == "torch" else {}

    def new():
        with made(engine_name, **more) as run:
            return run.train(128).reason

    with made(engine_name, **more) as run:
        run.train(128)
        found = [in_fork(new), in_fork(lambda: run.train(128).reason)]
        home_of.cache_clear()  # as where a program ran the framework without etude
        found.append(in_fork(new))
        assert run.train(128).reason == "steps", "the run itself goes on"
    if engine_name == "torch":
        assert found == ["steps"] * 3
    else:
        for text in found:
            assert text.startswith("ConfigError: This process was forked from") and f"where {engine_name} runs" in text
            assert "multiprocessing.get_context('spawn')" in text


@pytest.mark.variant
def test_workers_belong_to_the_process_that_started_them(engine_name):
    with made(engine_name, workers=2) as run, made(engine_name) as alone:
        for each in (run, alone):
            each.train(64)
        held = [run]

        def drop():
            held[0].close()
            held[0].__dict__.clear()
            return gc.collect() >= 0

        assert "ConfigError: The workers are those of process" in in_fork(lambda: run.train(64))
        assert in_fork(drop) == "True"
        for each in (run, alone):
            each.train(64)
        assert not differences(run.engine.weights(), alone.engine.weights())


@pytest.mark.variant
def test_a_fork_leaves_the_lock_of_a_run_directory_to_the_run(engine_name, tmp_path):
    directory = RunDirectory.create(tmp_path / "run", "run")
    assert in_fork(directory.close) == "None"
    with pytest.raises(ConfigError, match="Another run is writing"):
        RunDirectory.create(tmp_path / "run", "run")
    directory.close()
    RunDirectory.create(tmp_path / "run", "run").close()


@pytest.mark.variant
def test_a_run_with_a_directory_trains_in_the_process_that_made_it(engine_name, tmp_path):
    with made(engine_name, run_dir=tmp_path / "run") as run:
        run.train(64)
        before = sorted(tmp_path.rglob("*.etude"))
        assert f"ConfigError: Process {os.getpid()}, which this one was forked from, writes to" in in_fork(
            lambda: run.train(64)
        )
        assert sorted(tmp_path.rglob("*.etude")) == before
        assert run.train(64).reason == "steps"


class Closing(gym.Wrapper):
    """Counts how often it was closed."""

    closed = 0

    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))

    def close(self):
        Closing.closed += 1
        super().close()


@pytest.mark.variant
def test_a_run_that_is_dropped_closes_its_environments_but_not_in_a_fork(engine_name):
    held = [Run("ppo", Closing, config=PPO_TINY, environments=3, engine=engine_name)]
    held[0].train(96)
    held[0].evaluate(episodes=1)
    before = Closing.closed

    def drop():
        held.clear()
        gc.collect()
        return Closing.closed - before

    assert in_fork(drop) == "0", "they belong to the process that made them"
    assert drop() >= 3


KERAS = """
import os, sys
import etude
with etude.Run("ppo", "CartPole-v1", engine={engine!r}, rollout_length=16, environments=1) as run:
    run.train(32)
print(os.environ.get("KERAS_BACKEND"), "keras" in sys.modules)
"""


SET = [pytest.param("numpy", marks=pytest.mark.one_engine("tensorflow")), pytest.param(None, marks=pytest.mark.variant)]


@pytest.mark.parametrize("set_by_user", SET)
def test_what_a_user_set_of_keras_stays(engine_name, set_by_user, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    environment |= {} if set_by_user is None else {"KERAS_BACKEND": set_by_user}
    done = subprocess.run(
        [sys.executable, "-c", KERAS.format(engine=engine_name)], env=environment, capture_output=True, text=True
    )
    assert done.stdout.split() == [str(set_by_user), str(engine_name == "tensorflow")], done.stderr
