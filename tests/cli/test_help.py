"""What `etude train ALGORITHM ENV --help` tells."""

import dataclasses
import re
import subprocess
import sys
import types
import typing
from pathlib import Path

import pytest

from etude import cli
from etude.algorithms import ALGORITHMS
from etude.cli import board, evolve, import_model, looking, resume, runs, train, tune
from etude.cli.options import Shared, field_comments
from etude.cli.resume import Resume
from etude.cli.runs import Serve
from etude.cli.train import Train, with_hyperparameters
from etude.networks import Conv, Mlp, Recurrent
from etude.optimizers import OPTIMIZERS


def told(command, capsys, monkeypatch, columns=80, more=()):
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit):
        cli.main([*command.split(), "--help", *more])
    return capsys.readouterr().out


def options(text):
    """Option -> its help, without the default."""
    found, name = {}, None
    for given in text.splitlines():
        line = given.strip("╭─╮│╰╯ ")
        if match := re.match(r"(?:│ |  )--([a-z][\w.-]*)", given):
            name = match[1]
            found[name] = line.partition("  ")[2]
        elif line.rstrip("─ ").endswith("options"):  # the title of a group
            name = None
        elif name:
            found[name] += " " + line
    return {name: re.sub(r"\(default: .*|\(repeatable\)", "", text).strip() for name, text in found.items()}


@pytest.mark.parametrize("named", ["ppo CartPole-v1", "ppo Some-v0", "sac Pendulum-v1", "r2d2 CartPole-v1", "ppo"])
def test_every_option_has_its_text_once_algorithm_and_environment_are_named(named, capsys, monkeypatch):
    found = options(told(f"train {named}", capsys, monkeypatch, more=["all"]))
    assert {name for name, text in found.items() if not text} == set()
    assert {"steps", "seed", "set.gamma", "set.max-gradient-norm", "set.optimizer.beta1"} <= found.keys()
    assert found["seed"] == "of all random numbers: equal seeds give equal runs"
    assert found["set.max-gradient-norm"].startswith("clip each loss's gradients")


@pytest.mark.parametrize("command", sorted(cli.COMMANDS))
def test_every_option_of_a_command_has_its_text(command, capsys, monkeypatch):
    found = options(told(command, capsys, monkeypatch, more=["all"]))
    assert {name for name, text in found.items() if not text} == set()


def test_a_group_of_hyperparameters_begins_with_what_it_is_in_whole_sentences(capsys, monkeypatch):
    text = told("train ppo CartPole-v1", capsys, monkeypatch, 120, ["all"])
    assert "flattened and concatenated (images too)." in text and "Wang et al." not in text


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_help_fits_the_terminal(columns, capsys, monkeypatch):
    for command in ("train", "train ppo CartPole-v1", "evaluate", "check-env", "list"):
        for more in ([], ["all"]):
            text = told(command, capsys, monkeypatch, columns, more)
            assert [line for line in text.splitlines() if len(line) > columns] == []


FIRST = ["steps", "seed", "run-dir", "envs", "workers", "engine", "device", "target", "evaluate-every", "config"]


def test_help_has_ten_options_first_and_all_by_group_where_it_is_asked_for(capsys, monkeypatch):
    text = told("train", capsys, monkeypatch)
    assert list(options(text)) == FIRST
    assert len(text.splitlines()) <= 40
    assert text.endswith("`etude train ALGORITHM ENV --help all` lists all options.\n")
    named = options(told("train ppo CartPole-v1", capsys, monkeypatch))
    assert {"set.learning-rate", "set.gamma", "set.clip-range"} < named.keys()
    assert not {name for name in named if name.startswith(("set.network", "set.optimizer", "estimate"))}
    everything = told("train ppo CartPole-v1", capsys, monkeypatch, more=["all"])
    titles = re.findall(r"^[ ╭─]*(\w+) options[ ─╮]*$", everything, re.MULTILINE)
    assert titles[:6] == ["learning", "environment", "evaluation", "machine", "data", "display"]
    fields = {field.name.replace("_", "-") for field in dataclasses.fields(Train)}
    assert fields - {"verbose", "quiet"} <= options(everything).keys()
    for command, group in {"evolve dqn CartPole-v1": "mutations.step", "tune": "engine", "sweep": "wrapper"}.items():
        short, whole = (options(told(command, capsys, monkeypatch, more=more)) for more in ([], ["all"]))
        assert group not in short and group in whole


def flags(kind, prefix="--"):
    """Every flag of a dataclass of options, with what it is when it is left out."""
    for field in sorted(dataclasses.fields(kind), key=lambda field: field.name):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if dataclasses.is_dataclass(default):
            yield from flags(type(default), f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}={default!r}".replace(" ", "")


def test_the_flags_that_users_type_and_their_defaults_are_those_that_are_written_down():
    """A flag that is renamed, or that comes or goes with a field of what it is taken from, changes flags.txt."""
    modules = (board, evolve, import_model, looking, resume, runs, train, tune)
    kinds = [kind for module in modules for kind in vars(module).values()
             if dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__]  # fmt: skip
    found = [f"{kind.__name__} {' '.join(flags(kind))}".rstrip() for kind in kinds if kind.__name__ != "FindOptions"]
    assert found == (Path(__file__).parent / "flags.txt").read_text().splitlines()


def test_an_option_is_taken_as_it_is_declared_once():
    taken = {field.name: field for field in dataclasses.fields(Resume)}
    assert taken["replay_folder"].default is None and taken["engine"].default is None
    told = field_comments(Resume)
    assert told["replay_folder"] == "memory-map the replay buffer here when it exceeds RAM; None: as before"
    assert told["key"] == field_comments(Shared)["key"] == field_comments(Serve)["key"]
    assert told["steps"].startswith("environment steps of the whole run")  # its own


@pytest.mark.parametrize("what", ["lr", "optimizer"])
def test_a_finder_lists_the_options_of_its_search_first(what, capsys, monkeypatch):
    found = options(told(f"find {what} dqn CartPole-v1", capsys, monkeypatch))
    assert found["steps"].startswith("environment steps") and "set.gamma" in found
    assert list(found).index("updates" if what == "lr" else "candidates") < list(found).index("seed")


@pytest.mark.parametrize(("command", "first"), [("tune", "grid"), ("evolve", "population"), ("sweep", "seeds")])
def test_the_options_of_a_command_come_before_those_that_it_shares_with_others(command, first, capsys, monkeypatch):
    for more in ([], ["all"]):
        found = list(options(told(command, capsys, monkeypatch, more=more)))
        shared = [found.index(name) for name in ("jobs", "seed", "engine", "quiet") if name in found]
        assert all(found.index(first) < place for place in shared)
    assert "engine" in found and ("jobs" in found) == (command != "sweep")


@pytest.mark.parametrize("command", ["train ppo CartPole-v1 --help all", "list"])
def test_a_reader_that_takes_a_few_lines_only_costs_no_traceback(command):
    program = [sys.executable, "-m", "etude", *command.split()]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as running:
        running.stdout.read(1)
        running.stdout.close()
        assert running.stderr.read() == b""


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
