import dataclasses
import json
import re

import pytest
from a_made_up_run import MadeUpRun

from etude import cli
from etude.checkpoint.run_directory import RunDirectory
from etude.cli.train import carry_out
from etude.report import read_records
from etude.run import Schedule


@pytest.fixture
def run_path(tmp_path, monkeypatch):
    """The directory of a made-up run of 1,000 steps."""
    directory = RunDirectory.create(tmp_path / "run", "dqn")
    with directory:
        carry_out(MadeUpRun(directory), 1_000, Schedule(50, 3, None, 500))
    return tmp_path / "run"


@pytest.fixture
def resumed(monkeypatch):
    """The runs that were made from a state, with the settings that were changed."""
    found = []

    class Run(MadeUpRun):
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    def from_state(state, *, run_dir, trust, **changed):
        run = Run(run_dir, step=state["progress"]["step"])
        found.append((run, changed))
        return run

    monkeypatch.setattr("etude.run.loading.from_state", from_state)
    monkeypatch.setattr("etude.run.loading.COMPONENTS", ())
    return found


def test_resume_goes_on_up_to_the_steps_that_were_asked_for_as_before(run_path, resumed):
    assert cli.main(["resume", str(run_path), "--steps", "1500", "--workers", "2"]) == 0
    ((run, changed),) = resumed
    assert changed == {"workers": 2}
    assert run.asked == (500, dataclasses.asdict(Schedule(50, 3, None, 500)))
    steps = [record["step"] for record in read_records(run_path / "metrics.jsonl")]
    assert steps == sorted(steps)
    assert steps[-1] == 1_500


def test_a_run_that_took_all_its_steps_is_refused_with_the_command_that_trains_on(run_path, resumed, capsys):
    assert cli.main(["resume", str(run_path)]) == 2
    error = capsys.readouterr().err
    assert "1,000 of 1,000 steps" in error
    assert f"etude resume {run_path} --steps 2000" in error


def test_another_target_replaces_the_one_before(run_path, resumed):
    cli.main(["resume", str(run_path), "--steps", "1100", "--target", "130"])
    assert resumed[0][0].asked[1]["target"] == 130.0


def of_schedule(change):
    return lambda held: json.dumps({**held, "schedule": change(held["schedule"])})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            lambda held: json.dumps({name: value for name, value in held.items() if name != "schedule"}),
            "schedule is 'missing'",
        ),
        (lambda held: "[1, 2]", "it holds a list"),
        (of_schedule(lambda schedule: "often"), "schedule is 'often' .*; expected the arguments of `train`"),
        (of_schedule(lambda schedule: [1]), "schedule is .1. .*; expected the arguments"),
        (of_schedule(lambda schedule: {**schedule, "evaluate_evry": 5}), "unexpected keyword argument 'evaluate_evry'"),
        (of_schedule(lambda schedule: {**schedule, "evaluate_every": "5"}), "evaluate_every"),
        (lambda held: "[" * 200_000, "nested too deeply"),
        (lambda held: json.dumps(held) + " " * 2**25, "33,554,.* bytes; expected at most"),
        (lambda held: json.dumps({**held, "output": 3}), "damaged output: 3"),
    ],
)
def test_a_config_that_was_changed_is_told_and_nothing_is_trained(changed, said, run_path, resumed, capsys):
    file = run_path / "config.json"
    file.write_text(changed(json.loads(file.read_text())))
    before = file.read_bytes()
    assert cli.main(["resume", str(run_path), "--steps", "1500"]) == 2
    assert re.search(said, capsys.readouterr().err)
    assert file.read_bytes() == before and not any(run.asked for run, _ in resumed)


@pytest.mark.parametrize("command", ["resume", "evaluate", "watch", "plot"])
def test_a_directory_without_a_run_is_refused(command, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DISPLAY", ":0")
    assert cli.main([command, str(tmp_path / "nothing")]) == 2
    assert str(tmp_path / "nothing") in capsys.readouterr().err
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("command", ["resume", "evaluate", "watch"])
def test_commands_on_one_run_say_so(command, capsys):
    for names in ([], ["a", "b"]):
        assert cli.main([command, *names]) == 2
        assert f"Usage: etude {command} RUN" in capsys.readouterr().err
