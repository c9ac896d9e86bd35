"""`etude stacks`, and what train prints with -v and -q."""

import socket
import sys

import pytest

import etude
from etude import cli
from etude.checkpoint.run_directory import RunDirectory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_the_stacks_of_a_run_and_of_its_workers_are_printed_and_the_run_goes_on(capsys, tmp_path):
    with etude.Run("ppo", "CartPole-v1", engine="torch", workers=2, run_dir=tmp_path / "run") as run:
        run.train(300)
        for _ in range(2):
            assert cli.main(["stacks", str(tmp_path / "run")]) == 0
            printed = capsys.readouterr().out
            trainer, *workers = printed.split("--- ")[1:]
            assert "which trains" in trainer
            assert "test_the_stacks_of_a_run" in trainer
            assert trainer.count("most recent call first") >= 1
            assert len(workers) == 2
            assert all("worker.py" in each and each.startswith("worker process") for each in workers)
        assert run.train(300).step == 600


def test_a_run_that_nobody_trains_has_no_stacks(capsys, tmp_path):
    with RunDirectory.create(tmp_path / "run", "run"):
        pass
    assert cli.main(["stacks", str(tmp_path / "run")]) == 2
    assert "No process trains in" in capsys.readouterr().err
    (tmp_path / "run" / ".lock").write_text("process 1 on elsewhere" + socket.gethostname())
    assert cli.main(["stacks", str(tmp_path / "run")]) == 2
    assert "was last trained in on elsewhere" in capsys.readouterr().err
    (tmp_path / "run" / ".lock").write_text("")
    assert cli.main(["stacks", str(tmp_path / "run")]) == 2
    assert "does not say which process" in capsys.readouterr().err
    assert cli.main(["stacks", str(tmp_path / "nothing")]) == 2
    assert "is no run directory" in capsys.readouterr().err


TRAIN = ["train", "dqn", "CartPole-v1", "--steps", "60", "--engine", "torch", "--set.learning-starts", "20"]


def test_verbose_prints_every_event_and_quiet_nothing(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main([*TRAIN, "--run-dir", "loud", "-v", "--keep-info", "speed"]) == 0
    lines = capfd.readouterr().out.splitlines()
    events = [line.split("  ")[1] for line in lines if line.startswith("step ")]
    assert events[0] == "Started"
    assert {"Collected", "Evaluated", "Saving", "Saved", "Warned", "Finished"} <= set(events)
    assert any("info holds no 'speed'" in line for line in lines)
    assert cli.main([*TRAIN, "--run-dir", "still", "-q"]) == 0
    assert cli.main(["resume", "still", "--steps", "80", "-q"]) == 0
    assert capfd.readouterr() == ("", "")
    assert (tmp_path / "still" / "metrics.jsonl").exists()


def test_verbose_and_quiet_contradict_each_other(capsys):
    assert cli.main([*TRAIN, "-v", "-q"]) == 2
    assert "-v (--verbose) and -q (--quiet) contradict each other" in capsys.readouterr().err
