"""Runs that are recorded while they train: what the files hold, in every format, and after an interruption."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import python_programs
from recordings import SPACES, dataset, each_format

import etude
from etude.base import trees
from etude.base.errors import ConfigError, DataError
from etude.base.events import Collected
from etude.base.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from etude.checkpoint.run_directory import RunDirectory
from etude.explore import Sample
from etude.networks import Mlp
from etude.offline import EpisodeRecorder, Reader, Writer, to_steps
from etude.offline.files import metadata_of

pytestmark = pytest.mark.usefixtures("quick_shards")
IMAGE = Box(0, 255, (36, 36, 1), np.uint8)
ACTIONS = {
    "discrete": Discrete(3, start=-1),
    "multidiscrete": MultiDiscrete([3, 2], start=[1, -1]),
    "multibinary": MultiBinary(3),
    "box": Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32)),
}


class Anything(gym.Env):
    """Observations of every kind, drawn from the seed of the episode; episodes of 1 to 9 steps, of both ends."""

    def __init__(self, actions: str):
        vector = Box(-np.inf, np.inf, (2,), np.float64)
        self.observation_space = Dict(
            {"a/b": vector, "image": IMAGE, "more": Tuple([Discrete(4, start=2), MultiBinary(2)])}
        )
        self.action_space = ACTIONS[actions]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 10))
        return self._observation(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.left -= 1
        ended = self.left == 0 and self.np_random.random() < 0.5
        return self._observation(), float(self.np_random.normal()), ended, self.left == 0 and not ended, {}

    def _observation(self):
        draw = self.np_random
        more = np.int64(draw.integers(2, 6)), draw.integers(0, 2, 2).astype(np.int8)
        return {"a/b": draw.normal(size=2), "image": draw.integers(0, 256, (36, 36, 1)).astype(np.uint8), "more": more}


def run_on(env, **settings):
    return etude.Run("ppo", env, seed=3, engine="torch", environments=2, network=Mlp((8,)), rollout_length=16,
                     minibatch_size=16, epochs=1, **settings)  # fmt: skip


class Kept:
    """The episodes of a run as its events show them."""

    def __init__(self):
        self.recorder = EpisodeRecorder()

    def __call__(self, event):
        for steps in event.steps if isinstance(event, Collected) else ():
            self.recorder.add(steps)

    @property
    def episodes(self):
        return self.recorder.episodes


def assert_same_episodes(found, wanted):
    found, wanted = list(found), list(wanted)
    assert len(found) == len(wanted) > 0
    for mine, theirs in zip(found, wanted, strict=True):
        assert (mine.terminated, mine.truncated) == (theirs.terminated, theirs.truncated)
        for name in ("observation", "action", "reward", "extras"):
            pairs = zip(trees.items(getattr(mine, name)), trees.items(getattr(theirs, name)), strict=True)
            for (path, one), (other_path, other) in pairs:
                assert path == other_path and one.dtype.kind == other.dtype.kind and one.shape == other.shape, (
                    name,
                    path,
                )
                np.testing.assert_array_equal(one, other, err_msg=f"{name}.{path}")


@pytest.mark.long_but("box", "jsonl", "multidiscrete-minari")
@each_format
@pytest.mark.parametrize("actions", ACTIONS)
def test_every_kind_of_space_passes_bit_for_bit(tmp_path, form, actions):
    kept = Kept()
    run_on(lambda: Anything(actions)).train(128, [kept, Writer(tmp_path, form, max_bytes=2**16)])
    reader = Reader(tmp_path)
    assert len(reader.files) > 1
    assert_same_episodes(reader.episodes(), kept.episodes)
    assert reader.source.action == ACTIONS[actions] and "log_prob" in kept.episodes[0].extras


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_record_what_one_process_records(tmp_path, workers):
    kept = Kept()
    run_on("Pendulum-v1").train(600, [kept])
    with run_on("Pendulum-v1", workers=workers) as run:
        run.train(600, [Writer(tmp_path)])
    assert_same_episodes(Reader(tmp_path).episodes(), kept.episodes)


@pytest.mark.long_but("0", "2-parquet")
@each_format
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_that_resumes_records_what_an_uninterrupted_one_does(tmp_path, form, workers):
    kept = Kept()
    run_on("CartPole-v1").train(512, [kept])
    with run_on("CartPole-v1", workers=workers, run_dir=tmp_path / "run") as run:
        writer = Writer(tmp_path / "data", form)
        for event in run.steps(512, save_every=128):  # left behind past the last checkpoint
            writer(event)
            if event.step > 256 and isinstance(event, Collected):
                break
    with etude.load(tmp_path / "run", run_dir=tmp_path / "more") as run:
        assert run.step == 256
        run.train(256, [Writer(tmp_path / "data", form)])
    assert_same_episodes(Reader(tmp_path / "data").episodes(), kept.episodes)


def test_a_run_that_trains_again_goes_on_with_open_episodes(tmp_path):
    kept, writer = Kept(), Writer(tmp_path)
    run = run_on("CartPole-v1")
    run.train(128, [kept, writer])
    run.train(128, [kept, writer])
    run.train(128, [kept, Writer(tmp_path)])
    assert_same_episodes(Reader(tmp_path).episodes(), kept.episodes)


def test_shards_of_later_steps_are_renamed_when_a_run_goes_back(tmp_path):
    run = run_on("CartPole-v1", run_dir=tmp_path / "run")
    run.train(256, [Writer(tmp_path / "data")], save_every=128)
    first = tmp_path / "run" / "checkpoints"
    early = sorted(first.glob("*.etude"))[0]
    with etude.load(early) as again:
        again.train(256 - again.step, [Writer(tmp_path / "data")])
    names = sorted(path.name for path in (tmp_path / "data").iterdir() if not path.name.startswith("."))
    assert names == ["ppo-seed3-00000.parquet", "ppo-seed3-00001.parquet", "ppo-seed3-00001.parquet.superseded"]


def test_a_folder_that_holds_the_recording_of_another_run_is_refused(tmp_path):
    run_on("CartPole-v1").train(128, [Writer(tmp_path)])
    with pytest.raises(DataError, match="holds a recording 'ppo-seed3' already"):
        run_on("CartPole-v1").train(128, [Writer(tmp_path)])
    other = run_on("Acrobot-v1")
    other.train(32)
    with pytest.raises(DataError, match="a recording 'ppo-seed3' of another run"):
        other.train(32, [Writer(tmp_path)])
    other.train(32, [Writer(tmp_path, name="acrobot")])


def test_a_run_that_is_recorded_from_its_middle_leaves_out_what_had_begun(tmp_path):
    kept, run = Kept(), run_on("CartPole-v1")
    run.train(128, [kept])
    before, writer = len(kept.episodes), Writer(tmp_path)
    run.train(128, [kept, writer])
    assert_same_episodes(Reader(tmp_path).episodes(), kept.episodes[before + 2 :])
    assert writer.incomplete == 2  # one in each environment


def test_shards_say_what_recorded_them(tmp_path):
    run_on("CartPole-v1").train(256, [Writer(tmp_path)])
    about = metadata_of(next(tmp_path.glob("*.parquet")))
    assert (about["environment"], about["run"]["algorithm"], about["run"]["seed"]) == ("CartPole-v1", "ppo", 3)
    assert about["run"]["config"]["rollout_length"] == 16 and about["step"] == 256


def test_json_lines_are_plain_json_with_an_episode_each(tmp_path):
    kept = Kept()
    run_on("CartPole-v1").train(256, [kept, Writer(tmp_path, "jsonl")])
    (path,) = map(Path, Reader(tmp_path).files)
    first, *lines, last = [json.loads(line) for line in path.read_text().splitlines()]
    assert [sum(line["rewards"]) for line in lines] == [each.reward.sum() for each in kept.episodes]
    assert len(lines[0]["observations"]) == len(lines[0]["actions"]) + 1
    assert first["etude"]["environment"] == "CartPole-v1" and last["etude"]["episodes"] == len(lines)
    assert "Infinity" not in path.read_text() and "NaN" not in path.read_text()


KILLED = """
import os, signal, sys
import etude
from etude.base.events import Collected
from etude.offline import Writer

