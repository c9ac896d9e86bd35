"""Evaluations of a run while it trains: how long they may be, how often they come, and that they can be stopped."""

from __future__ import annotations

import tracemalloc

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from run_makers import tiny
from run_worlds import Counted

from etude.base.events import Evaluated, Finished, Saved, Warned
from etude.checkpoint.run_directory import RunDirectory
from etude.envs import make, make_for_evaluation
from etude.run import from_state


class Endless(Counted):
    """Never ends an episode; `taken` counts the steps of all of them."""

    taken = 0
    on_step = staticmethod(lambda: None)

    def step(self, action):
        Endless.taken += 1
        self.on_step()
        return np.zeros(2, np.float32), 1.0, False, False, {}


def limited():
    return gym.wrappers.TimeLimit(Endless(), 30)


def kinds(events, kind):
    return [event for event in events if isinstance(event, kind)]


@pytest.fixture
def short(monkeypatch):
    """Where no time limit is declared, an episode of an evaluation counts as endless after 50 steps."""
    monkeypatch.setattr(make, "MANY_STEPS", 50)


def test_an_episode_that_does_not_end_is_cut_off_and_counts_with_what_it_earned(short):
    with tiny(Endless) as run:
        found = run.evaluate(episodes=12)
        assert (found.lengths, found.returns, found.cut_off) == ((50,) * 12, (50.0,) * 12, 12)
        assert "12 cut off" in str(found)
        assert run.evaluate(episodes=2, max_steps=7).lengths == (7, 7)


class Uneven(Counted):
    """Its episodes have 1 to 40 steps; `taken` counts the steps of all of them."""

    taken = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(np.random.default_rng(seed).integers(1, 41))
        return np.zeros(2, np.float32), {}

    def step(self, action):
        Uneven.taken += 1
        self.left -= 1
        return np.zeros(2, np.float32), 1.0, self.left == 0, False, {}


def test_an_environment_that_has_played_its_episodes_is_stepped_no_more():
    with tiny(Uneven) as run:
        for episodes in (1, 4, 17):
            before = Uneven.taken
            found = run.evaluate(episodes)
            assert len(found.returns) == episodes
            assert found.lengths == found.returns
            assert sum(found.lengths) == Uneven.taken - before


class WithoutOptions(Counted):
    """Its `reset` takes a seed alone."""

    def reset(self, *, seed=None):
        return super().reset(seed=seed)


def test_environments_whose_reset_takes_no_options_are_evaluated_as_they_are_trained():
    with tiny(WithoutOptions) as run:
        run.train(8)
        assert len(run.evaluate(episodes=2).returns) == 2


def test_a_declared_time_limit_holds_and_only_a_lower_bound_that_was_asked_for_cuts_off(short, monkeypatch):
    monkeypatch.setattr(make, "MANY_STEPS", 20)
    with tiny(limited) as run:
        for more, expected in (({}, (30, 0)), ({"max_steps": 100}, (30, 0)), ({"max_steps": 9}, (9, 2))):
            found = run.evaluate(episodes=2, **more)
            assert (found.lengths[0], found.cut_off) == expected


def test_a_simulator_is_cut_off_too(short):
    def simulator(num_envs):
        return SyncVectorEnv([Endless] * num_envs, autoreset_mode=AutoresetMode.DISABLED)

    environments, cut_at = make_for_evaluation(simulator, np.arange(2), 0)
    environments.reset()
    ends = [environments.step(np.zeros(2, np.int64))[3].tolist() for _ in range(100)]
    assert cut_at == 50
    assert [i for i, end in enumerate(ends) if any(end)] == [49, 99]


def test_a_run_warns_once_of_evaluations_that_were_cut_off(short):
    with tiny(Endless) as run:
        events = list(run.steps(120, evaluate_every=40, evaluate_episodes=2, evaluate_max_steps=20))
    assert [event.cut_off for event in kinds(events, Evaluated)] == [2, 2, 2]
    (warned,) = kinds(events, Warned)
    assert "2 of 2 episodes of the evaluation were cut off after 20 steps" in warned.message
    assert "--evaluate-max-steps" in warned.message


