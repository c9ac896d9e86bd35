"""Callbacks of a run, and what its events carry."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from run_makers import tiny
from run_worlds import Counted, Failing

import etude
from etude.base.errors import ConfigError, DataError
from etude.base.events import Collected, Finished, Learned, Saved, Saving, Warned, WorkerReplaced
from etude.report import EventLines, Progress
from etude.training.callbacks import EPISODE, METHODS

PLACES = [{}, {"workers": 2}, {"workers": 2, "overlap": True}]
NAMES = ["in process", "pool", "overlap"]


class Noting(etude.Callback):
    """Notes every call, with the step of the run."""

    def __init__(self):
        self.calls = []

    def _note(self, name, run, event):
        self.calls.append((name, run.step))


for _name in (*METHODS.values(), EPISODE):
    setattr(Noting, _name, lambda self, run, event, name=_name: self._note(name, run, event))


def of_runs(recorded):
    """The warnings that a run may give: not those of what other tests left to the collector of garbage."""
    return [each for each in recorded if each.category is UserWarning]


def names(noting):
    return [name for name, _ in noting.calls]


@pytest.mark.parametrize("callbacks", [(), [Noting()], [print]], ids=["none", "methods", "function"])
def test_warnings_of_a_run_are_python_s_where_no_reporter_prints_them(callbacks):
    told = "No gradient step was taken in 4 environment steps"
    with tiny("CartPole-v1", "ppo") as run, pytest.warns(UserWarning, match=told) as found:
        run.train(4, callbacks)
    assert {Path(each.filename) for each in of_runs(found)} == {Path(__file__)}


@pytest.mark.parametrize("reporter", [Progress, EventLines])
def test_a_reporter_that_prints_the_warnings_of_a_run_prints_them_alone(reporter, capsys, recwarn):
    with tiny("CartPole-v1", "ppo") as run:
        run.train(4, reporter())
    assert "No gradient step" in "".join(capsys.readouterr())
    assert not of_runs(recwarn)


@pytest.mark.parametrize("settings", PLACES, ids=NAMES)
def test_a_callback_is_called_with_every_kind_of_event_in_order(settings, tmp_path):
    noting, events = Noting(), []
    with tiny(**settings, run_dir=tmp_path / "run") as run:
        run.train(120, [noting, events.append], evaluate_every=80, evaluate_episodes=1)
    called = names(noting)
    assert called[0] == "on_train_begin"
    assert called[-1] == "on_train_end"
    assert called.count("on_steps_collected") == sum(isinstance(event, Collected) for event in events) == 15
    assert called.count("on_update") == sum(isinstance(event, Learned) for event in events) > 10
    assert called.count("on_episode_end") == sum(
        len(event.episodes) for event in events if isinstance(event, Collected)
    )
    assert called.count("on_evaluation") == 1
    assert called.count("on_save") == sum(isinstance(event, Saved) for event in events) == 2  # best and last
    assert called.count("on_worker_replaced") == 0
    assert [step for name, step in noting.calls if name == "on_steps_collected"] == list(range(8, 121, 8))


@pytest.mark.parametrize("settings", PLACES, ids=NAMES)
@pytest.mark.parametrize("algorithm", ["dqn", "ppo"])
def test_events_carry_the_collected_steps_as_read_only_views(algorithm, settings):
    seen = []

    def look(event):
        if isinstance(event, Collected):
            for steps in event.steps:
                seen.append((steps.shape, steps.columns.copy(), steps.reward.sum()))
                for array in (steps.observation, steps.action, steps.reward, steps.terminated, *steps.extras.values()):
                    assert not array.flags.writeable
                    assert array.base is not None, "a view, and no copy"
                with pytest.raises(ValueError, match="read-only"):
                    steps.reward[...] = 0
                assert len(steps.final_index) == len(steps.episodes)

    with tiny(algorithm=algorithm, **settings) as run:
        run.train(128, callbacks=look)
    assert sum(t * n for (t, n), _, _ in seen) == 128
    assert all(list(columns) == [0, 1, 2, 3] for _, columns, _ in seen)


def test_the_steps_of_an_event_are_released_after_it_was_delivered():
    with tiny() as run:
        first, *_ = [event for event in run.steps(16) if isinstance(event, Collected)]
        with pytest.raises(DataError, match=r"step 8\) were released.*Copy what you keep"):
            first.steps  # noqa: B018
        for event in run.steps(8):
            if isinstance(event, Collected):
                assert len(event.steps) == 1


def test_algorithms_that_collect_whole_episodes_carry_a_part_for_each_environment():
    parts = []
    with etude.Run("reinforce", Counted, environments=3, engine="torch") as run:
        run.train(60, lambda event: parts.append(event.steps) if isinstance(event, Collected) else None)
    assert [[int(steps.columns[0]) for steps in each] for each in parts] == [[0, 1, 2]] * 2


def test_gradients_of_workers_come_without_steps():
    parts = []
    with etude.Run("a3c", "CartPole-v1", environments=2, engine="torch") as run:
        run.train(100, lambda event: parts.append(event.steps) if isinstance(event, Collected) else None)
        with pytest.raises(ConfigError, match="metric 'x' is read from collected steps; A3C collects none"):
            run.metric("x", len)
    assert set(parts) == {()}


def test_callbacks_change_no_number_of_a_run():
    class Looking(etude.Callback):
        def on_steps_collected(self, run, event):
            for steps in event.steps:
                np.abs(steps.observation).max()

    with tiny() as one, tiny() as other:
        one.train(80)
        other.metric("reward", lambda steps: steps.reward)
        other.train(80, [Looking(), lambda event: None])
        for name, weight in one.engine.weights().items():
            np.testing.assert_array_equal(weight, other.engine.weights()[name])


def test_a_callback_stops_the_run():
    class Stopping(etude.Callback):
        def on_episode_end(self, run, episode):
            run.stop()

    with tiny() as run:
        finished = run.train(400, Stopping())
    assert (finished.reason, finished.step) == ("interrupted", 40)


def test_a_callback_that_closes_the_run_is_told_how_to_stop_it():
    with tiny() as run, pytest.raises(ConfigError, match=r"closed while it trains.*run\.stop\(\)"):
        run.train(400, lambda event: run.close())


@pytest.mark.parametrize("settings", PLACES, ids=NAMES)
def test_what_a_callback_raises_is_one_clear_error_and_the_run_is_saved(settings, tmp_path):
    class Broken(etude.Callback):
        def on_update(self, run, event):
            if event.step >= 40:
                raise KeyError("no such loss")

    with tiny(**settings, run_dir=tmp_path / "run") as run:
        events = []
        expected = r"Callback Broken raised KeyError: 'no such loss' \(.*:\d+\) at step 40, on Learned.*It is saved: "
        with pytest.raises(KeyError, match=expected):
            run.train(400, [Broken(), events.append])
        assert isinstance(events[-1], Saved), "reporters see the checkpoint"
    with etude.load(tmp_path / "run", Counted) as again, tiny() as whole:
        assert again.step == 40
        again.train(360)
        whole.train(400)
        for name, weight in whole.engine.weights().items():
            if not settings.get("overlap"):
                np.testing.assert_array_equal(weight, again.engine.weights()[name])


def test_a_trial_that_a_callback_prunes_is_pruned_and_the_study_goes_on():
    optuna = pytest.importorskip("optuna")

    def objective(trial):
        def prune(event):
            if isinstance(event, Learned) and trial.number == 1:
                raise optuna.TrialPruned

        with tiny() as run:
            return run.train(80, prune).step

    study = optuna.create_study()
    study.optimize(objective, n_trials=3)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED", "COMPLETE"]


def test_what_a_callback_raises_is_shown_with_its_own_traceback_and_context_alone():
    def broken(event):
        try:
            {}["missing"]
        except KeyError:
            raise ZeroDivisionError("mine")  # noqa: B904  # with the context that Python gives it

    with tiny() as run, pytest.raises(ZeroDivisionError) as caught:
        run.train(8, broken)
    assert isinstance(caught.value.__context__, KeyError) and caught.value.__context__.__context__ is None
    assert caught.traceback[-1].name == "broken"


def test_a_callback_that_fails_is_not_called_again_and_the_others_are():
    calls = []

    def broken(event):
        calls.append(event)
        raise ValueError

    with tiny() as run:
        with pytest.raises(ValueError, match=r"broken raised ValueError.*It can go on: run\.train"):
            run.train(8, broken)
        assert len(calls) == 1
        assert run.train(8).reason == "steps"


@pytest.mark.parametrize("settings", PLACES[1:], ids=NAMES[1:])
def test_a_worker_that_is_replaced_is_an_event_of_its_own(settings, tmp_path):
    env = partial(Failing, "kill", 30, tmp_path / "once")
    noting, events = Noting(), []
    with tiny(env, **settings) as run:
        run.train(400, [noting, events.append])
    replaced = [i for i, event in enumerate(events) if isinstance(event, WorkerReplaced)]
    assert names(noting).count("on_worker_replaced") == len(replaced) >= 1
    for at in replaced:
        assert events[at].environments == ((0, 1), (2, 3))[events[at].worker]
        assert "SIGKILL" in events[at].reason
        assert isinstance(events[at - 1], Warned), "the text for the user"
        assert "SIGKILL" in events[at - 1].message


def test_what_is_no_callback_is_refused_before_the_run_begins():
    class Misspelt(etude.Callback):
        def on_step(self, run, event):
            raise AssertionError

    with tiny() as run:
        with pytest.raises(ConfigError, match="Misspelt has on_step, which a run does not call. It calls on_"):
            run.train(8, Misspelt())
        with pytest.raises(ConfigError, match=r"callbacks = 'Progress'; expected a reporter, or a list of them"):
            run.train(8, "Progress")
        assert run.step == 0


def test_callbacks_are_called_in_their_order():
    order = []
    with tiny() as run:
        run.train(8, [lambda event: order.append("first"), lambda event: order.append("second")])
    assert order[:2] == ["first", "second"]
    assert len(order) % 2 == 0


def test_a_run_that_is_loaded_takes_its_callbacks_again(tmp_path):
    noting = Noting()
    with tiny(run_dir=tmp_path / "run") as run:
        run.train(40)
    with etude.load(tmp_path / "run", Counted) as again:
        finished = again.train(40, noting)
    assert isinstance(finished, Finished)
    assert noting.calls[0] == ("on_train_begin", 40)
    assert noting.calls[-1] == ("on_train_end", 80)


def test_a_worker_that_is_replaced_while_the_run_is_saved_is_an_event_too(tmp_path):
    def killing(event):
        if isinstance(event, Saving):
            os.kill(run.collection.rollout._supervisor.workers[1].process.pid, signal.SIGKILL)

    events = []
    with tiny(workers=2, run_dir=tmp_path / "run") as run:
        run.train(40, [killing, events.append])
    assert [type(event) for event in events[-4:]] == [Saved, Warned, WorkerReplaced, Finished]
    assert events[-2].environments == (2, 3)
