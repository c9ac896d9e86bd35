"""Runs that are given the path of a directory, and directories that are loaded."""

from __future__ import annotations

import numpy as np
import pytest
from run_makers import DQN_TINY, tiny
from run_worlds import Counted

import etude
from etude import cli
from etude.base.errors import CheckpointError, ConfigError
from etude.base.events import Saved
from etude.checkpoint.run_directory import RunDirectory
from etude.report import JsonLines, read_records


@pytest.mark.parametrize("kind", [str, lambda path: path], ids=["text", "path"])
def test_a_path_makes_a_run_directory_that_is_closed_with_the_run(kind, tmp_path):
    path = tmp_path / "runs" / "mine"
    with tiny(run_dir=kind(path)) as run:
        run.train(40)
        with pytest.raises(ConfigError, match="Another run is writing"):
            RunDirectory.resume(path)
    assert list(RunDirectory(path).saved()) == [40]
    RunDirectory.resume(path).close()
    run.train(40)  # a run that was closed goes on, and takes its directory again
    with pytest.raises(ConfigError, match="Another run is writing"):
        RunDirectory.resume(path)
    run.close()
    assert list(RunDirectory(path).saved()) == [40, 80]


def test_checkpoints_without_a_directory_for_them_are_refused_before_a_step():
    with tiny() as run:
        with pytest.raises(ConfigError, match="save_every = 40, and the run has no directory to save in"):
            run.train(80, save_every=40)
        assert run.step == 0


def test_a_directory_that_holds_a_run_is_not_started_over(tmp_path):
    with tiny(run_dir=tmp_path / "mine") as run:
        run.train(40)
    with pytest.raises(ConfigError, match="holds a run already, saved up to step 40"):
        tiny(run_dir=tmp_path / "mine")


def test_a_run_that_cannot_be_made_leaves_no_directory_behind(tmp_path):
    with pytest.raises(ConfigError):
        tiny(run_dir=tmp_path / "mine", engine="none of them")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", [5, b"", "", True, ["runs"]], ids=repr)
def test_what_is_no_directory_is_refused_at_once(given):
    with pytest.raises(ConfigError, match="run_dir = .*expected the path of a new directory"):
        tiny(run_dir=given)


def test_a_run_directory_is_loaded_from_its_newest_complete_checkpoint(tmp_path):
    with tiny(run_dir=tmp_path / "mine") as run:
        run.train(80, save_every=40)
        weights = run.engine.weights()
    with etude.load(tmp_path / "mine", Counted) as again:
        assert again.step == 80
        assert all(np.array_equal(value, weights[name]) for name, value in again.engine.weights().items())
    newest = tmp_path / "mine" / "checkpoints" / "step_000000080.etude"
    newest.write_bytes(newest.read_bytes()[:-9])
    with pytest.warns(UserWarning, match="step_000000080.etude is"), etude.load(tmp_path / "mine", Counted) as again:
        assert again.step == 40
    with pytest.raises(CheckpointError, match="no checkpoints"):
        etude.load(tmp_path, Counted)


def test_the_command_line_goes_on_with_a_run_that_was_given_a_path(tmp_path):
    with etude.Run("dqn", "CartPole-v1", config=DQN_TINY, engine="torch", run_dir=tmp_path / "mine") as run:
        run.train(40)
    assert cli.main(["resume", str(tmp_path / "mine"), "--steps", "60"]) == 0
    assert max(RunDirectory(tmp_path / "mine").saved()) == 60


def test_a_run_that_was_killed_between_a_checkpoint_and_its_record_leaves_the_metrics_of_the_uninterrupted_one(
    tmp_path,
):
    def measured(path):
        records = [{k: v for k, v in r.items() if k != "time/fps"} for r in read_records(path)]
        return [record for record in records if any("/" in key for key in record)]

    with tiny(run_dir=tmp_path / "whole") as run:
        run.train(80, callbacks=JsonLines(tmp_path / "whole.jsonl"), save_every=40)
    report = JsonLines(tmp_path / "killed.jsonl")
    with tiny(run_dir=tmp_path / "killed") as run:
        for event in run.steps(80, save_every=40):
            if isinstance(event, Saved):  # the checkpoint is there, and nobody heard of it
                break
            report(event)
    with etude.load(tmp_path / "killed", Counted) as run:
        assert run.step == 40
        run.train(40, callbacks=JsonLines(tmp_path / "killed.jsonl"))
    assert measured(tmp_path / "killed.jsonl") == measured(tmp_path / "whole.jsonl")
