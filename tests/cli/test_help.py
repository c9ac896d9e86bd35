"""What `etude train ALGORITHM ENV --help` tells."""

import dataclasses
import re
import types
import typing

import pytest

from etude import cli
from etude.algorithms import ALGORITHMS
from etude.base.optimizers import OPTIMIZERS
from etude.cli.field_help import field_comments
from etude.cli.train import Train, with_hyperparameters
from etude.networks import Conv, Mlp, Recurrent


def told(command, capsys, monkeypatch, columns=80):
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit):
        cli.main([*command.split(), "--help"])
    return capsys.readouterr().out


def options(text):
    """Option -> its help, without the default."""
    found, name = {}, None
    for line in (line.strip("╭─╮│╰╯ ") for line in text.splitlines()):
        if match := re.match(r"--([a-z][\w.-]*)", line):
            name = match[1]
            found[name] = ""
        elif line.endswith("options"):  # the title of a group
            name = None
        elif name:
            found[name] += " " + line
    return {name: re.sub(r"\(default: .*|\(repeatable\)", "", text).strip() for name, text in found.items()}


@pytest.mark.parametrize("named", ["ppo CartPole-v1", "ppo Some-v0", "sac Pendulum-v1", "r2d2 CartPole-v1", "ppo"])
def test_every_option_has_its_text_once_algorithm_and_environment_are_named(named, capsys, monkeypatch):
    found = options(told(f"train {named}", capsys, monkeypatch))
    assert {name for name, text in found.items() if not text} == set()
    assert {"steps", "seed", "set.gamma", "set.max-gradient-norm", "set.optimizer.beta1"} <= found.keys()
    assert found["seed"] == "of all random numbers: equal seeds give equal runs"
    assert found["set.max-gradient-norm"].startswith("clip each loss's gradients")


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_help_fits_the_terminal(columns, capsys, monkeypatch):
    for command in ("train", "train ppo CartPole-v1", "evaluate", "check-env", "list"):
        text = told(command, capsys, monkeypatch, columns)
        assert [line for line in text.splitlines() if len(line) > columns] == []


@pytest.mark.parametrize(
    "kind", [Train, *OPTIMIZERS.values(), Mlp, Conv, Recurrent, *(config for _, config in ALGORITHMS.values())]
)
def test_every_field_is_commented(kind):
    fields = {field.name for field in dataclasses.fields(kind)}
    assert fields - set(field_comments(kind)) == set()


def test_a_class_that_is_made_while_the_program_runs_has_the_comments_of_its_bases():
    made = with_hyperparameters("dqn", "CartPole-v1")
    assert field_comments(made) == field_comments(Train)
    assert field_comments(types.SimpleNamespace) == {}
    assert typing.get_type_hints(made)["set"].__name__ == "DQNConfig"