run = etude.Run("ppo", "CartPole-v1", seed=3, engine="torch", environments=2, network=etude.Mlp((8,)),
                rollout_length=16, minibatch_size=16, epochs=1, run_dir=sys.argv[1])
writer = Writer(sys.argv[2], sys.argv[3], max_bytes=2**16)
for event in run.steps(768, save_every=256):
    writer(event)
    if isinstance(event, Collected) and event.step >= 640:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long_but("parquet")
@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_killed_run_leaves_shards_that_can_be_read_and_goes_on(tmp_path, form):
    kept = Kept()
    run_on("CartPole-v1").train(768, [kept])
    assert python_programs.start("-c", KILLED, tmp_path / "run", tmp_path / "data", form).wait() == -signal.SIGKILL
    before = list(Reader(tmp_path / "data").episodes())
    assert_same_episodes(before, kept.episodes[: len(before)])
    with RunDirectory.resume(tmp_path / "run") as directory, etude.load(tmp_path / "run", run_dir=directory) as run:
        assert run.step == 512
        run.train(256, [Writer(tmp_path / "data", form, max_bytes=2**16)])
    assert_same_episodes(Reader(tmp_path / "data").episodes(), kept.episodes)


def test_a_full_disk_costs_a_warning_and_not_the_run(tmp_path, monkeypatch):
    writer, warned = Writer(tmp_path), []

    def full(self, block):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("etude.offline.parquet.ParquetShard.append", full)
    run_on("CartPole-v1").train(128, [writer, lambda event: warned.append(str(getattr(event, "message", "")))])
    assert any("Writer cannot write" in each for each in warned) and not list(tmp_path.glob("*.partial"))


