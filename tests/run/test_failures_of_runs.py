"""What a run does when something breaks, and what is left of it."""

from __future__ import annotations

import errno
from functools import partial

import numpy as np
import pytest
from invariants import check_ring
from run_makers import DQN_TINY, tiny
from run_worlds import Counted, Drawing, Failing, HangsAtItsEnd, Large

import etude
from etude import checkpoint
from etude.base.errors import CheckpointError, ConfigError, EnvironmentFault
from etude.base.events import Collected, Saved, Warned
from etude.checkpoint.config_json import to_json
from etude.checkpoint.run_directory import RunDirectory
from etude.run import from_state


def own_network():
    import torch

    return torch.nn.Linear(2, 2)


def wide_network():
    import torch

    return torch.nn.Linear(300_000, 2)


LOCKSTEP = {
    "workers": 2,
    "config": etude.algorithms.DQNConfig(network=own_network, learning_starts=16, train_every=8, batch_size=8),
}


def warnings(events):
    return [event.message for event in events if isinstance(event, Warned)]


@pytest.fixture
def directory(tmp_path):
    with RunDirectory.create(tmp_path / "run", "run") as made:
        yield made


@pytest.mark.parametrize("settings", [{"workers": 2}, LOCKSTEP, {"workers": 2, "overlap": True}],
                         ids=["acting", "lockstep", "ahead"])  # fmt: skip
def test_a_run_goes_on_when_a_worker_is_killed_and_counts_exactly(settings, tmp_path):
    env = partial(Failing, "kill", 30, tmp_path / "once")
    with tiny(env, **settings) as run:
        events = list(run.steps(400))
        assert run.step == 400 == len(run.learner.replay)
        check_ring(run.learner.replay.ring)
    assert (tmp_path / "once").exists()
    assert any("replaced, its open episodes dropped" in message for message in warnings(events))
    told = [event.step for event in events if isinstance(event, Collected)]
    assert told == sorted(set(told))
    check_transitions(run)


def check_transitions(run):
    """No transition of `Counted` joins two episodes: time goes on by a tenth."""
    ring = run.learner.replay.ring
    rows = ring.locate(np.arange(len(ring)))
    np.testing.assert_allclose(ring.following(rows) - ring.observation(rows), 0.1, atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"workers": 2}, LOCKSTEP], ids=["in process", "acting", "lockstep"])
def test_the_environments_own_error_is_shown_and_nothing_of_the_run_is_lost(settings, directory, tmp_path):
    env = partial(Failing, "raise", 30, tmp_path / "once")
    with tiny(env, **settings, run_dir=directory) as run:
        with pytest.raises(EnvironmentFault, match="the gripper fell off") as caught:
            run.train(400, callbacks=[(events := []).append], save_every=40)
        chain = "".join(str(error) for error in (caught.value, caught.value.__cause__))
        assert "ValueError" in chain or isinstance(caught.value.__cause__, ValueError)
        assert run.step == 112, "all that was collected before counts: 28 steps of 4 environments"
        assert [event.step for event in events if isinstance(event, Saved)] == [40, 80, 112]
        run.train(288)  # the run itself goes on
        assert run.step == 400
        check_transitions(run)
    loaded = directory.load()
    state = checkpoint.read(events[-1].path)
    with from_state(state, env, run.agent.config if settings is LOCKSTEP else None) as again:
        notes = warnings(list(again.steps(88)))
        assert again.step == 200
        check_transitions(again)
        check_ring(again.learner.replay.ring)
    assert any("could not be replayed" in note for note in notes)
    assert loaded.path.name == "step_000000400.etude"


@pytest.mark.parametrize("settings", [{}, {"workers": 2}, LOCKSTEP], ids=["in process", "acting", "lockstep"])
def test_an_environment_that_exits_ends_in_the_same_words_everywhere_and_the_run_is_saved(
    settings, directory, tmp_path
):
    with tiny(partial(Failing, "exit", 30, tmp_path / "once"), **settings, run_dir=directory) as run:
        words = (
            r"environment \d, episode 2, step 10: the environment raised SystemExit: that was all \(.*run_worlds.py:\d+"
        )
        with pytest.raises(EnvironmentFault, match=words):
            run.train(400)
    assert list(directory.saved()) == [112]


