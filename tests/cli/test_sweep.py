"""`etude sweep`: what its options stand for, what it prints, and how it goes on."""

from __future__ import annotations

import pytest

from etude import cli
from etude.tuning import Sweep

TINY = (
    "--seeds 2 --steps 64 --envs 2 --processes 1 --engine torch --set.rollout-length 16 --set.minibatch-size 32 "
    "--set.epochs 1 --set.network.widths 4"
)


@pytest.fixture
def made(monkeypatch, tmp_path):
    """The arguments of every sweep that is made."""

    class Made(Exception):
        pass

    calls = []

    def make(*arguments, **options):
        calls.append((arguments, options))
        raise Made

    def sweep(line):
        with pytest.raises(Made):
            cli.main(["sweep", *line.split()])
        return calls[-1]

    monkeypatch.setattr("etude.tuning.Sweep", make)
    monkeypatch.chdir(tmp_path)
    return sweep


def test_the_preset_stays_where_nothing_is_set(made):
    arguments, options = made("ppo CartPole-v1")
    assert arguments == ("ppo", "CartPole-v1") and options["config"] is None and options["steps"] == 100_000
    assert list(options["seeds"]) == list(range(10)) and options["processes"] is None


def test_the_options_stand_for_arguments(made):
    _, options = made(
        "ppo CartPole-v1 --seeds 3 --first-seed 5 --steps 99 --evaluate-every 9 --envs 4 --vectorization compiled "
        "--fused --set.clip-range 0.3 --env-arg sutton_barto_reward=true"
    )
    assert list(options["seeds"]) == [5, 6, 7] and options["steps"] == 99 and options["evaluate_every"] == 9
    assert options["environments"] == 4 and options["vectorization"] == "compiled" and options["fused"]
    assert options["config"].clip_range == 0.3 and options["env_args"] == {"sutton_barto_reward": True}


def test_it_trains_lists_the_seeds_and_says_where_they_are(tmp_path, capsys):
    folder = tmp_path / "Größe 1"
    assert cli.main(["sweep", "ppo", "CartPole-v1", *TINY.split(), "--folder", str(folder)]) == 0
    out = capsys.readouterr().out
    assert f"etude plot '{folder}' " in out
    assert "seed  return" in out and "2 seeds: interquartile mean" in out and str(folder / "results.csv") in out
    assert (folder / "curves.png").exists() and (folder / "seed-0001" / "metrics.jsonl").exists()


def test_one_that_was_stopped_says_how_to_go_on_and_does(tmp_path, capsys, monkeypatch):
    line = ["sweep", "ppo", "CartPole-v1", *TINY.split(), "--folder", str(tmp_path), "--quiet"]
    run = Sweep.run
    monkeypatch.setattr(Sweep, "run", lambda sweep, *_: run(sweep, lambda own: own.stop()))
    assert cli.main(line[:-1]) == 130
    assert f"etude sweep ppo CartPole-v1 {TINY} --folder {tmp_path}" in capsys.readouterr().out
    monkeypatch.undo()
    assert cli.main(line) == 0 and capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ppo", "sweep takes an algorithm"),
        ("ppo CartPole-v1 --seeds 0", "expected at least 1 seed"),
        ("ppo CartPole-v1 --first-seed -1", "expected at least 1 seed"),
        ("ppo CartPole-v1 --processes 0", "processes = 0"),
        ("nothing CartPole-v1", "There is no algorithm"),
    ],
)
def test_wrong_options_are_refused_with_a_sentence(line, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["sweep", *line.split()]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
