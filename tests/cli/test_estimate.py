"""`etude estimate`, and estimates while training, from the command line."""

from __future__ import annotations

import json

import pytest

import etude
from etude import cli, offline


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A file of recorded episodes, in the present folder."""
    monkeypatch.chdir(tmp_path)
    offline.write("data.parquet", etude.record("CartPole-v1", 20))
    return tmp_path / "data.parquet"


def train(*more):
    given = "train bc CartPole-v1 --data data.parquet --steps 40 --engine torch --run-dir run --evaluate-every 0 -q"
    return cli.main([*given.split(), "--set.gradient-steps", "20", "--set.network.widths", "8", *more])


def test_a_trained_run_is_estimated_in_a_table_and_a_picture(recorded, capsys):
    train()
    given = "--data data.parquet --methods wis simulation --softened 0.9 --episodes 3 --output drawn.png"
    assert cli.main(["estimate", "run", *given.split()]) == 0
    text = capsys.readouterr().out
    for said in ("bc on CartPole-v1 after 40 steps, from data.parquet", "effective episodes", "  wis ", "simulation"):
        assert said in text
    assert "The behaviour's own value is" in text and "Drawn: drawn.png" in text
    assert (recorded.parent / "drawn.png").read_bytes().startswith(b"\x89PNG")


def test_training_estimates_and_resumes_with_what_it_estimated(recorded, capsys):
    assert train("--estimate-every", "20", "--estimate-softened", "0.9", "--estimate-methods", "wis", "pdis") == 0
    assert cli.main(["resume", "run", "--steps", "80", "-q"]) == 0
    records = [json.loads(line) for line in (recorded.parent / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [each["step"] for each in records if "estimate/wis" in each] == [20, 40, 60, 80]
    assert all("estimate/pdis_gain" in each for each in records if "estimate/wis" in each)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("estimate run", "Estimates are made from recorded episodes"),
        ("estimate run --data no.h5", "no.h5"),
        ("estimate run --data data.parquet --methods wsi", "no method 'wsi'"),
        ("estimate run --data data.parquet --explorer boltzman=1", "expected greedy, or one of"),
        ("estimate --data data.parquet", "estimate takes one run; got 0"),
        ("train bc CartPole-v1 --data data.parquet --estimate-softened 0.1", "give --estimate-every, too"),
    ],
)
def test_what_cannot_be_estimated_is_explained(recorded, capsys, given, said):
    train()
    capsys.readouterr()
    assert cli.main(given.split()) == 2
    assert said in capsys.readouterr().err