@pytest.mark.parametrize("settings", [{}, {"workers": 2}, LOCKSTEP], ids=["in process", "acting", "lockstep"])
def test_an_environment_that_draws_from_a_shared_generator_is_warned_of_once(settings):
    with tiny(Drawing, **settings) as run:
        told = warnings(list(run.steps(160)))
    assert len(told) == 1
    assert "Drawing: It draws from or seeds a global generator (random)" in told[0]
    assert "self.np_random" in told[0]


def test_an_environment_whose_close_hangs_costs_a_warning_before_the_run_and_after_it(monkeypatch):
    monkeypatch.setattr("etude.envs.faults.SECONDS", 0.1)
    words = r"HangsAtItsEnd: close\(\) did not return"
    with pytest.warns(RuntimeWarning, match=words):
        run = tiny(HangsAtItsEnd)
    assert run.train(40).step == 40
    with pytest.warns(RuntimeWarning, match=words):
        run.close()


def test_episodes_after_a_failure_are_new_ones(tmp_path):
    env = partial(Failing, "raise", 35, tmp_path / "once")
    with tiny(env) as run:
        events = []
        with pytest.raises(EnvironmentFault):
            run.train(400, callbacks=[events.append])
        run.train(200, callbacks=[events.append])
    ends = [(end.environment, end.episode) for e in events if isinstance(e, Collected) for end in e.episodes]
    assert len(set(ends)) == len(ends)
    assert (0, 3) not in ends, "the fourth episode was open"
    assert (0, 4) in ends


def test_a_checkpoint_of_the_same_step_is_not_replaced_by_one_without_the_open_episodes(directory, tmp_path):
    with tiny(partial(Failing, "raise", 31, tmp_path / "once"), run_dir=directory) as run:
        with pytest.raises(EnvironmentFault):
            run.train(400, callbacks=[(events := []).append], save_every=120)
        assert run.step == 120
    assert [event.step for event in events if isinstance(event, Saved)] == [120]
    with from_state(directory.load().state, run.environment) as again:
        assert warnings(list(again.steps(8))) == []


def test_a_second_interrupt_saves_what_is_whole(directory, tmp_path):
    env = partial(Failing, "interrupt", 30, tmp_path / "once")
    with tiny(env, run_dir=directory) as run, pytest.raises(KeyboardInterrupt):
        run.train(400)
    assert list(directory.saved()) == [112]


