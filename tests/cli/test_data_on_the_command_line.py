"""--data with shares, and runs that go online."""

from __future__ import annotations

import json

import pytest

import etude
from etude import cli, offline
from etude.cli.train import data_sources

FAST = ["--engine", "torch", "--evaluate-every", "0", "-q"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "pendulum.h5"
    offline.write(path, etude.record("Pendulum-v1", 2))
    return str(path)


def test_a_file_alone_or_pairs_with_shares_are_read():
    assert data_sources(()) is None
    assert data_sources(("demos.h5",)) == "demos.h5"
    assert data_sources(("x=1.h5",)) == "x=1.h5"
    assert data_sources(("a=b.h5=0.3", "sampler=2")) == [("a=b.h5", 0.3), ("sampler", 2.0)]


def test_a_file_without_a_share_among_others_is_refused(capsys):
    assert cli.main(["train", "sac", "Pendulum-v1", "--data", "a.h5", "sampler=0.5"]) == 2
    assert "a.h5 has no share; give one to each, as in --data demos.h5=0.5 sampler=0.5" in capsys.readouterr().err


def test_a_run_on_shares_goes_on_where_it_was(file, tmp_path):
    path = str(tmp_path / "run")
    shares = [f"{file}=0.25", "sampler=0.75", "--set.network.widths", "8"]
    assert cli.main(["train", "sac", "Pendulum-v1", "--steps", "120", "--run-dir", path, *FAST, "--data", *shares]) == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["data"]["online"] == 0.75
    assert cli.main(["resume", path, "--steps", "140", "-q"]) == 0
    assert etude.load(path).step == 140


def test_a_run_on_data_goes_online_in_a_directory_of_its_own(file, tmp_path, capsys):
    offline_path, online_path = str(tmp_path / "offline"), str(tmp_path / "online")
    small = ["--set.network.widths", "8", "--data", file]
    assert cli.main(["train", "td3_bc", "Pendulum-v1", "--steps", "100", "--run-dir", offline_path, *FAST, *small]) == 0
    assert cli.main(["resume", offline_path, "--online", "-q"]) == 2
    assert "say how many, as in --steps 50000" in capsys.readouterr().err
    assert cli.main(["resume", offline_path, "--run-dir", online_path, "-q"]) == 2
    assert "--run-dir goes with --online" in capsys.readouterr().err
    online = ["--online", "--steps", "30", "--data-share", "0.25", "--run-dir", online_path, "-q"]
    assert cli.main(["resume", offline_path, *online]) == 0
    run = etude.load(online_path)
    assert run.step == 30 and run.description()["data"]["online"] == 0.75
    assert etude.load(offline_path).step == 100
