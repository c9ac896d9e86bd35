"""Tasks: what environments are given when an episode begins, in any place, saved and resumed."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from run_makers import tiny
from run_worlds import Counted, Labelled
from test_failures_of_runs import LOCKSTEP

import etude
from etude import checkpoint
from etude.base.errors import CheckpointError, ConfigError, EnvironmentFault, SpaceError
from etude.base.events import Collected, Evaluated
from etude.run import from_state

PLACES = [{}, {"workers": 2}, {"workers": 2, "overlap": True}, LOCKSTEP]
NAMES = ["in process", "pool", "overlap", "lockstep"]


class Levels(gym.Env):
    """Shows its task and the time, pays the task, and ends after 5 steps; seeds change nothing else."""

    observation_space = gym.spaces.Box(0, 99, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    task = 0

    def set_task(self, task):
        if task == "broken":
            raise ValueError("no such level")
        self.task = task

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.array([self.task, 0], np.float32), {}

    def step(self, action):
        self.time += 1
        return np.array([self.task, self.time], np.float32), float(self.task), self.time == 5, False, {}


class ByOptions(Levels):
    """The same, with its task among the options of `reset`."""

    set_task = None

    def reset(self, *, seed=None, options=None):
        self.task = (options or {}).get("task", 0)
        return super().reset(seed=seed)


class Deaf(Counted):
    """Its reset takes no options."""

    def reset(self, *, seed=None):
        return super().reset(seed=seed)


def tasks_seen(run, steps, change=lambda run, event: None):
    """The task that each observation shows, [T, N], of the next steps; `change` is called with every collected part."""
    found = []
    for event in run.steps(steps):
        if isinstance(event, Collected):
            found += [part.observation[..., 0].copy() for part in event.steps]
            change(run, event)
    return np.concatenate(found)


def every_forty(run, event):
    if event.step % 40 == 0:
        run.set_task(event.step // 40)


@pytest.mark.parametrize(
    ("settings", "env"), [*((place, Levels) for place in PLACES), ({}, ByOptions)], ids=[*NAMES, "options"]
)
def test_a_task_reaches_every_environment_at_its_next_episode(settings, env):
    with tiny(env, **settings) as run:
        run.set_task(7)
        assert run.task == 7
        assert (tasks_seen(run, 24) == 7).all()
        run.set_task(8)
        seen = tasks_seen(run, 56)  # within an episode of 5 steps at first
    assert (seen[:4] == 7).all(), "an open episode keeps its task"
    assert (seen[4:] == 8).all()


def test_any_number_of_workers_sees_the_same_tasks():
    seen = []
    for settings in ({}, {"workers": 1}, {"workers": 3}, LOCKSTEP):
        with tiny(Levels, **settings) as run:
            seen.append(tasks_seen(run, 200, every_forty))
    for other in seen[1:]:
        np.testing.assert_array_equal(seen[0], other)


@pytest.mark.long_but("in process", "lockstep", "overlap")
@pytest.mark.parametrize("settings", PLACES, ids=NAMES)
def test_a_resumed_run_is_the_uninterrupted_one_in_the_middle_of_a_curriculum(settings, tmp_path):
    with tiny(Levels, **settings) as whole:
        first = tasks_seen(whole, 112, every_forty)  # two steps into an episode, after a task was set
        whole.save(tmp_path / "run.etude")
        expected = tasks_seen(whole, 112, every_forty)
        weights = whole.engine.weights()
    assert {0, 1, 2} >= set(np.unique(first))
    more = {"config": settings["config"]} if "config" in settings else {}
    with etude.load(tmp_path / "run.etude", Levels, **more) as again:
        assert again.task == 2
        np.testing.assert_array_equal(tasks_seen(again, 112, every_forty), expected)
        for name, value in again.engine.weights().items():
            np.testing.assert_array_equal(value, weights[name], err_msg=name)


def test_workers_may_be_added_in_the_middle_of_a_curriculum(tmp_path):
    with tiny(Levels) as run:
        tasks_seen(run, 112, every_forty)
        run.save(tmp_path / "run.etude")
        expected = tasks_seen(run, 112, every_forty)
    with etude.load(tmp_path / "run.etude", Levels, workers=2) as again:
        np.testing.assert_array_equal(tasks_seen(again, 112, every_forty), expected)


def test_asynchronous_gradients_carry_tasks(tmp_path):
    for settings in ({}, {"workers": 2}):
        run = etude.Run("a3c", Levels, environments=2, engine="torch", network=etude.Mlp((4,)), **settings)
        with run:
            run.set_task(3)
            ended = [end for event in run.steps(100) if isinstance(event, Collected) for end in event.episodes]
        assert {end.total for end in ended} == {15.0}


def test_whole_episodes_carry_tasks():
    for settings in ({}, {"workers": 2}):
        with etude.Run("reinforce", Levels, environments=2, engine="torch", **settings) as run:
            run.set_task(2)
            ended = [end for event in run.steps(40) if isinstance(event, Collected) for end in event.episodes]
        assert {end.total for end in ended} == {10.0}


def test_a_replaced_worker_gets_the_task(tmp_path):
    import os
    import signal

    once = tmp_path / "once"

    class Dying(Levels):
        def step(self, action):
            if self.task == 4 and self.time == 3 and not once.exists():
                once.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().step(action)

    for settings in ({"workers": 2}, LOCKSTEP):
        once.unlink(missing_ok=True)
        with tiny(Dying, **settings) as run:
            run.set_task(4)
            assert (tasks_seen(run, 80) == 4).all()
        assert once.exists()


def test_a_task_set_before_the_first_step_is_saved(tmp_path):
    with tiny(Levels) as run:
        run.set_task(5)
        run.save(tmp_path / "run.etude")
    with etude.load(tmp_path / "run.etude", Levels) as again:
        assert again.task == 5
        assert (tasks_seen(again, 24) == 5).all()


def test_checkpoints_without_a_task_hold_nothing_of_it_and_load(tmp_path):
    with tiny(Levels) as run:
        run.train(24)
        state = run.state()
        assert "task" not in state
        assert all("task" not in column["open"] for column in state["rollout"]["environments"].values())
        run.save(tmp_path / "run.etude")
    with etude.load(tmp_path / "run.etude", Levels) as again:
        assert again.task is None
        assert (tasks_seen(again, 24) == 0).all()


def test_a_changed_task_in_a_checkpoint_is_refused(tmp_path):
    with tiny(Levels) as run:
        run.set_task(1)
        run.train(24)
        run.save(tmp_path / "run.etude")
    state = checkpoint.read(tmp_path / "run.etude")
    state["task"] = np.zeros(3)
    with pytest.raises(CheckpointError, match="at task; expected a task: numbers, texts"):
        from_state(state, Levels)
    state["task"], opened = 1, state["rollout"]["environments"]["0"]["open"]
    opened["task"] = (1, 2)
    with pytest.raises(CheckpointError, match="environments/0/open/task; expected a task"):
        from_state(state, Levels)


def test_tasks_are_data_and_tuples_become_lists():
    with tiny(Levels) as run:
        for wrong in (None, np.zeros(2), float("nan"), {1: 2}, object(), [Levels]):
            with pytest.raises(ConfigError, match="task = .*; expected plain data, which is sent to workers and saved"):
                run.set_task(wrong)
        assert run.task is None
        run.set_task({"goal": (1, 2)})
        assert run.task == {"goal": [1, 2]}


def test_environments_that_take_no_tasks_are_refused_before_a_step():
    with tiny(Deaf) as run:
        with pytest.raises(ConfigError, match="Deaf takes no task: it has no method set_task"):
            run.set_task(1)
        run.train(24)
    with (
        etude.Run("dqn", "CartPole-v1", environments=2, execution=etude.Execution(vectorization="native")) as run,
        pytest.raises(ConfigError, match="CartPole-v1 is stepped as one vectorised simulator.*vectorization='loop'"),
    ):
        run.set_task(1)


def test_an_environment_that_fails_at_its_task_is_a_fault_that_names_it(tmp_path):
    with tiny(Levels, run_dir=tmp_path / "run") as run:
        run.train(24)
        run.set_task("broken")
        with pytest.raises(EnvironmentFault, match=r"raised ValueError: no such level .* Its task: 'broken'\."):
            run.train(80)
    with etude.load(tmp_path / "run", Levels) as again:
        again.set_task(1)
        again.train(80)


def test_wrappers_and_their_methods_are_found():
    class Doubled(gym.Wrapper):
        def set_task(self, task):
            self.env.set_task(2 * task)

    for wrappers, shown in ([gym.wrappers.RecordEpisodeStatistics], 3), ([Doubled], 6):
        with tiny(Levels, wrappers=wrappers) as run:
            run.set_task(3)
            assert (tasks_seen(run, 24) == shown).all()


def test_an_environment_may_keep_and_change_what_it_is_given():
    class Greedy(Levels):
        def set_task(self, task):
            self.task = task.pop()

    with tiny(Greedy) as run:
        run.set_task([1, 6])
        assert (tasks_seen(run, 80) == 6).all()
        assert run.task == [1, 6]


def test_callbacks_set_tasks():
    class Curriculum(etude.Callback):
        def on_steps_collected(self, run, event):
            if event.step == 40:
                run.set_task(9)

    with tiny(Levels) as run:
        run.train(80, Curriculum())
        assert run.task == 9
        assert run.evaluate(2).returns == (45.0, 45.0)

    def wrong(event):
        run.set_task(object())

    with tiny(Levels) as run, pytest.raises(ConfigError, match="expected plain data"):
        run.train(80, wrong)


def test_evaluations_play_the_present_task_or_the_one_that_they_are_given():
    with tiny(Levels) as run:
        assert run.evaluate(2).returns == (0.0, 0.0)
        assert run.evaluate(2, task=4).returns == (20.0, 20.0)
        run.set_task(2)
        assert run.evaluate(2).returns == (10.0, 10.0)
        assert run.evaluate(2, task=4).returns == (20.0, 20.0)
        assert run.evaluate(2, env=ByOptions).returns == (0.0, 0.0), "another environment is given no task"
        assert run.evaluate(2, env=ByOptions, task=3).returns == (15.0, 15.0)
        with pytest.raises(ConfigError, match="expected plain data"):
            run.evaluate(2, task=object())


def test_evaluations_may_play_another_environment_of_the_same_spaces(tmp_path):
    class Best(Levels):
        task = 8

    class Lower(Levels):
        observation_space = gym.spaces.Box(0, 7, (2,), np.float32)

    with tiny(Levels, run_dir=tmp_path / "run") as run:
        events = list(run.steps(80, evaluate_every=40, evaluate_episodes=2, evaluate_env=Best))
        assert [event.returns for event in events if isinstance(event, Evaluated)] == [(40.0, 40.0)] * 2
        before = run.step
        for wrong in (Labelled, Counted):
            with pytest.raises(SpaceError, match=f"{wrong.__name__} observes and takes .*; this run's agent, Box"):
                run.train(80, schedule=etude.Schedule(evaluate_every=40, evaluate_env=wrong))
        with pytest.raises(
            SpaceError, match=r"one part within \[0.\] and \[7.\]; this run's agent, .*\[0.\] and \[99.\]"
        ):
            run.evaluate(2, env=Lower)
        with pytest.raises(ConfigError, match="evaluate_env is played by evaluations: give evaluate_every, too"):
            run.train(80, schedule=etude.Schedule(evaluate_env=Best))
        with pytest.raises(SpaceError, match="Evaluate it on an environment of the same spaces"):
            run.evaluate(2, env=Labelled)
        assert run.step == before


def test_recorded_episodes_may_have_a_task():
    data = etude.record(Levels, 3, task=6)
    assert [episode.reward.sum() for episode in data.episodes] == [30.0] * 3
    with pytest.raises(ConfigError, match="expected plain data"):
        etude.record(Levels, 3, task=object())


def test_runs_on_recorded_data_take_no_task():
    data = etude.record(Levels, 3)
    with etude.Run("bc", Levels, data=data, engine="torch") as run:
        with pytest.raises(ConfigError, match="BC learns from recorded data and steps no environment"):
            run.set_task(1)
        assert run.evaluate(2, task=3).returns == (15.0, 15.0)
