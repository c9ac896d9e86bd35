"""Studies end to end: in this process and in worker processes, killed and gone on with."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from study_worlds import Pointer, curves, tiny_study
from test_killed_and_diverged import small

import etude
from etude.base.errors import CheckpointError, ConfigError
from etude.tuning import (
    ASHA,
    PBT,
    Fifo,
    MedianStopping,
    OptunaSearch,
    ProcessExecutor,
    RandomSearch,
    Study,
    TrialTraining,
    Uniform,
)  # fmt: skip
from etude.tuning.executors import TrialServer
from etude.tuning.segment import TrialRuns
from etude.tuning.trial import New
from etude.workers.channel import SharedMemory
from etude.workers.process import Failure

RANGE = {"learning_rate": Uniform(0.001, 0.1)}


class Killed(BaseException):
    """In the place of kill -9, in this process."""


def killed_after(lines: int):
    """A callback that ends the process's part of a study after so many reports."""
    left = [lines]

    def call(study):
        left[0] -= 1
        if left[0] < 0:
            raise Killed

    return call


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A grid of three rates that was carried out without interruption."""
    with tiny_study(tmp_path_factory.mktemp("study")) as study:
        study.run()
        yield study


def test_a_grid_tries_every_value_and_ranks_them_by_the_lower_bound(straight):
    found = straight.ranking()
    assert {result.number: result.values["learning_rate"] for result in found} == {0: 0.03, 1: 0.01, 2: 0.003}
    assert [result.low for result in found] == sorted((result.low for result in found), reverse=True)
    assert all(result.status == "finished" and result.steps == 128 for result in found)
    assert straight.best is not None and straight.finished


def test_every_trial_is_a_run_directory(straight):
    run = etude.load(straight.best.directories[0], env=Pointer)
    assert run.step == 128 and run.agent.config == straight.best.config
    run.close()


@pytest.mark.parametrize("reports", [0, 3, 7])
def test_a_study_that_was_killed_goes_on_to_the_same_scores(tmp_path, straight, reports):
    with tiny_study(tmp_path) as study, pytest.raises(Killed):
        study.run(killed_after(reports))
    with tiny_study(tmp_path) as study:
        study.run()
        assert curves(study) == curves(straight)


def test_a_cut_off_last_line_is_dropped_and_its_step_repeated(tmp_path, straight):
    with tiny_study(tmp_path) as study, pytest.raises(Killed):
        study.run(killed_after(3))
    journal = tmp_path / "study.jsonl"
    journal.write_bytes(journal.read_bytes()[:-7])
    with tiny_study(tmp_path) as study:
        study.run()
        assert curves(study) == curves(straight)
    assert all(json.loads(line) for line in journal.read_text().splitlines())


def test_worker_processes_give_the_same_scores_and_one_that_is_killed_is_replaced(tmp_path, straight):
    def kill_once(study):
        if len(killed) < 1:
            killed.append(executor._workers[0].process.pid)
            os.kill(killed[0], signal.SIGKILL)

    killed, executor = [], ProcessExecutor(2)
    with tiny_study(tmp_path, executor=executor) as study:
        study.run(kill_once)
        assert curves(study) == curves(straight)
        assert any("SIGKILL" in text for _, text in study.notes)


class Struck(Pointer):
    """Raises where there is this file, which it removes."""

    def __init__(self, flag):
        self.flag = flag

    def step(self, action):
        if self.flag.exists():
            self.flag.unlink()
            raise ValueError("no ink")
        return super().step(action)


def proposed(folder, **more):
    pytest.importorskip("optuna")
    return tiny_study(folder, RANGE, trials=3, search=OptunaSearch(), **more)


STUDIES = {
    "grid": tiny_study,
    "ASHA": partial(tiny_study, scheduler=ASHA(min_steps=32, reduction=2)),
    "Optuna": proposed,
    "evolution": small,
}
STRIKES = {"SIGKILL": "SIGKILL", "SIGTERM": None, "SIGSTOP": "took no time step for", "exception": None}
EACH_ONCE = {("grid", "SIGSTOP"), ("ASHA", "SIGKILL"), ("Optuna", "exception"), ("evolution", "SIGTERM")}


@pytest.mark.parametrize(
    ("kind", "strike"),
    [
        pytest.param(kind, strike, marks=[] if (kind, strike) in EACH_ONCE else pytest.mark.long)
        for kind in STUDIES
        for strike in STRIKES
    ],
)
def test_nothing_is_lost_whatever_strikes_a_worker_of_a_study_at_a_random_moment(kind, strike, tmp_path):
    def hit(study):
        reports.append(study.steps)
        if len(reports) == at:
            time.sleep(rng.uniform(0, 0.02))  # meanwhile it trains on
            struck.append(executor._workers[0].process.pid)
            if strike == "exception":
                flag.touch()
            else:
                os.kill(struck[0], getattr(signal, strike))

    rng, reports, struck, flag = random.Random(f"{kind} {strike}"), [], [], tmp_path / "flag"
    at, executor = rng.randint(1, 6), ProcessExecutor(1, patience=5.0, restarts=20)
    given = {"env": partial(Struck, flag)}
    with STUDIES[kind](tmp_path / "straight", **given) as straight:
        straight.run()
    with STUDIES[kind](tmp_path / "struck", **given, executor=executor) as study:
        study.run(hit)
        failed = {  # evolution has replaced it since
            trial.number: trial.reason for trial in study.trials if trial.status == "failed" or "no ink" in trial.reason
        }
        assert study.finished and not executor._workers[0].running
        if strike != "exception":
            assert not failed and curves(study) == curves(straight)
            assert STRIKES[strike] is None or any(STRIKES[strike] in text for _, text in study.notes)
        elif kind == "ASHA" and not failed:  # its trial was paused meanwhile: what it does beyond its rung is not used
            assert not flag.exists() and curves(study) == curves(straight)
        else:
            assert len(failed) == 1 and "no ink" in next(iter(failed.values()))
            others = {number: scores for number, scores in curves(study).items() if number not in failed}
            assert kind != "grid" or others == {number: curves(straight)[number] for number in others}
    with pytest.raises(ProcessLookupError):
        os.kill(struck[0], 0)


def test_a_new_process_may_take_as_long_to_import_as_it_needs_whatever_the_patience():
    """Where the machine is busy, to import torch takes longer than the patience of a study may be."""
    allowed: list[float] = []
    worker: Any = SimpleNamespace(
        number=0, counters=np.zeros(2, np.int64), failures=0, ask=lambda segment: allowed.append(0.0),
        allow=allowed.append,
    )  # fmt: skip
    executor = ProcessExecutor(1, patience=5.0)
    executor._workers = [worker]
    executor._supervisor = SimpleNamespace(replace=lambda *_: None, take_warnings=list)  # type: ignore[assignment]
    executor.begin(SimpleNamespace(trial=3))  # type: ignore[arg-type]
    assert allowed == [0.0, 55.0]
    worker.counters[0] += 1  # its run has shown that it lives
    assert list(executor._replaced(worker, Failure("died"))) == []
    assert allowed == [0.0, 55.0, 0.0, 55.0]
    executor._begun.clear()
    executor.begin(SimpleNamespace(trial=3))  # type: ignore[arg-type]
    assert allowed[4:] == [0.0]


def test_a_copy_of_pbt_goes_on_with_the_weights_of_its_parent_and_its_own_learning_rate(tmp_path):
    began: dict[tuple[float, int], Any] = {}  # the weights at the begin of a segment, by rate of the config and step
    applied: dict[float, set[float]] = {}  # the rates that the engine was called with, by rate of the config

    class Watching(etude.Callback):
        def on_train_begin(self, run, event):
            learn, rate = run.engine.learn, run.agent.config.learning_rate
            began[rate, run.step] = {name: value.copy() for name, value in run.engine.weights().items()}

            def watched(batches, hyper):
                applied.setdefault(rate, set()).add(hyper["learning_rate"])
                return learn(batches, hyper)

            run.engine.learn = watched

    given: dict[str, Any] = {"trials": 4, "scheduler": PBT(every=64, resample=0.0), "callbacks": Watching}
    with tiny_study(tmp_path / "one", RANGE, **given) as study:
        study.run()
        (copy,) = [trial for trial in study.trials if trial.parent is not None]
        assert copy.status == "finished" and copy.started == 64 and [score.step for score in copy.scores] == [96, 128]
        (_, after) = copy.change["learning_rate"]
        assert after == copy.genome.config.learning_rate != study.trials[copy.parent].genome.config.learning_rate
        assert applied[after] == {after}
        before = study.trials[copy.parent].genome.config.learning_rate
        assert all(np.array_equal(value, began[before, 64][name]) for name, value in began[after, 64].items())
        folders = [tmp_path / "one" / f"trial-{number:04d}" for number in (copy.number, copy.parent)]
        with etude.load(folders[0], env=Pointer) as run, etude.load(folders[1], env=Pointer) as parent:
            assert run.learner.hyper()["learning_rate"] == after
            assert run.step == parent.step == 128
            own, parents = run.state(), parent.state()
        assert own["replay"]["generator"] != parents["replay"]["generator"]
        noise = [[each["generator"] for each in state["rollout"]["environments"].values()] for state in (own, parents)]
        assert not [one for one in noise[0] if one in noise[1]]
    given["callbacks"] = None
    with tiny_study(tmp_path / "two", RANGE, **given) as again, pytest.raises(Killed):
        again.run(killed_after(12))
    with tiny_study(tmp_path / "two", RANGE, jobs=2, **given) as again:
        again.run()
        assert curves(again) == curves(study)


class Counting(etude.Callback):
    """Writes the steps at which its segments began, and how many events of each kind it has seen so far."""

    def __init__(self):
        self.begun, self.evaluations = [], 0

    def on_train_begin(self, run, event):
        self.begun.append(event.step)

    def on_evaluation(self, run, event):
        self.evaluations += 1
        (run.directory.path / "seen.json").write_text(json.dumps([self.begun, self.evaluations]))


def seen(study, trial):
    return json.loads((study.folder / f"trial-{trial:04d}" / "seen.json").read_text())


def test_callbacks_of_a_trial_live_through_its_segments_until_it_goes_on_in_another_process(tmp_path):
    given = {"scheduler": ASHA(min_steps=32, reduction=2), "callbacks": Counting}
    with tiny_study(tmp_path / "one", **given) as study:
        study.run()
        finished = next(trial for trial in study.trials if trial.step == 128)
        begun, evaluations = seen(study, finished.number)
        assert begun[0] == 0 and len(begun) > 1 and evaluations == 4
    with tiny_study(tmp_path / "two", {"learning_rate": [0.01]}, callbacks=Counting) as study:
        study.run(lambda study: study.stop())
        stopped = study.trials[0].step
        assert 0 < stopped < 128 and seen(study, 0) == [[0], 1]
        study.run()  # as in a process that is started again
        assert seen(study, 0) == [[stopped], 3]


def test_callbacks_do_not_go_on_where_another_process_carried_the_trial_on():
    made = []
    training = TrialTraining(callbacks=lambda: made.append(1) or [len(made)])
    runs = TrialRuns(SimpleNamespace(folder="", keep=1, training=training))
    runs._callbacks[3] = (64, runs._callbacks_at(3, 0))
    assert runs._callbacks_at(3, 64) == [1] and runs._callbacks_at(3, 64) == [2]
    runs._callbacks[3] = (64, [2])
    assert runs._callbacks_at(3, 96) == [3]


def test_a_trial_that_fails_is_reported_and_the_others_go_on(tmp_path):
    with tiny_study(tmp_path, {"learning_rate": [0.01, float("inf")]}) as study:
        study.run()
        ranked = study.ranking()
    assert [result.status for result in ranked] == ["finished", "failed"]
    assert "finite" in study.trials[1].reason or "NaN" in study.trials[1].reason


@pytest.mark.parametrize(("value", "goes_on"), [(None, True), (0.25, False)])
def test_a_study_from_before_a_field_of_its_network_goes_on(value, goes_on, tmp_path):
    """A field that its config lacks has its default, and is another one where it was asked for otherwise."""
    with tiny_study(tmp_path / "study"):
        pass
    path = tmp_path / "study" / "study.jsonl"
    held = json.loads(path.read_text())
    del held["study"]["config"]["network"]["skips"], held["study"]["config"]["gsde"]
    if not goes_on:
        held["study"]["config"]["gae_lambda"] = value
    path.write_text(json.dumps(held) + "\n")
    if goes_on:
        Study.load(tmp_path / "study", env=Pointer, trust=True).close()
        tiny_study(tmp_path / "study").close()
    else:
        with pytest.raises(ConfigError, match="gae_lambda was 0.25"):
            tiny_study(tmp_path / "study")


def test_a_score_is_the_mean_over_seeds(tmp_path):
    with tiny_study(tmp_path, {"learning_rate": [0.01]}, seeds=(3, 5), steps=64) as study:
        (result,) = study.run()
    assert [trial.genome.seed for trial in study.trials] == [3, 5]
    assert result.score == pytest.approx(sum(trial.score() for trial in study.trials) / 2)
    assert result.low == min(trial.score() for trial in study.trials)


def test_a_study_loads_from_its_folder_alone_but_for_what_was_no_plain_data(tmp_path, straight):
    with tiny_study(tmp_path) as study, pytest.raises(Killed):
        study.run(killed_after(2))
    with pytest.raises(ConfigError, match="give it again, as env="):
        Study.load(tmp_path)
    with Study.load(tmp_path, env=Pointer) as study:
        study.run()
        assert curves(study) == curves(straight)


@pytest.mark.parametrize(
    "part",
    [
        lambda: {"scheduler": Fifo()},
        lambda: {"scheduler": ASHA(32, 3)},
        lambda: {"scheduler": MedianStopping(32, 1, 2)},
        lambda: {"scheduler": PBT(32, factors=(0.5, 2.0))},
        lambda: {"search": RandomSearch()},
        lambda: {"search": OptunaSearch(options={"n_startup_trials": 6})},
    ],
)
def test_schedulers_and_searches_are_read_from_the_folder(tmp_path, part):
    pytest.importorskip("optuna")
    with tiny_study(tmp_path, RANGE, trials=4, **part()) as study:
        pass
    with Study.load(tmp_path, env=Pointer) as loaded:
        assert (loaded.scheduler, loaded.search) == (study.scheduler, study.search)


def test_what_cannot_be_studied_is_refused_before_a_trial_begins(tmp_path):
    for changes, message in (
        ({"space": {"learning_rat": [1]}}, "did you mean learning_rate"),
        ({"space": {"gamma": [0.9, 1.5]}}, "gamma = 1.5"),
        ({"space": {"gamma": Uniform(0.9, 0.99)}}, "trials is not given"),
        ({"evaluate_every": 50}, "does not divide"),
        ({"seeds": (1, 1)}, "each once"),
        ({"jobs": 0}, "jobs = 0"),
        ({"run_dir": "x"}, "run directory of its own"),
        ({"callback": 1}, "callback"),
    ):
        with pytest.raises(ConfigError, match=message):
            tiny_study(tmp_path / "none", **changes)
    assert not (tmp_path / "none").exists()


def test_a_folder_with_another_study_is_refused(tmp_path, straight):
    with pytest.raises(ConfigError, match="Another process"):
        tiny_study(straight.folder)
    with tiny_study(tmp_path):
        pass
    with pytest.raises(ConfigError, match="is another one: learning_rate"):
        tiny_study(tmp_path, {"learning_rate": [0.5]})
    lines = (tmp_path / "study.jsonl").read_text().splitlines()
    (tmp_path / "study.jsonl").write_text("\n".join([*lines, '{"trial": 7, "score": [1, [1], 1]}', ""]))
    with pytest.raises(CheckpointError, match="Line 2"):
        tiny_study(tmp_path)


def test_a_worker_in_the_place_of_another_goes_on_until_the_study_stops():
    memory = SharedMemory(bytearray(16))
    memory.counter_array()[1:] += 1  # as the supervisor does for each worker that it replaces
    server = TrialServer(SimpleNamespace(runs=lambda stopped: None), None, memory)
    assert not server._alive()
    memory.counter_array()[1:] += 1
    assert server._alive()


def test_a_study_that_is_stopped_goes_on_to_the_same_scores(tmp_path, straight):
    with tiny_study(tmp_path, jobs=2) as study:
        study.run(lambda study: study.stop())
        assert not study.finished and all(trial.status in ("queued", "paused") for trial in study.trials)
        assert any(0 < trial.step < 128 for trial in study.trials)
    with tiny_study(tmp_path) as study:
        study.run()
        assert curves(study) == curves(straight)


def test_a_study_goes_on_with_more_trials_and_has_the_scores_of_one_that_had_them_from_the_beginning(tmp_path):
    with tiny_study(tmp_path / "whole", RANGE, trials=4) as whole:
        whole.run()
    for trials in (2, 4):
        with tiny_study(tmp_path / "grown", RANGE, trials=trials) as study:
            study.run()
            assert len(study.trials) == trials and study.finished
    assert curves(study) == curves(whole)
    with Study.load(tmp_path / "grown", env=Pointer) as again:
        assert again.plan.configurations == 4 and again.finished and curves(again) == curves(whole)
    with pytest.raises(ConfigError, match="trials was 4, and is 3 now.*with more trials or steps"):
        tiny_study(tmp_path / "grown", RANGE, trials=3)
    with Study.load(tmp_path / "grown", env=Pointer, trials=5) as more:
        more.run()
        assert len(more.trials) == 5


@pytest.mark.parametrize(
    ("scheduler", "space", "more"),
    [(None, None, {}), (MedianStopping(), None, {"trials": 4}), (PBT(32), RANGE, {"trials": 2})],
)
def test_a_study_goes_on_with_more_steps_of_each_trial(tmp_path, scheduler, space, more):
    space = {"learning_rate": [0.03, 0.01, 0.003, 0.001]} if scheduler == MedianStopping() else space
    for steps in (64, 128):
        with tiny_study(tmp_path, space, scheduler=scheduler, steps=steps, **more) as study:
            study.run()
            assert study.finished and max(trial.step for trial in study.trials) == steps
    with Study.load(tmp_path, env=Pointer) as again:
        assert again.plan.steps == 128 and again.finished and curves(again) == curves(study)


def test_a_study_that_goes_on_is_evaluated_as_often_where_nobody_says_how_often(tmp_path):
    for steps in (160, 320):
        with tiny_study(tmp_path, {"learning_rate": [0.01]}, steps=steps, evaluate_every=None) as study:
            study.run()
            assert study.plan.evaluate_every == 8 and study.trials[0].scores[-1].step == steps


@pytest.mark.parametrize(
    ("scheduler", "more", "message"),
    [
        (ASHA(32, 2), {"steps": 256}, "steps was 128, and is 256 now.*with more trials"),
        (PBT(32), {"trials": 4}, "trials was 3, and is 4 now.*with more steps"),
    ],
)
def test_what_a_scheduler_has_divided_cannot_grow(tmp_path, scheduler, more, message):
    with tiny_study(tmp_path, RANGE, scheduler=scheduler, trials=3):
        pass
    with pytest.raises(ConfigError, match=message):
        tiny_study(tmp_path, RANGE, **{"scheduler": scheduler, "trials": 3, **more})


@dataclasses.dataclass(frozen=True)
class Own:
    """A scheduler that etude does not know."""

    def check(self, state):
        pass

    def decide(self, state):
        return [New(state.plan.steps)] if state.unproposed else []


def test_a_scheduler_of_ones_own_is_given_again(tmp_path):
    with tiny_study(tmp_path, scheduler=Own()):
        pass
    with pytest.raises(ConfigError, match="a scheduler of your own, Own: give it again, as scheduler="):
        Study.load(tmp_path, env=Pointer)
    with Study.load(tmp_path, env=Pointer, scheduler=Own()) as study:
        study.run()
        assert study.finished
