"""Evaluations in workers beside training: the numbers of an evaluation in the same process, reported at fixed steps,
whatever becomes of the workers and of the run."""

from __future__ import annotations

import copy
import json
import os
import signal
import threading
from dataclasses import replace
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from evaluation_worlds import Coded, HangsOnce, Raising, Slow, Tasked, Waiting
from run_makers import DQN_TINY, PPO_TINY, tiny
from run_worlds import Counted, Failing
from several_worlds import Duel

import etude
from etude import Conv
from etude.algorithms import PPO, PPOConfig
from etude.base.errors import CheckpointError, ConfigError, EnvironmentFault, SpaceError
from etude.base.events import Evaluated, Finished, Learned, Saved, Warned, WorkerReplaced
from etude.multi_agent import League
from etude.report import JsonLines, Progress
from etude.run import from_state
from etude.training import evaluate
from etude.workers.supervisor import WorkerOptions

SCHEDULE = {"evaluate_every": 40, "evaluate_episodes": 4}
QUICK = {"dqn": replace(DQN_TINY, learning_rate=0.05), "ppo": replace(PPO_TINY, learning_rate=0.05)}


def numbers_of(events):
    """What does not depend on the clock."""
    return [
        (type(event).__name__, event.step, getattr(event, "returns", None), getattr(event, "kind", None))
        for event in events
        if isinstance(event, Evaluated | Learned | Saved | Warned | Finished)
    ]


def evaluated(events):
    return [event for event in events if isinstance(event, Evaluated)]


@pytest.mark.parametrize(("algorithm", "steps"), [("dqn", [40, 80, 120, 160, 200]), ("ppo", [64, 128, 192, 200])])
def test_evaluations_beside_training_find_what_evaluations_in_this_process_find(algorithm, steps):
    found = []
    for workers in (0, 1, 3):
        with tiny(Coded, algorithm, config=QUICK[algorithm]) as run:
            events = evaluated(run.steps(200, **SCHEDULE, evaluate_workers=workers))
            weights = {name: value.tolist() for name, value in run.engine.weights().items()}
            found.append((events, run.learner.progress.best, run.learner.progress.evaluation_steps, weights))
    assert [event.step for event in found[0][0]] == steps
    assert found[0] == found[1] == found[2]
    if algorithm == "dqn":
        assert len({event.returns for event in found[0][0]}) > 1, "the weights changed what was played"


def test_an_evaluation_is_reported_when_the_next_is_due_and_at_the_end_whatever_its_speed():
    with tiny(Coded) as run:
        fast = list(run.steps(100, **SCHEDULE, evaluate_workers=1))
    with tiny(Coded) as run:
        slow = list(run.steps(100, **SCHEDULE, evaluate_workers=1, evaluate_env=Slow))
    assert numbers_of(fast) == numbers_of(slow)
    where = [
        (event.step, max(e.step for e in fast[:i])) for i, event in enumerate(fast) if isinstance(event, Evaluated)
    ]
    assert where == [(40, 80), (80, 100)]


def test_the_best_checkpoint_is_the_agent_that_was_evaluated_and_not_the_one_that_training_went_on_to(tmp_path):
    with tiny(Coded, run_dir=tmp_path / "run") as run:
        for event in run.steps(200, **SCHEDULE, evaluate_workers=1):
            if isinstance(event, Evaluated):
                best = event
            if isinstance(event, Saved):
                break
        assert (best.step, run.step, event.kind, event.step) == (40, 80, "best", 80)
    with tiny(Coded) as run:
        run.learner.progress.total = 200
        run.train(40)
        expected = run.engine.weights()
    with etude.load(tmp_path / "run" / "checkpoints" / "best.etude", env=Coded) as again:
        assert (again.step, again.learner.progress.best) == (best.step, best.mean)
        for name, value in expected.items():
            np.testing.assert_array_equal(again.engine.weights()[name], value, name)
        assert again.evaluate(4).returns == best.returns
        for use in (lambda: again.train(8), lambda: again.save(tmp_path / "other.etude")):
            with pytest.raises(CheckpointError, match="best.etude has none where evaluate_workers evaluated"):
                use()
    with tiny(Coded, start_from=tmp_path / "run" / "checkpoints" / "best.etude") as fresh:
        assert fresh.evaluate(4).returns == best.returns