@pytest.mark.parametrize(("steps", "warns"), [(8, True), (200, False)])
def test_a_run_that_ends_before_its_first_gradient_step_says_so(steps, warns):
    with tiny(Counted) as run:
        warned = [event.message for event in kinds(run.steps(steps), Warned)]
    assert [message for message in warned if message.startswith("No gradient step was taken in 8 ")] == warned
    assert bool(warned) == warns


def test_an_endless_episode_of_an_evaluation_takes_no_memory():
    environments, _ = make_for_evaluation(Endless, np.arange(2), 0, 10**9)
    environments.reset()
    action = np.zeros(2, np.int64)
    for _ in range(100):
        environments.step(action)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(2_000):
        environments.step(action)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 20_000, "bytes: a tenth of what keeping the actions would take"


def test_a_stop_is_obeyed_within_a_step_of_an_evaluation_which_takes_place_when_the_run_goes_on(tmp_path, monkeypatch):
    with RunDirectory.create(tmp_path / "run", "run") as directory, tiny(Endless, run_dir=directory) as run:
        schedule = {"evaluate_every": 40, "evaluate_episodes": 2, "evaluate_max_steps": 30}
        at = Endless.taken + 40 + 2 * 5  # in the fifth step of the evaluation after step 40
        monkeypatch.setattr(Endless, "on_step", lambda self: run.stop() if Endless.taken == at else None)
        events = list(run.steps(80, **schedule))
        assert (events[-1].reason, events[-1].step) == ("interrupted", 40)
        assert at <= Endless.taken <= at + 1
        assert kinds(events, Evaluated) == []
        assert isinstance(events[-2], Saved)
        with from_state(directory.load().state, Endless) as again:
            assert [event.step for event in again.steps(40, **schedule) if isinstance(event, Evaluated)] == [40, 80]


def test_an_evaluation_that_is_stopped_twice_takes_place_at_its_step(tmp_path, monkeypatch):
    schedule = {"evaluate_every": 128, "evaluate_episodes": 2, "evaluate_max_steps": 30}
    with RunDirectory.create(tmp_path / "run", "run") as directory:
        run, left = tiny(Endless, run_dir=directory), 128
        for _ in range(2):
            at = Endless.taken + left + 5  # within the evaluation after step 128
            monkeypatch.setattr(Endless, "on_step", lambda self, at=at, run=run: Endless.taken == at and run.stop())
            with run:
                events = list(run.steps(384 - run.step, **schedule))
            assert (events[-1].reason, events[-1].step, kinds(events, Evaluated)) == ("interrupted", 128, [])
            run, left = from_state(directory.load().state, Endless, run_dir=directory), 0
        with run:
            found = kinds(run.steps(384 - run.step, **schedule), Evaluated)
    assert [event.step for event in found] == [128, 256, 384]


def test_evaluations_take_a_share_of_the_steps_but_for_the_last_and_the_run_says_so_once():
    schedule = {"evaluate_every": 40, "evaluate_episodes": 4, "evaluate_share": 0.1}  # each takes 40 steps
    with tiny() as run:
        events = list(run.steps(1_000, **schedule))
    assert [event.step for event in kinds(events, Evaluated)] == [400, 800, 1_000]
    (warned,) = kinds(events, Warned)
    assert "beyond 10% of the run's steps are skipped" in warned.message
    assert "An evaluation takes about 40 environment steps" in warned.message
    with tiny() as run:
        found = list(run.steps(200, evaluate_every=40, evaluate_episodes=4))
        assert [event.step for event in kinds(found, Evaluated)] == [40, 80, 120, 160, 200]


def test_a_resumed_run_leaves_out_the_same_evaluations(tmp_path):
    schedule = {"evaluate_every": 40, "evaluate_episodes": 4, "evaluate_share": 0.1}
    with RunDirectory.create(tmp_path / "run", "run") as directory:
        with tiny(run_dir=directory) as run:
            run.learner.progress.total = 1_000
            events = [event for event in run.steps(1_000, **schedule, save_every=100) if event.step <= 500]
        with from_state(directory.load().state, Counted) as again:
            assert again.learner.progress.evaluation_cost == 40
            assert again.learner.progress.evaluation_steps == 120
    assert [event.step for event in kinds(events, Evaluated)] == [400]
    assert not kinds(events, Finished)
