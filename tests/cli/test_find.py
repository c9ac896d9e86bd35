"""`etude find`: what its options stand for, and what it prints."""

from __future__ import annotations

import numpy as np
import pytest

from etude import cli
from etude.optimizers import Adam, Lion
from etude.tuning.finding import LRSuggestion

FOUND = LRSuggestion(0.0123, "the smoothed loss improves fastest at 0.012.", "loss")


@pytest.fixture
def made_up(monkeypatch):
    """Finders and runs that do nothing; the arguments they got."""
    calls = {}

    class MadeUpRun:
        algorithm = "dqn"

        @classmethod
        def of(cls, described):
            calls["run"] = described
            return cls()

        def __enter__(self):
            return self

        def __exit__(self, *error): ...

    class MadeUpFinder:
        losses, rewards = np.zeros(40), np.zeros(3)
        found = FOUND
        logs = {"best": 0}

        def __init__(self, run, optimizers=()):
            calls["optimizers"] = optimizers

        def find(self, **options):
            calls["find"] = options
            return self.logs if calls["optimizers"] else self.found

        def table(self):
            return ("candidate", "optimizer"), [("0", "Adam")]

        def plot(self, path):
            path.touch()

    monkeypatch.setattr("etude.run.Run", MadeUpRun)
    monkeypatch.setattr("etude.tuning.LRFinder", MadeUpFinder)
    monkeypatch.setattr("etude.tuning.OptFinder", MadeUpFinder)
    calls["finder"] = MadeUpFinder
    return calls


def test_a_picture_that_cannot_be_written_is_an_error_that_names_its_option(made_up, capsys, tmp_path):
    assert cli.main(["find", "lr", "dqn", "CartPole-v1", "--plot", f"{tmp_path}/none/a.png"]) == 2
    assert capsys.readouterr().err == (
        f"etude: The picture {tmp_path}/none/a.png cannot be written: No such file or directory. Name another file: "
        "--plot.\n"
    )


def test_a_rate_is_printed_with_its_reason_and_the_command_to_train_with_it(made_up, capsys, tmp_path):
    line = f"lr dqn CartPole-v1 --updates 40 --start-lr 1e-4 --end-lr 2 --set.batch-size 16 --plot {tmp_path}/a.png "
    line += "--env-arg sutton_barto_reward=True --wrapper gymnasium.wrappers:TimeAwareObservation"
    assert cli.main(["find", *line.split()]) == 0
    printed = capsys.readouterr().out
    command = "etude train dqn CartPole-v1 --set.batch-size 16 --env-arg sutton_barto_reward=True "
    command += "--wrapper gymnasium.wrappers:TimeAwareObservation --set.learning-rate 0.0123"
    assert FOUND.reason in printed and command in printed
    assert made_up["find"] == {
        "N": 40, "start_lr": 1e-4, "end_lr": 2, "window_size": 7, "episodes": None, "steps": 100_000,
    }  # fmt: skip
    assert made_up["run"].config.batch_size == 16
    assert made_up["run"].environment.args == {"sutton_barto_reward": True}
    assert made_up["run"].environment.wrappers == ("gymnasium.wrappers:TimeAwareObservation",)
    assert {path.name for path in tmp_path.iterdir()} == {"a.png"}


def test_without_a_rate_the_reason_is_printed(made_up, capsys):
    made_up["finder"].found = LRSuggestion(None, "flat.")
    assert cli.main(["find", "lr", "dqn", "CartPole-v1"]) == 1
    assert "No learning rate is suggested: flat." in capsys.readouterr().out


def test_quiet_prints_the_rate_alone(made_up, capsys):
    cli.main(["find", "lr", "dqn", "CartPole-v1", "-q"])
    assert capsys.readouterr().out == "0.0123\n"


def test_candidates_are_optimizers_with_or_without_a_rate(made_up, capsys):
    line = "optimizer dqn CartPole-v1 --candidates adam lion=1e-4 --metric loss --jobs 1"
    assert cli.main(["find", *line.split()]) == 0
    assert made_up["optimizers"] == [Adam(), (Lion(), 1e-4)]
    assert made_up["find"] == {"episodes": None, "metrics": "loss", "jobs": 1, "steps": 10_000}
    made_up["finder"].logs = {"best": None}
    assert cli.main(["find", *line.split()]) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "find takes lr or optimizer"),
        ("rate dqn CartPole-v1", "find takes lr or optimizer"),
        ("lr dqn", "find lr takes an algorithm"),
        ("optimizer dqn CartPole-v1 --candidates adagrad", "lion=1e-4"),
        ("optimizer dqn CartPole-v1 --candidates adam=fast", "lion=1e-4"),
    ],
)
def test_what_makes_no_sense_is_explained(made_up, capsys, line, message):
    assert cli.main(["find", *line.split()]) == 2
    assert message in capsys.readouterr().err
