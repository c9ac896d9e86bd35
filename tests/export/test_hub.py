"""Folders as Hugging Face's hub takes them, and runs from there. The hub's own client reads them from its cache."""

import shutil

import gymnasium as gym
import numpy as np
import pytest

import etude
from etude.base.errors import CheckpointError, ConfigError, UntrustedError
from etude.cli import main
from etude.networks import Mlp

hub = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")
OBSERVATIONS = np.random.default_rng(0).uniform(-1, 1, (20, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The directory of a run."""
    path = tmp_path_factory.mktemp("hub") / "run"
    with etude.Run("dqn", "CartPole-v1", network=Mlp((8,)), learning_starts=32, engine="torch", run_dir=path) as run:
        run.train(64, save_every=64)
    return path


@pytest.fixture(scope="module")
def folder(trained):
    """What it is exported to."""
    path = trained.with_name("folder")
    with etude.load(trained) as run:
        run.export(path, to="hub")
    return path


@pytest.fixture
def cached(folder, tmp_path, monkeypatch):
    """The folder as owner/name in the cache of the hub's client, which asks no server."""
    place, commit = tmp_path / "models--owner--name", "0" * 40
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(commit)
    snapshot = shutil.copytree(folder, place / "snapshots" / commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return snapshot


def actions(run):
    return [run.act(each) for each in OBSERVATIONS]


def test_a_run_from_the_hub_acts_as_the_one_that_was_exported(trained, cached):
    with etude.load(trained) as run, etude.load("hub:owner/name") as loaded:
        assert actions(loaded) == actions(run) and loaded.step == 64
        weights = loaded.engine.weights()
        assert all((weights[name] == value).all() for name, value in run.engine.weights().items())
        with pytest.raises(CheckpointError, match="replay"):
            loaded.train(10)
    with etude.Run(
        "dqn", "CartPole-v1", network=Mlp((8,)), start_from="hub:owner/name@main", engine="torch"
    ) as started:
        assert actions(started) == actions(run)


def test_the_card_has_what_the_hub_reads(folder):
    yaml = pytest.importorskip("yaml")
    _, metadata, text = (folder / "README.md").read_text().split("---\n", 2)
    found = yaml.safe_load(metadata)
    assert found["library_name"] == "etude" and {"reinforcement-learning", "dqn", "CartPole-v1"} <= set(found["tags"])
    (result,) = found["model-index"][0]["results"]
    assert result["dataset"]["name"] == "CartPole-v1" and result["metrics"][0]["type"] == "mean_reward"
    mean, deviation = map(float, result["metrics"][0]["value"].split(" +/- "))
    with etude.load(folder) as run:
        evaluated = run.evaluate(episodes=20)
    assert (mean, deviation) == (round(evaluated.mean, 2), round(evaluated.std, 2))
    assert 'etude.load("hub:OWNER/NAME")' in text and '"learning_starts": 32' in text
    assert hub.ModelCard.load(folder / "README.md").data.eval_results[0].metric_type == "mean_reward"
    weights = {name for name in ("config.json", "model.safetensors") if (folder / name).exists()}
    assert len(weights) == 2 and len(list((folder / "checkpoints").iterdir())) == 1


def test_the_card_names_what_has_to_be_given_again(tmp_path):
    def made():
        return gym.make("CartPole-v1")

    with etude.Run("dqn", made, network=Mlp((8,)), engine="torch") as run:
        run.export(tmp_path / "folder", to="hub")
    text = (tmp_path / "folder" / "README.md").read_text()
    assert 'etude.load("hub:OWNER/NAME", env=...)' in text and "etude watch" not in text
    world = etude.Environment("etude.examples.cart_pole:CartPoles", args={"count": 2})
    policies = {"pole_0": "ann", "pole_1": "bob"}
    with etude.Run({"ann": "dqn", "bob": "ppo"}, world, policies=policies, engine="torch") as run:
        run.export(tmp_path / "several", to="hub")
    assert 'etude.load("hub:OWNER/NAME")' in (tmp_path / "several" / "README.md").read_text()


def test_an_export_goes_into_its_own_folder_again_and_never_into_that_of_a_run(trained, folder):
    with etude.load(trained) as run:
        run.export(folder, to="hub")
        with pytest.raises(ConfigError, match="the directory of a run, whose checkpoints would be replaced"):
            run.export(trained, to="hub")


def test_the_command_says_how_to_upload_and_others_take_the_name(trained, cached, tmp_path, capsys):
    out = tmp_path / "a folder"
    assert main(["export", str(trained), "--to", "hub", "--out", str(out)]) == 0
    assert f"hf upload OWNER/NAME '{out}'" in capsys.readouterr().out
    assert main(["evaluate", "hub:owner/name", "--episodes", "2"]) == 0
    assert "dqn on CartPole-v1 after 64 steps" in capsys.readouterr().out


def test_what_cannot_be_had_is_one_clear_error(cached):
    with pytest.raises(ConfigError, match="'hub:name' names nothing on the hub; expected hub:OWNER/NAME"):
        etude.load("hub:name")
    with pytest.raises(CheckpointError, match="hub:owner/other cannot be had from the hub"):
        etude.load("hub:owner/other")
    (file,) = (cached / "checkpoints").iterdir()
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="can be continued from"):
        etude.load("hub:owner/name")


def test_code_that_a_run_from_the_hub_names_is_not_imported(tmp_path, cached, monkeypatch):
    (tmp_path / "tasks.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.chdir(tmp_path)
    (file,) = (cached / "checkpoints").iterdir()
    state = etude.checkpoint.read(file)
    state["description"]["environment"] = "tasks.py:Reacher"
    etude.checkpoint.write(file, state)
    with pytest.raises(UntrustedError, match="tasks.py"):
        etude.load("hub:owner/name")
