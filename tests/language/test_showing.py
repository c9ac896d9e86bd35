"""What a user sees of games of texts: names on the command line, games in a terminal, samples in reports."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
from gymnasium.spaces import Text

import etude
from etude import cli, report
from etude.base.errors import ConfigError
from etude.language import GAMES, TokenEnvironment, Wordle
from etude.report import JsonLines, TensorBoard, WandB, read_records

TINY = {"learning_starts": 8, "network": etude.Mlp((4,)), "engine": "torch"}


def test_games_go_by_their_names(monkeypatch):
    for name, registered in GAMES.items():
        assert etude.record(name, 1).source == etude.record(registered, 1).source
    with pytest.raises(ConfigError, match="'Wordel'. Did you mean Wordle"):
        etude.record("Wordel", 1)


def test_a_terminal_shows_wordle_in_colours_and_a_file_as_text(tmp_path, monkeypatch, capsys):
    run_dir = str(tmp_path / "run")
    given = ["--steps", "30", "--run-dir", run_dir, "--engine", "torch", "--env-arg", "words=3", "--env-arg"]
    tiny = ["list_words=True", "--set.network.widths", "4", "--set.learning-starts", "8"]
    assert cli.main(["train", "dqn", "Wordle", *given, *tiny]) == 0
    capsys.readouterr()
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert cli.main(["watch", run_dir, "--episodes", "2"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    ends = [i for i, line in enumerate(lines) if line.startswith("episode 1: return ")]
    assert last.startswith("episode 2: return ") and len(ends) == 1 and "\x1b" not in "".join(lines)
    first = lines[: ends[0]]
    assert all(len(line) == 11 and set(line[6:]) <= set("BYG") for line in first)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli.main(["watch", run_dir]) == 0
    shown = capsys.readouterr().out.splitlines()[: len(first)]
    paint = {"G": "30;42", "Y": "30;43", "B": "97;100"}
    for line, coloured in zip(first, shown, strict=True):
        guess, colours = line.upper().split(" ")
        each = (f"\x1b[{paint[c]}m {letter} \x1b[0m" for letter, c in zip(guess, colours, strict=True))
        assert coloured == "".join(each)
    monkeypatch.setenv("NO_COLOR", "1")
    assert cli.main(["watch", run_dir]) == 0
    assert capsys.readouterr().out.splitlines()[:-1] == first
    assert cli.main(["watch", run_dir, "--video", str(tmp_path / "a.gif")]) == 2
    assert "Games of texts have no pictures. Read them: etude watch RUN" in capsys.readouterr().err
    samples = [record for record in read_records(tmp_path / "run" / "metrics.jsonl") if "samples" in record]
    assert [samples[0]["step"], samples[-1]["step"]] == [0, 30]
    assert samples[-1]["samples"][0]["text"] == "".join(f"{line}\n" for line in first)


def test_other_games_are_shown_as_text_without_what_would_control_a_terminal():
    class Rude(etude.language.Arithmetic):
        def __init__(self):
            super().__init__()
            self.metadata = {"context": 20}
            self.observation_space = Text(20, min_length=0, charset="0123456789+=\x1b[m")

        def reset(self, **options):
            asked, info = super().reset(**options)
            return f"\x1b[31m{asked}", info

    with etude.Run("dqn", Rude, **TINY) as run:
        shown = run.watch(episodes=2)
        assert shown.count("\\x1b[31m") == 2 and "\x1b" not in shown
        assert [line.count("=") for line in shown.splitlines()] == [1, 1]
    with etude.Run("dqn", lambda: TokenEnvironment(Wordle(3), context=72), **TINY) as run:
        ((text, _),) = etude.report.filming.games(run, colour=True)  # it takes no render mode
        assert text.endswith("\n") and "\x1b" not in text


def test_samples_go_to_reporters_and_change_no_number(tmp_path, monkeypatch):
    logged = []
    session = types.SimpleNamespace(log=lambda values, step: logged.append((step, values)), finish=lambda: None)
    table = lambda columns, data: (columns, data)  # noqa: E731
    wandb = types.SimpleNamespace(init=lambda **options: session, Table=table, Histogram=list)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    lines, charts, tables = JsonLines(tmp_path / "own.jsonl"), TensorBoard(tmp_path / "charts"), WandB()
    with etude.Run("dqn", "Wordle", seed=3, **TINY) as alone:
        alone.train(60)
    with etude.Run("dqn", "Wordle", seed=3, run_dir=tmp_path / "run", **TINY) as run:
        run.train(60, [lines, charts, tables, report.Text(25, [lines, charts, tables], episodes=2)])
        charts.close()
        for name, weight in alone.engine.weights().items():
            assert np.array_equal(weight, run.engine.weights()[name])
        run.train(10, report.Text(25))
        held = [record for record in run.history if "samples" in record]
        assert [(record["step"], len(record["samples"])) for record in held] == [
            (0, 2), (28, 2), (52, 2), (60, 2), (60, 1), (70, 1)
        ]  # fmt: skip
    for path in (tmp_path / "own.jsonl", tmp_path / "run" / "metrics.jsonl"):
        read = [record for record in read_records(path) if "samples" in record]
        assert read == (held[:4] if path.stem == "own" else [*held[:3], *held[4:]])  # the last goes on from its save
    first = held[0]["samples"][0]
    assert first["text"].count("\n") == 6 and first["return"] == -6.0
    assert (0, (["step", "return", "text"], [[0, -6.0, each["text"]] for each in held[0]["samples"]])) in [
        (step, values["samples"]) for step, values in logged if "samples" in values
    ]
    (file,) = (tmp_path / "charts").glob("events.out.tfevents.*")
    assert first["text"].splitlines()[0].encode() in file.read_bytes()
    with etude.Run("dqn", "CartPole-v1", **TINY) as run, pytest.raises(ConfigError, match="Text: observations are"):
        run.train(10, report.Text(5))
    with pytest.raises(ConfigError, match="Text: episodes = 0"):
        report.Text(5, episodes=0)


def test_what_learns_from_recorded_games_is_sampled_by_gradient_steps(tmp_path):
    games = etude.record("Wordle", 4, seed=1)
    with etude.Run("bc", "Wordle", data=games, network=etude.Mlp((4,)), gradient_steps=10, engine="torch") as run:
        run.train(50, report.Text(20))
        assert [record["step"] for record in run.history if "samples" in record] == [0, 20, 40, 50]
