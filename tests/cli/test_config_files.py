"""Hyperparameters from a file: `--config`."""

import json

import pytest

import etude
from etude import Linear, Mlp, Recurrent, cli
from etude.base.errors import ConfigError
from etude.checkpoint.config_json import to_json
from etude.cli.options import parse
from etude.cli.train import with_hyperparameters
from etude.presets import read_config

BASE = etude.config("ppo", "CartPole-v1")


def read(path, text, base=BASE, algorithm="ppo"):
    path.write_text(text)
    return read_config(path, algorithm, base)


def test_a_file_names_what_differs(tmp_path):
    text = 'gamma = 0.9\nlearning_rate = {class = "Linear", start = 1e-3, end = 0}\n[network]\nwidths = [32]\n'
    expected = etude.config(
        "ppo", "CartPole-v1", gamma=0.9, learning_rate=Linear(1e-3, 0.0), network=Mlp((32,), "tanh", "orthogonal")
    )
    assert read(tmp_path / "ppo.toml", text) == expected
    text = '{"gamma": 0.9, "learning_rate": {"start": 1e-3}, "network": {"class": "Mlp", "widths": [32]}}'
    assert read(tmp_path / "ppo.json", text) == expected


def test_a_part_of_another_class_is_not_mixed_with_that_of_the_base(tmp_path):
    base = etude.config("r2d2")
    text = '[network]\nclass = "Recurrent"\nunits = 7\n[network.before]\nclass = "Conv"\nwidths = [9]\n'
    assert read(tmp_path / "a.toml", text, base, "r2d2").network == Recurrent(etude.Conv(widths=(9,)), 7, "gru")


@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "r2d2", "sac", "cql"])
def test_what_a_run_writes_is_read_back(tmp_path, algorithm):
    config = etude.config(algorithm, gamma=0.5)
    text = json.dumps({"algorithm": algorithm, "config": to_json(config), "functions": {}, "seed": 3})
    assert read(tmp_path / "config.json", text, etude.config(algorithm), algorithm) == config
    assert read(tmp_path / "part.json", json.dumps(to_json(config)), etude.config(algorithm), algorithm) == config


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.toml", "n_epochs = 3", r"a.toml: PPOConfig takes no n_epochs. n_epochs: use `epochs`"),
        ("a.toml", "gama = 0.5", r"gama: did you mean gamma\?"),
        ("a.toml", "[network]\nwidth = [3]", r"unknown field 'width'; did you mean widths"),
        ("a.toml", 'gamma = "high"', "gamma: got 'high'; expected float"),
        ("a.toml", "gamma = 2", "a.toml: PPOConfig: gamma = 2.0; expected a number from 0 to 1"),
        ("a.toml", "gamma = ", "a.toml does not hold hyperparameters by name in TOML"),
        ("a.json", "{", "a.json does not hold hyperparameters by name in JSON"),
        ("a.json", "[" * 200_000, "nested too deeply"),
        ("a.toml", "a = " + "[" * 20_000, "a.toml does not hold"),
        ("a.json", "[3]", "holds a list; expected an object"),
        ("a.yaml", "gamma: 3", "ends in .toml or .json"),
        ("a.json", '{"algorithm": "dqn", "config": {}}', "is of a run of dqn; expected one of ppo"),
        ("a.json", '{"class": "DQNConfig"}', "DQNConfig"),
        ("a.json", '{"algorithm": "ppo", "config": {}, "functions": {"network": "make"}}', "network was a function"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_file(tmp_path, name, text, expected):
    with pytest.raises(ConfigError, match=expected):
        read(tmp_path / name, text)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_config(tmp_path / "none.toml", "ppo", BASE)


def test_options_come_before_the_file(tmp_path):
    path = tmp_path / "ppo.toml"
    path.write_text("gamma = 0.9\nepochs = 3\n")
    offered = with_hyperparameters("ppo", "CartPole-v1", file=path)
    options = parse(offered, ["--config", str(path), "--set.epochs", "5"], "try")
    assert options.set == etude.config("ppo", "CartPole-v1", gamma=0.9, epochs=5)


def test_train_takes_the_file_that_a_run_wrote(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    common = ["train", "dqn", "CartPole-v1", "--steps", "8", "--engine", "torch"]
    assert cli.main([*common, "--run-dir", "one", "--set.gamma", "0.5", "--set.learning-starts", "100"]) == 0
    assert cli.main([*common, "--run-dir", "two", "--config=one/config.json", "--set.learning-starts", "90"]) == 0
    one, two = (json.loads((tmp_path / name / "config.json").read_text())["config"] for name in ("one", "two"))
    assert two == one | {"learning_starts": 90} and two["gamma"] == 0.5