def test_an_interrupt_in_the_middle_of_learning_saves_nothing_that_is_torn(directory, monkeypatch):
    with tiny(run_dir=directory) as run:
        run.train(40)

        def interrupted(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(run.engine, "learn", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.train(40)
    assert list(directory.saved()) == [40]


@pytest.mark.parametrize(("what", "workers"), [("observation", 0), ("reward", 0), ("reward", 2)])
def test_what_is_not_a_number_is_named_with_environment_episode_and_step(what, workers, tmp_path):
    with tiny(partial(Failing, what, 25, tmp_path / "once"), workers=workers) as run:
        with pytest.raises(EnvironmentFault, match=rf"(?s)environment \d.*episode 2.*step 5.*{what}.*nan"):
            run.train(400)
        assert all(np.isfinite(value).all() for value in run.engine.weights().values())
        run.train(100)


def test_a_full_disk_costs_a_checkpoint_and_not_the_run(directory, monkeypatch):
    def full(*_, **__):
        raise CheckpointError("No space left on device.")

    with tiny(run_dir=directory) as run:
        monkeypatch.setattr(checkpoint, "write", full)
        events = list(run.steps(80, save_every=40))
        assert run.step == 80
        assert len(warnings(events)) == 2
        assert "goes on without this checkpoint" in warnings(events)[0]
        monkeypatch.undo()
        assert isinstance(list(run.steps(40))[-2], Saved)


def test_a_reporter_that_cannot_write_is_warned_of_once_and_the_run_goes_on():
    calls, told = [], []

    def to_disk(event):
        calls.append(event)
        raise OSError(errno.ENOSPC, "No space left on device")

    with tiny() as run:
        assert run.train(80, callbacks=[to_disk, told.append]).step == 80
    assert len(calls) == len(told) > 10
    assert [event.message for event in told if isinstance(event, Warned)] == [
        "to_disk cannot write: [Errno 28] No space left on device. The run goes on without its records."
    ]


def test_whatever_else_a_reporter_raises_is_raised_with_its_name_and_the_run_can_go_on():
    def broken(event):
        if event.step == 40:
            raise ZeroDivisionError

    with tiny() as run:
        with pytest.raises(ZeroDivisionError, match="Callback broken raised ZeroDivisionError.* at step 40"):
            run.train(80, callbacks=[broken])
        assert run.step == 40
        assert run.train(40).step == 80


def test_an_environment_that_cannot_be_made_leaves_no_checkpoint(directory, monkeypatch):
    with tiny(run_dir=directory) as run:

        def broken(explorer):
            raise RuntimeError("no licence")

        monkeypatch.setattr(run.collection, "_make_rollout", broken)
        with pytest.raises(RuntimeError, match="no licence"):
            run.train(40)
    assert not directory.saved()


def test_a_run_without_its_replay_acts_and_refuses_to_train_and_to_save(directory, tmp_path):
    with tiny(run_dir=directory) as run:
        run.train(80)
        expected = run.evaluate(episodes=3)
    with from_state(directory.load(skip=("replay",)).state, Counted) as again:
        assert again.evaluate(episodes=3) == expected
        with pytest.raises(CheckpointError, match="without its replay.*cannot train on"):
            again.train(10)
        with pytest.raises(CheckpointError, match="cannot save"):
            again.save(tmp_path / "no.etude")


def test_what_a_checkpoint_cannot_hold_is_asked_for(tmp_path):
    with tiny(config=LOCKSTEP["config"]) as run:
        run.train(40)
        run.save(tmp_path / "own.etude")
    with pytest.raises(ConfigError, match="give it again, as env="):
        etude.load(tmp_path / "own.etude")
    with pytest.raises(ConfigError, match="network was made by own_network.*give config="):
        etude.load(tmp_path / "own.etude", Counted)
    again = etude.load(tmp_path / "own.etude", Counted, config=LOCKSTEP["config"])
    assert again.train(40).step == 80
    again = etude.load(tmp_path / "own.etude", Counted, agent=etude.algorithms.DQN(LOCKSTEP["config"]))
    assert again.train(40).step == 80


class Own(etude.algorithms.DQN):
    """An agent of one's own."""


def test_an_agent_of_ones_own_is_asked_for_and_goes_on(tmp_path):
    path = tmp_path / "own.etude"
    with etude.Run(Own(DQN_TINY), Counted, environments=4, engine="torch") as run:
        run.train(40)
        run.save(path)
        assert run.description()["config"] == to_json(DQN_TINY)
        expected = list(run.steps(40))[-1].totals
    with pytest.raises(ConfigError, match="own: give it again, as agent="):
        etude.load(path, Counted)
    with etude.load(path, Counted, agent=Own(DQN_TINY)) as again:
        assert list(again.steps(40))[-1].totals == expected
    with pytest.raises(CheckpointError, match="is of own, and the run is of dqn"):
        etude.load(path, Counted, agent=etude.algorithms.DQN(DQN_TINY))


@pytest.mark.parametrize("network", [etude.Mlp((1,)), wide_network], ids=["acting", "lockstep"])
def test_workers_hand_over_observations_of_any_size(network):
    def collected(workers):
        config = etude.algorithms.DQNConfig(network=network, learning_starts=100, buffer_size=160, batch_size=8)
        with etude.Run("dqn", Large, config=config, engine="torch", environments=8, workers=workers, seed=1) as run:
            run.train(16)
            return [leaf.copy() for leaf in (run.learner.replay.ring.reward, run.learner.replay.ring.action)]

    for alone, among_workers in zip(collected(0), collected(2), strict=True):
        assert np.array_equal(alone, among_workers)