def test_runs_that_collect_no_steps_cannot_be_recorded(tmp_path):
    with pytest.raises(ConfigError, match="collects no steps"):
        etude.Run("bc", "CartPole-v1", data=etude.record("CartPole-v1", 2), network=Mlp((8,)), engine="torch").train(
            10, [Writer(tmp_path)]
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "csv"}, "format = 'csv'; expected parquet, hdf5, jsonl, minari"),
        ({"compression": "rar"}, "compression = 'rar'; parquet takes zstd"),
        ({"max_bytes": 10}, "max_bytes = 10; expected a whole number"),
        ({"name": "../up"}, "name = '../up'; expected letters"),
    ],
)
def test_arguments_that_a_writer_cannot_use_are_named(tmp_path, arguments, message):
    with pytest.raises(ConfigError, match=message):
        Writer(tmp_path, **arguments)


def test_steps_of_an_unknown_environment_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="give it spaces="):
        Writer(tmp_path).add(to_steps(dataset("box").episodes))


def test_extras_can_be_left_out(tmp_path):
    run = etude.Run(
        "ppo",
        "CartPole-v1",
        engine="torch",
        environments=1,
        rollout_length=32,
        execution=etude.Execution(explorer=Sample()),
    )
    run.train(128, [Writer(tmp_path, columns=[])])
    assert next(Reader(tmp_path).episodes()).extras == {}


def test_a_second_recording_in_the_same_folder_is_read_with_the_first(tmp_path):
    with (
        Writer(tmp_path, name="one", spaces=SPACES["box"]) as one,
        Writer(tmp_path, name="two", spaces=SPACES["box"]) as two,
    ):
        one.write(dataset("box").episodes)
        two.write(dataset("box").episodes)
    assert len(list(Reader(tmp_path).episodes())) == 8
    with pytest.raises(DataError, match="holds a recording 'one' already"):
        Writer(tmp_path, name="one", spaces=SPACES["box"])
