"""Sweeps end to end: in this process and in worker processes, stopped and gone on with."""

from __future__ import annotations

import json
import os
import shutil
import signal

import gymnasium as gym
import numpy as np
import pytest
from study_worlds import TINY, Pointer

import etude
from etude.base.errors import ConfigError, NumericalError
from etude.report import JsonLines, read_records
from etude.run.group import RunGroup
from etude.tuning import Sweep
from etude.tuning import sweep as sweeps

TIMES = ("time/fps", "seconds", "saved")  # what differs between two runs of one seed


def tiny(folder, **more):
    """Three seeds of 96 steps."""
    given = {
        "seeds": 3, "steps": 96, "config": TINY, "engine": "torch", "environments": 2, "save_every": 32, "processes": 1,
    }  # fmt: skip
    return Sweep("ppo", Pointer, folder=folder, **{**given, **more})


def weights(result):
    """Of the run of every seed."""
    found = {}
    for seed in result.seeds:
        with result.load(seed, env=Pointer) as run:
            found[seed] = run.engine.weights()
    return found


def same(one, other):
    return all(np.array_equal(one[seed][name], other[seed][name]) for seed in one for name in one[seed])


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A sweep that was carried out without interruption, and its weights."""
    with tiny(tmp_path_factory.mktemp("sweep")) as sweep:
        result = sweep.run()
        assert sweep.finished and not sweep.failed and not sweep.notes
        return result, weights(result)


def test_each_seed_has_the_weights_and_the_metrics_of_its_run_alone(straight, tmp_path):
    result, found = straight
    arguments = {"config": TINY, "engine": "torch", "environments": 2, "seed": 1, "run_dir": tmp_path / "run"}
    with etude.Run("ppo", Pointer, **arguments) as run:
        run.train(96, JsonLines(tmp_path / "metrics.jsonl"), save_every=32)
        alone = run.engine.weights()
    assert all(np.array_equal(alone[name], found[1][name]) for name in alone)
    records = [read_records(path / "metrics.jsonl") for path in (tmp_path, result.directory(1))]
    numbers = [
        [{k: v for k, v in r.items() if k not in TIMES and k != "started"} for r in each if "saved" not in r]
        for each in records
    ]
    assert numbers[0] == numbers[1]


def test_the_result_has_curves_returns_an_interval_a_table_and_a_picture(straight):
    result, _ = straight
    assert list(result.curves) == list(result.returns) == [0, 1, 2]
    low, high = result.interval
    assert min(result.returns.values()) <= low <= result.iqm <= high <= max(result.returns.values())
    header, rows = result.table()
    assert header == ["seed", "return", "step", "status"] and {row[0] for row in rows} == {"0", "1", "2"}
    assert all(row[2:] == ["96", "finished"] for row in rows)
    assert [path.name for path in result.write()] == ["results.csv", "curves.png"]
    assert result.summary().startswith("3 seeds: interquartile mean")
    with pytest.raises(ConfigError, match="this sweep has the seeds 0, 1, 2"):
        result.directory(7)


@pytest.mark.parametrize("reports", [0, 2])
def test_a_sweep_that_was_stopped_goes_on_to_the_same_weights(tmp_path, straight, reports):
    def stop_after(sweep, left=[reports]):  # noqa: B006  (it counts)
        left[0] -= 1
        if left[0] < 0:
            sweep.stop()

    with tiny(tmp_path) as sweep:
        sweep.run(stop_after)
        assert not sweep.finished
    with tiny(tmp_path) as sweep:
        result = sweep.run()
        assert sweep.finished and same(weights(result), straight[1])


@pytest.mark.parametrize("lost", [{1: [96], 2: [96]}, {1: [64, 96], 2: [96]}, {2: [96]}])
def test_a_sweep_that_was_killed_goes_on_from_its_checkpoints(tmp_path, straight, lost):
    shutil.copytree(straight[0].folder, tmp_path / "killed")
    for seed, steps in lost.items():
        for step in steps:
            (tmp_path / f"killed/seed-000{seed}/checkpoints/step_{step:09d}.etude").unlink()
    with tiny(tmp_path / "killed") as sweep:
        assert not sweep.finished
        result = sweep.run()
        assert sweep.finished and same(weights(result), straight[1])
    records = read_records(result.directory(2) / "metrics.jsonl")
    assert [record["step"] for record in records] == sorted(record["step"] for record in records)


def test_a_damaged_checkpoint_is_passed_over(tmp_path, straight):
    shutil.copytree(straight[0].folder, tmp_path / "damaged")
    checkpoints = tmp_path / "damaged/seed-0001/checkpoints"
    (checkpoints / "step_000000096.etude").unlink()
    (checkpoints / "step_000000064.etude").write_bytes(b"nothing")
    with tiny(tmp_path / "damaged") as sweep:
        assert same(weights(sweep.run()), straight[1])


def test_worker_processes_give_the_same_weights_and_one_that_is_killed_is_replaced(tmp_path, straight):
    killed = []

    def kill_once(sweep):
        for worker in sweep._executor._workers:
            if not killed and sweep.at and worker.running:
                killed.append(worker.process.pid)
                os.kill(worker.process.pid, signal.SIGKILL)

    with tiny(tmp_path, processes=2) as sweep:
        result = sweep.run(kill_once)
        assert killed and any("Sweep worker" in note and "SIGKILL" in note for note in sweep.notes)
        assert same(weights(result), straight[1])


class Sour(Pointer):
    """Its episodes whose seeds are multiples of 3 end in an error."""

    def reset(self, *, seed=None, options=None):
        self.sour = seed is not None and seed % 3 == 0
        return super().reset(seed=seed)

    def step(self, action):
        if self.sour:
            raise RuntimeError("the milk is sour")
        return super().step(action)


def test_a_fault_of_an_environment_is_named_by_its_seed_and_the_runs_are_saved(tmp_path):
    given = {"config": TINY, "engine": "torch", "environments": 2, "processes": 1}
    with Sweep("ppo", Sour, seeds=2, steps=96, folder=tmp_path, **given) as sweep:
        result = sweep.run()
    assert sorted(result.failed) == [0, 1] and len(set(result.failed.values())) == 1
    assert "of seed" in result.failed[0] and "the milk is sour" in result.failed[0]
    assert {row[3] for row in result.table()[1]} == {"failed"}


def test_a_run_that_diverges_ends_alone(tmp_path, monkeypatch, straight):
    def diverge():
        raise NumericalError("loss = nan")

    class Group(RunGroup):
        def __init__(self, runs):
            super().__init__(runs)
            runs[1].learner.learn_if_due = diverge

    monkeypatch.setattr(sweeps, "RunGroup", Group)
    with tiny(tmp_path) as sweep:
        result = sweep.run()
    assert list(result.failed) == [1] and "loss = nan" in result.failed[1]
    for seed in (0, 2):
        with result.load(seed, env=Pointer) as run:
            assert all(np.array_equal(own, straight[1][seed][name]) for name, own in run.engine.weights().items())


def test_what_cannot_be_stepped_together_is_trained_one_after_the_other_and_says_why(tmp_path):
    sweep = Sweep(
        "reinforce", Pointer, seeds=2, steps=32, network=etude.Mlp((4,)), engine="torch", folder=tmp_path, processes=1
    )
    with sweep:
        result = sweep.run()
    assert sweep.notes == [
        "The runs of a process are trained one after the other: Reinforce learns from whole episodes."
    ]
    assert sweep.finished and set(result.returns) == {0, 1}


def test_one_simulator_steps_the_environments_of_all_runs(tmp_path):
    with Sweep(
        "ppo", "CartPole-v1", seeds=2, steps=64, config=TINY, engine="torch", environments=2, folder=tmp_path,
        processes=1, vectorization="native",
    ) as sweep:  # fmt: skip
        result = sweep.run()
    assert sweep.finished and not sweep.failed
    with result.load(1) as run:
        assert run.step == 64 and run.execution.seed == 1


@pytest.mark.parametrize(("held", "kind"), [("study.jsonl", "study"), ("metrics.jsonl", "run")])
def test_the_folder_of_a_study_or_a_run_takes_no_sweep(held, kind, tmp_path):
    (tmp_path / held).touch()
    with pytest.raises(ConfigError, match=f"is the folder of a {kind}. Give the sweep one of its own"):
        tiny(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [held]


def test_another_sweep_in_the_folder_is_refused(tmp_path, straight):
    with tiny(tmp_path):
        pass
    with pytest.raises(ConfigError, match="is another one: .*steps"):
        tiny(tmp_path, steps=64)
    with tiny(tmp_path), pytest.raises(ConfigError, match="Another process carries out the sweep"):
        tiny(tmp_path)
    (tmp_path / "sweep.json").unlink()
    (tmp_path / "seed-0000").mkdir()
    with pytest.raises(ConfigError, match="holds runs, and no sweep.json"):
        tiny(tmp_path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seeds": ()}, "expected how many"),
        ({"seeds": [1, 1]}, "each once"),
        ({"seeds": [-1]}, "at least 0"),
        ({"steps": 0}, "steps = 0"),
        ({"steps": None}, "there is no preset"),
        ({"processes": 0}, "processes = 0"),
        ({"seed": 3}, "takes no seed"),
        ({"run_dir": "x"}, "takes no run_dir"),
        ({"evaluate_every": -1}, "evaluate_every = -1"),
        ({"learning_rat": 1}, "learning_rat"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(tmp_path, given, message):
    folder = tmp_path / "sweep"
    arguments = {"config": TINY, **given} if "learning_rat" not in given else given
    with pytest.raises(ConfigError, match=message):
        tiny(folder, **arguments) if "learning_rat" not in given else Sweep("ppo", Pointer, folder=folder, **given)
    assert not folder.exists()


def test_evaluations_make_the_curves_and_the_returns(tmp_path):
    with tiny(tmp_path, evaluate_every=48, evaluate_episodes=2) as sweep:
        result = sweep.run()
    steps, _ = result.curves[0]
    assert steps.tolist() == [48, 96]
    records = read_records(result.directory(0) / "metrics.jsonl")
    last = [record["eval/returns"] for record in records if "eval/returns" in record][-1]
    assert result.returns[0] == np.mean(last)


def test_the_header_is_plain_data(straight):
    result, _ = straight
    assert json.loads((result.folder / "sweep.json").read_text())["sweep"]["seeds"] == [0, 1, 2]


def test_the_function_trains_and_returns_the_result(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = etude.sweep(
        "ppo", gym.make("CartPole-v1").spec.id, seeds=(5,), steps=32, config=TINY, engine="torch", environments=2
    )
    assert result.folder.as_posix() == "sweeps/ppo-CartPole-v1-1" and result.seeds == (5,)


def test_a_sweep_goes_on_with_more_seeds_and_more_steps(tmp_path, straight):
    with tiny(tmp_path, seeds=2, steps=64) as sweep:
        sweep.run()
    with tiny(tmp_path) as sweep:
        assert sweep.run().seeds == (0, 1, 2) and sweep.finished
    assert same(weights(sweep.result), straight[1]), "the config has no schedules that the first steps would differ by"
    with pytest.raises(ConfigError, match="seeds was .*with more seeds or steps"):
        tiny(tmp_path, seeds=[4, 5])
