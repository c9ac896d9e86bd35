"""The command line from training to a video, with real runs."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time

import pytest
import python_programs

import etude
from etude import cli
from etude.report import read_records

LEARNING = [
    "--set.learning-starts",
    "100",
    "--set.train-every",
    "100",
    "--set.gradient-steps",
    "5",
    "--set.network.widths",
    "8",
]
SCHEDULE = ["--evaluate-every", "400", "--evaluate-episodes", "2", "--save-every", "300"]


def arguments(engine_name, directory, steps):
    given = ["--engine", engine_name, "--steps", str(steps), "--seed", "1", "--run-dir", str(directory)]
    return ["train", "dqn", "CartPole-v1", *given, *LEARNING, *SCHEDULE]


@pytest.fixture(scope="module")
def trained(engine_name, tmp_path_factory):
    """The directory of a run of 900 steps; only read."""
    directory = tmp_path_factory.mktemp("runs") / "whole"
    assert cli.main(arguments(engine_name, directory, 900)) == 0
    return directory


def measured(directory):
    records = [{k: v for k, v in r.items() if k != "time/fps"} for r in read_records(directory / "metrics.jsonl")]
    return [record for record in records if any("/" in key for key in record)]


@pytest.mark.variant
def test_a_run_can_be_evaluated_watched_and_plotted(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    assert cli.main(["evaluate", str(trained), "--episodes", "3"]) == 0
    assert cli.main(["evaluate", str(trained / "checkpoints" / "best.etude"), "--episodes", "3"]) == 0
    assert capsys.readouterr().out.count("over 3 episodes") == 2
    video = tmp_path / "out.mp4"
    assert cli.main(["watch", str(trained), "--video", str(video), "--max-steps", "20"]) == 0
    assert video.stat().st_size > 1_000
    assert cli.main(["plot", str(trained), "--output", str(tmp_path / "curve.png")]) == 0
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.variant
def test_a_run_resumed_from_a_checkpoint_leaves_the_metrics_of_the_uninterrupted_one(trained, tmp_path):
    directory = tmp_path / "broken"
    shutil.copytree(trained, directory)
    for path in directory.glob("checkpoints/step_*.etude"):
        if "000000300" not in path.name:
            path.unlink()  # as if it had been killed after step 300
    assert cli.main(["resume", str(directory)]) == 0
    assert measured(directory) == measured(trained)
    assert any("train/q" in record for record in measured(directory))


@pytest.mark.long_but("SIGTERM")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM that can be caught")
@pytest.mark.variant
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_ends_the_run_after_the_step_at_hand_with_a_checkpoint(name, engine_name, tmp_path):
    directory = tmp_path / "run"
    program = "import sys; from etude.cli import main; sys.exit(main())"
    process = python_programs.start("-c", program, *arguments(engine_name, directory, 10_000_000))
    try:
        deadline = time.monotonic() + 120
        while not list(directory.glob("checkpoints/step_*")) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        os.kill(process.pid, getattr(signal, name))
        output = "".join(process.communicate(timeout=60))
    finally:
        process.kill()
    assert process.returncode == 130, output
    assert f"etude resume {directory}" in output
    last = read_records(directory / "metrics.jsonl")[-1]
    assert last["finished"] == "interrupted"
    assert (directory / "checkpoints" / f"step_{last['step']:09d}.etude").exists()


TERMINAL = """
import os, sys
os.setsid()
terminal = os.open(sys.argv.pop(1), os.O_RDWR)  # which it thereby controls
for number in range(3):
    os.dup2(terminal, number)
from etude.cli import main
sys.exit(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no terminals of this kind")
@pytest.mark.variant
def test_a_run_whose_terminal_is_closed_is_saved(engine_name, tmp_path):
    directory = tmp_path / "run"
    ours, theirs = os.openpty()
    command = arguments(engine_name, directory, 10_000_000)
    process = python_programs.start("-c", TERMINAL, os.ttyname(theirs), *command)
    try:
        deadline = time.monotonic() + 120
        while not list(directory.glob("checkpoints/step_*")) and process.poll() is None:
            assert time.monotonic() < deadline
            select.select([ours], [], [], 0.1)[0] and os.read(ours, 65536)
        os.close(theirs)
        os.close(ours)
        assert process.wait(60) == 130
    finally:
        process.kill()
    last = read_records(directory / "metrics.jsonl")[-1]
    assert last["finished"] == "interrupted"
    assert (directory / "checkpoints" / f"step_{last['step']:09d}.etude").exists()


@pytest.mark.variant
def test_a_run_on_recorded_data_is_trained_resumed_evaluated_and_plotted(engine_name, tmp_path, capsys):
    data, directory = tmp_path / "random.h5", tmp_path / "run"
    etude.offline.write(data, etude.record("CartPole-v1", 5))
    given = ["--engine", engine_name, "--steps", "150", "--run-dir", str(directory), "--set.gradient-steps", "50"]
    schedule = ["--evaluate-every", "100", "--evaluate-episodes", "2", "--set.network.widths", "8"]
    assert cli.main(["train", "bc", "CartPole-v1", "--data", str(data), *given, *schedule]) == 0
    data.unlink()
    assert cli.main(["resume", str(directory), "--steps", "250"]) == 0
    assert cli.main(["evaluate", str(directory), "--episodes", "3"]) == 0
    assert cli.main(["plot", str(directory), "--output", str(tmp_path / "curve.png")]) == 0
    steps = [record["step"] for record in read_records(directory / "metrics.jsonl") if "train/actor" in record]
    assert steps == [50, 100, 150, 200, 250]
    assert cli.main(["train", "bc", "CartPole-v1"]) == 2
    assert "give data= (--data)" in capsys.readouterr().err


@pytest.mark.one_engine("jax")
def test_the_command_line_shows_nothing_of_what_a_framework_logs_while_it_is_loaded(engine_name, tmp_path):
    train = f"etude train ppo CartPole-v1 --steps 64 --engine {engine_name} -q --evaluate-every 0 --run-dir"
    command = [sys.executable, "-m", *train.split(), str(tmp_path / "run")]
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