def test_the_best_checkpoint_has_the_task_that_was_evaluated(tmp_path):
    with tiny(Tasked, run_dir=tmp_path / "run") as run:
        run.set_task(3)
        events = []
        for event in run.steps(80, **SCHEDULE, evaluate_workers=1, evaluate_env=Coded):
            events.append(event)
            if isinstance(event, Learned) and event.step == 48:
                run.set_task(1)
            if isinstance(event, Saved):
                break
    assert max(evaluated(events)[0].returns) < 1, "another environment is given no task"
    with etude.load(tmp_path / "run" / "checkpoints" / "best.etude", env=Tasked) as again:
        assert (again.step, again.task) == (40, 3)


def test_a_target_stops_the_run_when_the_result_is_known(tmp_path):
    with tiny(Counted, run_dir=tmp_path / "run") as run:
        events = list(run.steps(400, **SCHEDULE, evaluate_workers=1, target=10.0))
        assert (events[-1].step, events[-1].reason) == (80, "target")
    assert [event.step for event in evaluated(events)] == [40]


@pytest.mark.parametrize("at", [48, 120])
def test_a_run_resumed_while_an_evaluation_is_pending_goes_on_as_if_it_had_not_stopped(tmp_path, at):
    schedule = {**SCHEDULE, "evaluate_workers": 1}
    with tiny(Tasked, run_dir=tmp_path / "run") as run:
        run.set_task(1)
        events = []
        for event in run.steps(160, **schedule, save_every=24):
            events.append(event)
            if isinstance(event, Saved) and event.step == at and event.kind == "last":
                state = copy.deepcopy(etude.checkpoint.read(event.path))
                position = len(events)
                run.set_task(2)
        weights = run.engine.weights()
    assert state["evaluation"]["step"] == at // 40 * 40
    with from_state(state, Tasked) as again:
        again.learner.progress.total = 160
        again.set_task(2)
        rest = list(again.steps(160 - at, **schedule))
        for name, value in weights.items():
            np.testing.assert_array_equal(again.engine.weights()[name], value, name)
    ended = [event for event in numbers_of(events[position:]) if event[0] != "Saved"]
    assert [event for event in numbers_of(rest) if event[0] != "Saved"] == ended
    assert {int(value) // 1200 for value in evaluated(rest)[0].returns} == {1}, "the task of the step of its weights"


def test_a_pending_evaluation_is_reported_by_a_run_without_workers_too():
    with tiny(Coded) as run:
        for event in run.steps(60, **SCHEDULE, evaluate_workers=1):
            if event.step == 48:
                break
        state = copy.deepcopy(run.state())
        expected = evaluated(run.steps(32, **SCHEDULE, evaluate_workers=1))
    with from_state(state, Coded) as again:
        assert evaluated(again.steps(32, **SCHEDULE)) == expected
        assert [event.step for event in expected] == [40, 80]


def test_a_stop_does_not_wait_for_an_evaluation_which_is_reported_when_the_run_goes_on(tmp_path):
    schedule = {**SCHEDULE, "evaluate_workers": 1, "evaluate_env": Waiting}
    with tiny(Coded) as run:
        expected = numbers_of(run.steps(120, **SCHEDULE, evaluate_workers=1))
    with tiny(Coded, run_dir=tmp_path / "run") as run:
        timer = threading.Timer(1.0, run.stop)
        stopped = []
        for event in run.steps(120, **schedule):
            if isinstance(event, Learned) and event.step == 72:
                timer.start()
            stopped.append(event)
        timer.join()
    assert (stopped[-1].reason, stopped[-1].step, evaluated(stopped)) == ("interrupted", 80, [])
    with etude.load(tmp_path / "run", env=Coded) as again:
        rest = list(again.steps(40, **SCHEDULE, evaluate_workers=1))
    known = [event for event in numbers_of(stopped) + numbers_of(rest) if event[0] in ("Evaluated", "Learned")]
    assert known == [event for event in expected if event[0] in ("Evaluated", "Learned")]


def test_ctrl_c_saves_the_evaluation_that_is_pending(tmp_path):
    def interrupting(event):
        if isinstance(event, Learned) and event.step == 64:
            os.kill(os.getpid(), signal.SIGINT)

    with tiny(Coded, run_dir=tmp_path / "run") as run:
        finished = run.train(120, interrupting, schedule=etude.Schedule(evaluate_workers=1, **SCHEDULE))
    assert (finished.reason, finished.step) == ("interrupted", 64)
    with etude.load(tmp_path / "run", env=Coded) as again:
        assert [event.step for event in evaluated(again.steps(56, **SCHEDULE, evaluate_workers=1))] == [40, 80, 120]


def test_an_environment_that_raises_in_an_evaluation_ends_the_run_with_its_words_and_a_checkpoint(tmp_path):
    with tiny(Coded, run_dir=tmp_path / "run") as run:
        events = []
        with pytest.raises(EnvironmentFault, match=r"Raising.*the gripper fell off"):
            for event in run.steps(120, **SCHEDULE, evaluate_workers=1, evaluate_env=Raising):
                events.append(event)
        assert numbers_of(events)[-1][:2] == ("Saved", 80)
        assert run.train(40).reason == "steps"
    with etude.load(tmp_path / "run", env=Coded) as again:
        assert [event.step for event in evaluated(again.steps(8, **SCHEDULE, evaluate_workers=1))] == [40, 120]


def test_a_worker_that_is_killed_is_replaced_and_plays_its_episodes_again(tmp_path):
    expected = [(10.0,) * 4] * 3
    world = partial(Failing, "kill", 5, tmp_path / "once")
    with tiny(Counted) as run:
        events = list(run.steps(120, **SCHEDULE, evaluate_workers=2, evaluate_env=world))
    assert [event.returns for event in evaluated(events)] == expected
    (warned,) = [event for event in events if isinstance(event, Warned)]
    assert "Evaluation worker " in warned.message
    assert "was ended by SIGKILL" in warned.message
    assert "replaced, its episodes are played again." in warned.message
    assert not [event for event in events if isinstance(event, WorkerReplaced)], "which is of workers that collect"


def test_a_worker_that_hangs_is_replaced_too(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, "OPTIONS", WorkerOptions(deadline=2.0))
    world = partial(HangsOnce, tmp_path / "once")
    with tiny(Coded) as run:
        events = list(run.steps(80, **SCHEDULE, evaluate_workers=1, evaluate_env=world))
    with tiny(Coded) as run:
        assert evaluated(events) == evaluated(run.steps(80, **SCHEDULE))
    (warned,) = [event for event in events if isinstance(event, Warned)]
    assert "Evaluation worker 0 (environments 0 to 3) took no time step for" in warned.message


@pytest.mark.parametrize(
    "more",
    [
        {"workers": 2},
        {"workers": 2, "overlap": True},
        {"algorithm": "ppo", "config": PPOConfig(normalize_observation=True)},
    ],
    ids=["pool", "overlap", "normalised"],
)
def test_any_run_whose_policy_numpy_computes_evaluates_beside_training(more):
    more = dict(more)
    more.setdefault("config", {"dqn": DQN_TINY, "ppo": PPO_TINY}[more.get("algorithm", "dqn")])
    found = []
    for workers in (0, 2):
        with tiny(Coded, **more) as run:
            found.append(evaluated(run.steps(128, **SCHEDULE, evaluate_workers=workers)))
    assert found[0] == found[1]


def at_random(observation, rng):
    return int(rng.integers(2))


@pytest.mark.parametrize("opponent", [at_random, League("even", 64, 3)], ids=["function", "league"])
def test_several_policies_and_those_that_draw_random_numbers_play_the_same_in_workers(opponent, tmp_path):
    found = []
    for workers in (0, 2):
        members = {"even": PPO(PPO_TINY), "odd": opponent}
        with etude.Run(members, partial(Duel), engine="torch", environments=3, seed=1) as run:
            found.append(evaluated(run.steps(192, **SCHEDULE, evaluate_workers=workers)))
    assert found[0] == found[1]
    assert found[0][0].returns_by_agent


def test_recorded_data_is_learned_from_while_workers_evaluate():
    data, found = etude.record(Coded, 4), []
    for workers in (0, 1):
        with etude.Run("bc", Coded, data=data, engine="torch", seed=1) as run:
            found.append(evaluated(run.steps(8, evaluate_every=4, evaluate_episodes=2, evaluate_workers=workers)))
    assert found[0] == found[1]


class Pictures(Counted):
    observation_space = gym.spaces.Box(0, 255, (16, 16, 1), np.uint8)

    def reset(self, *, seed=None, options=None):
        return np.zeros((16, 16, 1), np.uint8), super().reset(seed=seed)[1]


def test_what_numpy_cannot_play_is_refused_before_the_first_step():
    config = PPOConfig(network=Conv(((4, 4, 2),), (8,)), rollout_length=16, minibatch_size=32, epochs=1)
    with tiny(Pictures, "ppo", config=config) as run:
        with pytest.raises(
            ConfigError, match="evaluate_workers = 1: workers act in NumPy, which does not compute conv"
        ):
            run.train(64, schedule=etude.Schedule(evaluate_workers=1, **SCHEDULE))
        assert run.step == 0


def test_an_environment_that_no_worker_can_make_is_refused_before_the_first_step():
    lock = threading.Lock()

    def locked():
        assert lock
        return Coded()

    with tiny(Coded) as run:
        with pytest.raises(ConfigError, match="cannot be sent to a worker process: .*cannot pickle '_thread.lock'"):
            run.train(64, schedule=etude.Schedule(evaluate_workers=1, evaluate_env=locked, **SCHEDULE))
        with pytest.raises(SpaceError, match="of the same spaces"):
            run.train(64, schedule=etude.Schedule(evaluate_workers=1, evaluate_env=Counted, **SCHEDULE))
        assert run.step == 0


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ({**SCHEDULE, "evaluate_workers": 5}, "evaluate_workers = 5; expected from 0 to 4: the episodes"),
        ({**SCHEDULE, "evaluate_workers": -1}, "evaluate_workers = -1; expected from 0 to 4"),
        ({**SCHEDULE, "evaluate_workers": 1.5}, "evaluate_workers = 1.5; expected a whole number"),
        ({"evaluate_workers": 1}, "evaluate_workers play evaluations: give evaluate_every, too"),
    ],
)
def test_a_schedule_says_what_is_wrong_with_its_workers(schedule, words):
    with tiny() as run, pytest.raises(ConfigError, match=words):
        run.train(40, **schedule)


