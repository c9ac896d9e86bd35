"""Run directories: never two writers, never a fresh start over a run, always a checkpoint to go on from."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from checkpoint_states import litter, same, small_state

from etude import checkpoint
from etude.base import files
from etude.base.errors import CheckpointError, ConfigError
from etude.base.events import Started
from etude.checkpoint.run_directory import RunDirectory
from etude.report import JsonLines, draw_runs
from etude.report.plots import Series

STEPS = np.arange(3.0)
SERIES = Series("dqn", "CartPole-v1", "0", STEPS, STEPS, STEPS + 1, STEPS[:0], ())


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[30] ^= 1  # in the first member
    path.write_bytes(data)


def run_with(path: Path, *steps: int, keep: int = 3) -> RunDirectory:
    with RunDirectory.create(path, "run", keep) as directory:
        for step in steps:
            directory.save(step, small_state(step))
    return RunDirectory(path, keep)


def test_default_directories_are_numbered_and_named_for_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = (RunDirectory.create(None, "dqn-my.module:Env/v0-s1") for _ in range(2))
    assert [str(first.path), str(second.path)] == ["runs/dqn-my.module-Env-v0-s1-1", "runs/dqn-my.module-Env-v0-s1-2"]
    assert str(RunDirectory.create(None, "../..").path) == "runs/run-1"


def test_runs_started_at_once_get_directories_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    children = []
    for _ in range(8):
        child = os.fork()
        if child == 0:
            try:
                RunDirectory.create(None, "run").write_config({"process": os.getpid()})
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    directories = [RunDirectory(path) for path in Path("runs").iterdir()]
    assert sorted(directory.read_config()["process"] for directory in directories) == sorted(children)


def test_a_second_run_cannot_write_one_directory(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run", "run")
    for opening in (
        lambda: RunDirectory.create(tmp_path / "run", "run"),
        lambda: RunDirectory.resume(tmp_path / "run"),
    ):
        directory.save(1, small_state())
        with pytest.raises(ConfigError, match=f"Another run is writing .*process {os.getpid()}.*run_dir="):
            opening()
    directory.close()
    directory.close()
    RunDirectory.resume(tmp_path / "run").close()


def test_the_lock_of_a_killed_process_is_gone_with_it(tmp_path: Path) -> None:
    path = tmp_path / "run"
    child = os.fork()
    if child == 0:
        try:
            held = RunDirectory.create(path, "run")
            held.save(1, small_state())
            time.sleep(60)
        finally:
            os._exit(1)
    while not RunDirectory(path).saved():
        time.sleep(0.005)
    with pytest.raises(ConfigError, match=f"process {child} "):
        RunDirectory.resume(path)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert RunDirectory.resume(path).load().path.name == "step_000000001.etude"


def test_a_released_lock_is_free_even_where_a_child_still_has_the_file_open(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run", "run")
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        directory.close()
        RunDirectory.create(tmp_path / "run", "run").close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_file_system_without_locks_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    with RunDirectory.create(tmp_path / "run", "run") as directory:
        assert "without locks" in directory.notes[0]


@pytest.mark.parametrize(("held", "kind"), [("study.jsonl", "study"), ("sweep.json", "sweep")])
def test_no_run_begins_in_the_folder_of_a_study_or_a_sweep(held: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / held).touch()
    with pytest.raises(ConfigError, match=f"is the folder of a {kind}. Give the run one of its own"):
        RunDirectory.create(tmp_path, "run")
    assert [path.name for path in tmp_path.iterdir()] == [held]


def test_a_directory_with_checkpoints_is_never_trained_from_scratch(tmp_path: Path) -> None:
    path = tmp_path / "run"
    directory = run_with(path, 1, 2)
    with pytest.raises(ConfigError, match=f"saved up to step 2.*etude resume '{path}'`.*run_dir="):
        RunDirectory.create(path, "run")
    for saved in directory.saved().values():
        damage(saved)
    with pytest.raises(ConfigError, match="etude resume"):
        RunDirectory.create(path, "run")
    with pytest.raises(CheckpointError, match="No checkpoint in .* can be continued from"):
        RunDirectory.resume(path).load()


def test_a_directory_with_only_the_best_agent_or_only_metrics_is_not_started_over_either(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "a", "run") as directory:
        directory.save_best(1, small_state())
    with pytest.raises(ConfigError, match="holds a run already"):
        RunDirectory.create(tmp_path / "a", "run")
    with RunDirectory.create(tmp_path / "b", "run") as directory:
        directory.metrics.write_text("")
    with RunDirectory.create(tmp_path / "b", "run") as directory:
        directory.metrics.write_text("{}\n")
    with pytest.raises(ConfigError, match="ended before its first checkpoint"):
        RunDirectory.create(tmp_path / "b", "run")


def test_the_last_few_checkpoints_are_kept_and_the_best_apart_from_them(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run", "run", keep=2) as directory:
        directory.save_best(1, small_state(1))
        for step in range(1, 7):
            directory.save(step, small_state(step))
        assert list(directory.saved()) == [5, 6]
        assert same(checkpoint.read(directory.best), small_state(1))
        assert checkpoint.inspect(directory.saved()[6]).meta == {"step": 6}
    with pytest.raises(ConfigError, match="at least 1"):
        RunDirectory(tmp_path / "run", keep=0)


def test_steps_are_ordered_as_numbers_beyond_nine_digits(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run", "run")
    directory.save(999_999_999, small_state(1))
    directory.save(1_000_000_000, small_state(2))
    assert same(directory.load().state, small_state(2))


def test_loading_falls_back_to_the_newest_complete_checkpoint_and_says_so(tmp_path: Path) -> None:
    directory = run_with(tmp_path / "run", 1, 2, 3)
    damage(directory.saved()[3])
    directory.saved()[2].write_bytes(directory.saved()[2].read_bytes()[:-9])
    loaded = directory.load()
    assert same(loaded.state, small_state(1)) and loaded.path == directory.saved()[1]
    assert "step_000000003.etude is damaged: member" in loaded.notes[0] and "incomplete" in loaded.notes[1]


def test_a_checkpoint_without_a_component_is_an_error_and_not_a_reason_to_go_back(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run", "run") as directory:
        directory.save(1, small_state())
        directory.save(2, {"engine": 1})
        with pytest.raises(CheckpointError, match="lacks replay"):
            directory.load(expect=("engine", "replay"))


def test_where_nothing_is_complete_every_reason_and_the_best_agent_are_named(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run", "run") as directory:
        directory.save(1, small_state(1))
        directory.save(2, small_state(2))
        directory.save_best(1, small_state(1))
        for path in directory.saved().values():
            damage(path)
        with pytest.raises(CheckpointError, match=r"step_000000002.*step_000000001.*best\.etude, is complete"):
            directory.load()


def test_saving_after_going_back_removes_what_was_passed_over(tmp_path: Path) -> None:
    directory = run_with(tmp_path / "run", 2, 4, 6)
    damage(directory.saved()[6])
    with RunDirectory.resume(tmp_path / "run") as directory:
        assert directory.load().path == directory.saved()[4]
        directory.save(5, small_state(5))
        assert list(directory.saved()) == [2, 4, 5]


def test_a_save_that_fails_removes_nothing(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run", "run", keep=1) as directory:
        directory.save(1, small_state(1))
        with pytest.raises(CheckpointError):
            directory.save(2, {"engine": object()})
        assert same(directory.load().state, small_state(1))


def test_litter_of_interrupted_saves_is_removed_by_who_has_the_lock_alone(tmp_path: Path) -> None:
    directory = run_with(tmp_path / "run", 1)
    unfinished = directory.checkpoints / f".step_000000009.etude.00ff{checkpoint.TEMPORARY}"
    unfinished.write_bytes(directory.saved()[1].read_bytes())
    assert list(directory.saved()) == [1]
    RunDirectory(tmp_path / "run").load()
    assert unfinished.exists()
    with RunDirectory.resume(tmp_path / "run") as directory:
        assert litter(directory.checkpoints) == []
        assert unfinished.name in directory.notes[0]


@pytest.mark.parametrize("opening", ["create", "resume"])
def test_unfinished_files_of_every_kind_are_removed(tmp_path: Path, opening: str) -> None:
    path = tmp_path / "run"
    directory = RunDirectory.create(path, "run")
    if opening == "resume":
        directory.save(1, small_state())
    directory.close()
    directory.video.mkdir()
    kinds = [directory.config, directory.metrics, directory.curve, directory.best, directory.video / "out.mp4"]
    unfinished = [checkpoint.temporary_beside(file) for file in kinds]
    for file in unfinished:
        file.write_text("half")
    again = RunDirectory.create(path, "run") if opening == "create" else RunDirectory.resume(path)
    with again:
        assert [file for file in unfinished if file.exists()] == []
        assert len(again.notes) == len(unfinished)


def test_what_looks_unfinished_is_left_where_there_are_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    directory = run_with(tmp_path / "run", 1)
    unfinished = checkpoint.temporary_beside(directory.config)
    unfinished.write_text("half, of another run that is writing it")
    monkeypatch.setattr(files.fcntl, "flock", refuse)
    RunDirectory.resume(tmp_path / "run").close()
    assert unfinished.exists()


def test_what_links_point_to_is_not_written_over(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("precious")
    path = tmp_path / "run"
    run_with(path, 1)
    (path / ".lock").unlink()
    (path / ".lock").symlink_to(mine)
    with pytest.raises(ConfigError, match=r"\.lock is a symbolic link"):
        RunDirectory.resume(path)
    (path / ".lock").unlink()
    for name in ("metrics.jsonl", "metrics.jsonl.partial", "config.json", "curve.png", "curve.png.partial"):
        (path / name).symlink_to(mine)
    with RunDirectory.resume(path) as directory:
        directory.best.symlink_to(mine)
        directory.write_config({})
        directory.save_best(1, small_state())
        with contextlib.closing(JsonLines(directory.metrics)) as lines:
            lines(Started(0, {}))
        draw_runs([SERIES], directory.curve)
    assert mine.read_text() == "precious"


def test_resuming_what_is_no_run_says_so(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(CheckpointError, match="no run to resume"):
            RunDirectory.resume(path)
        with pytest.raises(CheckpointError, match="no checkpoints in"):
            RunDirectory(path).load()
        with pytest.raises(CheckpointError, match=r"no config\.json"):
            RunDirectory(path).read_config()
    assert list(tmp_path.iterdir()) == []


def test_a_run_directory_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be made: (Not a directory|File exists).*run_dir="):
        RunDirectory.create(tmp_path / "file", "run")


def test_config_is_written_whole_and_broken_ones_are_refused(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run", "run") as directory:
        directory.write_config({"a": [1, None, "ü"]})
        assert directory.read_config() == {"a": [1, None, "ü"]}
        directory.config.write_text("{")
        with pytest.raises(CheckpointError, match="is not the config of a run"):
            directory.read_config()


def test_hyperparameters_that_an_earlier_version_lacked_say_what_it_did(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run", "run") as directory:
        for algorithm, held, expected in (
            ("ars", {"sigma": 0.1}, {"sigma": 0.1, "squash": True}),
            ("ars", {"squash": False}, {"squash": False}),
            ("dreamer_v3", {}, {"replay_coefficient": 0.0}),
            ("es", {"deviation": 0.1}, {"sigma": 0.1}),
        ):
            directory.write_config({"algorithm": algorithm, "config": held})
            assert directory.read_config()["config"] == expected


def test_charts_of_a_run_are_in_a_folder_of_its_name_unless_it_began_without(tmp_path):
    assert RunDirectory(tmp_path / "mine").tensorboard == tmp_path / "mine" / "tensorboard" / "mine"
    (tmp_path / "old" / "tensorboard").mkdir(parents=True)
    (tmp_path / "old" / "tensorboard" / "events.out.tfevents.1").touch()
    assert RunDirectory(tmp_path / "old").tensorboard == tmp_path / "old" / "tensorboard"
