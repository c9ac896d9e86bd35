"""Evaluation functions of one's own, and evaluations of at least so many steps."""

from __future__ import annotations

import json

import numpy as np
import pytest
from run_makers import tiny
from run_worlds import Counted

import etude
from etude.base.errors import CallbackError, ConfigError
from etude.base.events import Evaluated, Learned, Saved, Warned
from etude.report import JsonLines, Progress


def evaluated(events):
    return [event for event in events if isinstance(event, Evaluated)]


def test_a_function_is_called_with_the_run_at_each_due_step_and_its_numbers_are_reported(tmp_path, capsys):
    seen = []

    def harder(run):
        seen.append(run.step)
        return {"returns": [run.step, run.step + 2.0], "solved": np.float32(0.5), "levels": 3}

    with tiny(run_dir=tmp_path / "run") as run:
        run.train(
            80,
            [JsonLines(tmp_path / "metrics.jsonl"), Progress()],
            schedule=etude.Schedule(evaluate_every=40, evaluate=harder),
        )
    assert seen == [40, 80]
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record for record in records if "eval/solved" in record] == [
        {"step": step, "eval/solved": 0.5, "eval/levels": 3.0, "eval/mean_reward": step + 1.0,
         "eval/returns": [step, step + 2.0], "best": True}
        for step in (40, 80)
    ]  # fmt: skip
    assert (tmp_path / "run" / "checkpoints" / "best.etude").exists()
    assert "solved 0.5" in capsys.readouterr().err


def test_returns_alone_or_an_evaluation_will_do_and_a_target_goes_by_their_mean():
    for function, returns, lengths in (
        (lambda run: [1, 2.0], (1.0, 2.0), ()),
        (lambda run: 7, (7.0,), ()),
        (lambda run: run.evaluate(2), (10.0, 10.0), (10, 10)),
    ):
        with tiny() as run:
            events = list(run.steps(400, evaluate_every=40, evaluate=function, target=returns[0]))
        (event,) = evaluated(events)
        assert (event.step, event.returns, event.lengths, events[-1].reason) == (40, returns, lengths, "target")


def test_numbers_without_returns_are_reported_and_make_no_best_checkpoint(tmp_path):
    with tiny(run_dir=tmp_path / "run") as run:
        (event,) = evaluated(run.steps(40, evaluate_every=40, evaluate=lambda run: {"regret": 3.5}))
        assert (event.metrics, event.returns, event.best) == ({"regret": 3.5}, (), False)
        assert run.learner.progress.best is None
        with pytest.raises(CallbackError, match="returned no returns at step 80, and target = 5.0 is compared with"):
            run.train(40, schedule=etude.Schedule(evaluate_every=40, evaluate=lambda run: {"regret": 3.5}, target=5.0))
    assert not (tmp_path / "run" / "checkpoints" / "best.etude").exists()


@pytest.mark.parametrize(
    "wrong",
    [None, {}, [], "good", {"solved": "often"}, {"mean_reward": 3.0}, {"returns": [[1.0]]}, {"returns": float("nan")},
     {3: 1.0}, {"solved": [1.0, 2.0]}, object()],
    ids=repr,
)  # fmt: skip
def test_what_a_function_must_not_return_ends_the_run_with_a_clear_error(wrong):
    def mine(run):
        return wrong

    with tiny() as run, pytest.raises(CallbackError, match="Evaluation function mine returned .* expected the returns"):
        run.train(80, schedule=etude.Schedule(evaluate_every=40, evaluate=mine))


def test_a_function_that_raises_ends_the_run_which_is_saved_and_evaluates_when_it_goes_on(tmp_path):
    def mine(run):
        raise KeyError("door")

    with tiny(run_dir=tmp_path / "run") as run:
        events = []
        with pytest.raises(KeyError, match=r"Evaluation function mine raised KeyError: 'door' .* at step 40") as found:
            run.train(80, events.append, schedule=etude.Schedule(evaluate_every=40, evaluate=mine))
        assert "It is saved: etude.load(" in found.value.__notes__[0]
        assert [event.step for event in events if isinstance(event, Saved)] == [40]
    with etude.load(tmp_path / "run", env=Counted) as again:
        assert [event.step for event in evaluated(again.steps(40, evaluate_every=40, evaluate=lambda run: 1.0))] == [
            40,
            80,
        ]


def test_a_function_changes_no_number_of_the_run():
    found = []
    for more in ({}, {"evaluate_every": 40, "evaluate": lambda run: run.evaluate(3)}):
        with tiny() as run:
            found.append([event.losses for event in run.steps(160, **more) if isinstance(event, Learned)])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ({"evaluate": len}, "evaluate is called when an evaluation is due: give evaluate_every, too"),
        ({"evaluate_every": 40, "evaluate": 3}, "evaluate = 3; expected a function of the run, or None"),
        ({"evaluate_every": 40, "evaluate": len, "evaluate_workers": 1}, "leave evaluate_workers and evaluate_env out"),
        ({"evaluate_every": 40, "evaluate": len, "evaluate_env": Counted}, "leave evaluate_workers and evaluate_env"),
        ({"evaluate_every": 40, "evaluate_steps": 0}, "evaluate_steps = 0; expected a whole number of at least 1, or"),
    ],
)
def test_a_schedule_says_what_is_wrong_with_its_function(schedule, words):
    with tiny() as run, pytest.raises(ConfigError, match=words):
        run.train(40, **schedule)


def test_evaluations_play_whole_episodes_until_they_have_taken_enough_steps():
    with tiny() as run:  # episodes of 10 steps
        assert run.evaluate(2, steps=1).lengths == (10, 10)
        assert run.evaluate(2, steps=55).lengths == (10,) * 6
        assert run.evaluate(7, steps=20).lengths == (10,) * 7
        events = evaluated(run.steps(40, evaluate_every=40, evaluate_episodes=1, evaluate_steps=31))
        assert [event.lengths for event in events] == [(10,) * 4]
        assert run.learner.progress.evaluation_steps == 40
        with pytest.raises(ConfigError, match="steps = 0; expected a whole number of at least 1"):
            run.evaluate(2, steps=0)


def test_the_progress_bar_stays_where_training_is_when_an_earlier_step_was_evaluated(capsys):
    with tiny() as run:
        events = list(run.steps(80, evaluate_every=40, evaluate_episodes=2, evaluate_workers=1))
    bar = Progress()
    for event in events:
        bar(event)
        if isinstance(event, Evaluated):
            assert bar._state.step == 80
    assert not [event for event in events if isinstance(event, Warned)]