def changed(change):
    def apply(saved):
        change(saved)
        return saved

    return apply


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda saved: saved.pop("weights"), "evaluation; expected 'weights' in it"),
        (lambda saved: saved.update(step=-1), "evaluation/step; expected a whole number"),
        (lambda saved: saved.update(task={1, 2}), "evaluation/task; expected a task"),
        (lambda saved: saved["weights"].popitem(), "evaluation/weights"),
        (lambda saved: saved["state"].pop("engine"), "evaluation/state; expected 'engine' in it"),
        (lambda saved: saved["state"].update(replay={}), "evaluation/state; expected nothing but"),
        (lambda saved: saved["state"]["progress"].update(step="x"), "evaluation/state/progress/step"),
    ],
)
def test_a_changed_pending_evaluation_is_refused_with_its_place(change, words):
    with tiny(Coded) as run:
        for event in run.steps(60, **SCHEDULE, evaluate_workers=1):
            if event.step == 48:
                break
        state = copy.deepcopy(run.state())
    change(state["evaluation"])
    with pytest.raises(CheckpointError, match=words):
        from_state(state, Coded)


def test_no_worker_outlives_its_run():
    with tiny(Coded) as run:
        run.train(80, schedule=etude.Schedule(evaluate_workers=2, **SCHEDULE))
        pids = [worker.process.pid for worker in run._evaluator._workers._workers]
        run.train(40, schedule=etude.Schedule(evaluate_workers=2, **SCHEDULE))
        assert pids == [worker.process.pid for worker in run._evaluator._workers._workers], "they are kept"
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_records_name_the_step_that_was_evaluated_and_a_resumed_run_repeats_none(tmp_path):
    path, schedule = tmp_path / "metrics.jsonl", {**SCHEDULE, "evaluate_workers": 1}
    with tiny(Coded, run_dir=tmp_path / "run") as run:
        run.train(100, [JsonLines(path, every=10), Progress()], **schedule, save_every=20)
    whole = [json.loads(line) for line in path.read_text().splitlines()]
    steps = [record["step"] for record in whole if "eval/returns" in record]
    assert steps == [40, 80]
    with etude.load(tmp_path / "run" / "checkpoints" / "step_000000080.etude", env=Coded) as again:
        again.learner.progress.total = 100
        again.train(20, JsonLines(path, every=10), **schedule)
    again = [json.loads(line) for line in path.read_text().splitlines()]
    assert [record["step"] for record in again if "eval/returns" in record] == steps
