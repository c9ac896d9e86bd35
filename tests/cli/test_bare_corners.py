"""Places that are bare: folders that cannot be written to, no engine, streams of few characters, no docstrings."""

import gc
import io
import subprocess
import sys
import warnings

import pytest

import etude
from etude import cli
from etude.base.errors import ConfigError
from etude.base.text import Lasting
from etude.report import JsonLines
from etude.report.filming import write_film

COMMANDS = {
    "sweeps": "sweep ppo CartPole-v1 --steps 64 --seeds 2",
    "studies": "tune ppo CartPole-v1 --grid gamma 0.9 --steps 64",
    "studies/": "evolve ppo CartPole-v1 --steps 64 --every 64",
}


@pytest.mark.parametrize("folder", COMMANDS)
def test_a_folder_that_cannot_be_made_is_one_clear_error(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / folder.rstrip("/")).touch()
    assert cli.main(COMMANDS[folder].split()) == 2
    told, root = capsys.readouterr().err, folder.rstrip("/")
    assert told == f"etude: No folder can be made in {root}: Not a directory. Give another one: folder= (--folder).\n"


@pytest.mark.parametrize("command", COMMANDS.values())
def test_without_an_engine_nothing_begins(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("etude.engines.installed", list)
    assert cli.main(command.split()) == 2
    assert "An engine" in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["film.gif", "film.mp4"])
def test_a_video_that_cannot_be_written_is_told_before_anything_is_played(name, tmp_path):
    (tmp_path / "file").touch()

    def frames():
        raise AssertionError("nothing is played")
        yield

    with pytest.raises(ConfigError, match=r"The video .* cannot be written: .*Name another file\."):
        write_film(frames(), tmp_path / "file" / name)


def test_characters_that_a_stream_does_not_know_are_replaced():
    held = io.BytesIO()
    stream = Lasting(io.TextIOWrapper(held, encoding="ascii"))
    stream.write("return 9.5 ± 0.5 in Zürich\n")
    stream.flush()
    assert held.getvalue() == b"return 9.5 +- 0.5 in Z?rich\n"


def test_help_shows_no_signatures_where_there_are_no_docstrings():
    done = subprocess.run([sys.executable, "-OO", "-m", "etude", "evaluate", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "--episodes" in done.stdout and "Evaluate(" not in done.stdout


def test_json_lines_are_closed_with_the_run_and_where_they_are_dropped(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        with etude.Run("ppo", "CartPole-v1", engine="torch", environments=1, rollout_length=8) as run:
            lines = JsonLines(tmp_path / "whole.jsonl", every=8)
            run.train(16, lines)
            size = (tmp_path / "whole.jsonl").stat().st_size
            assert lines._file is None and size
            run.train(16, lines)
            assert (tmp_path / "whole.jsonl").stat().st_size > size, "a run that trains on goes on in the file"
            cut = JsonLines(tmp_path / "cut.jsonl", every=8)
            for event in run.steps(16):
                cut(event)
                break
            del cut
            gc.collect()
