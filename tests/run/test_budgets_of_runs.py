"""How many steps a run takes, and when it evaluates, saves and stops."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from invariants import check_ring
from run_makers import DQN_TINY, PPO_TINY, assert_same_weights, tiny
from run_worlds import Counted

from etude import Linear
from etude.base.errors import ConfigError
from etude.base.events import Collected, Evaluated, Finished, Learned, Saved, Started
from etude.checkpoint.run_directory import RunDirectory
from etude.training.schedule import Schedule


def kinds(events, kind):
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.parametrize("algorithm", ["dqn", "ppo"])
@pytest.mark.parametrize("steps", [1, 7, 501])
def test_a_run_takes_exactly_the_steps_that_it_was_asked_for(algorithm, steps):
    with tiny(algorithm=algorithm, environments=8) as run:
        events = list(run.steps(steps))
        assert run.step == events[-1].step == steps
        more = run.train(300)
        assert run.step == more.step == steps + 300
        check_ring(run.learner.replay.ring)


def test_the_count_of_steps_is_that_of_the_episodes_and_of_the_environments():
    with tiny(environments=8) as run:
        run.train(4_001, callbacks=[(events := []).append])
    ends = [end for event in kinds(events, Collected) for end in event.episodes]
    assert sum(end.length for end in ends) == 4_000  # every episode takes 10; one step is of an open one
    assert run.learner.progress.episodes == len(ends) == 400


def test_a_second_call_goes_on_where_the_first_one_ended():
    with tiny() as run:
        first, second = list(run.steps(100)), list(run.steps(60))
    assert [event.description["end"] for event in kinds([*first, *second], Started)] == [100, 160]
    assert [event.description["total"] for event in kinds([*first, *second], Started)] == [100, 160]
    assert second[0].step == 100
    assert second[-1].step == 160
    assert second[-1].seconds > first[-1].seconds > 0
    ends = [(e.environment, e.episode) for event in kinds([*first, *second], Collected) for e in event.episodes]
    assert sorted(ends) == [(environment, episode) for environment in range(4) for episode in range(4)]


@pytest.mark.parametrize(("algorithm", "config"), [("dqn", DQN_TINY), ("ppo", PPO_TINY)])
def test_a_run_in_pieces_whose_total_is_known_learns_as_in_one_piece(algorithm, config):
    config = dataclasses.replace(config, learning_rate=Linear(1e-2, 0.0))

    def trained(pieces, **given):
        with tiny(algorithm=algorithm, config=config) as run:
            for steps in pieces:
                run.train(steps, **given)
            return run.engine.weights(), run.learner.progress.total

    whole, total = trained([192])
    pieces, of_pieces = trained([64, 64, 64], total=192)
    stretched, _ = trained([64, 64, 64])
    assert total == of_pieces == 192
    assert_same_weights(pieces, whole)
    with pytest.raises(AssertionError):
        assert_same_weights(stretched, whole)


def test_a_total_holds_what_was_asked_for():
    with tiny() as run:
        run.train(40, schedule=Schedule(total=20))
        assert run.learner.progress.total == 40
        with pytest.raises(ConfigError, match="total = 0; expected a whole number of at least 1, or None"):
            run.train(40, schedule=Schedule(total=0))


def test_a_shorter_second_call_leaves_the_schedules_stretched_over_the_whole_run():
    with tiny() as run:
        run.train(100)
        run.learner.progress.total = 1_000  # as in a run that was resumed early
        started = next(run.steps(60))
    assert (started.description["end"], started.description["total"]) == (160, 1_000)


def test_exploration_follows_its_schedule_over_a_run_that_became_longer():
    config = dataclasses.replace(DQN_TINY, epsilon=Linear(1.0, 0.0, 1.0))
    with tiny(config=config) as run:
        run.train(100)
        assert run.collection._explorer.total == 100
        run.train(100)
        assert run.collection._explorer.total == 200
        ring = run.learner.replay.ring
        assert len(ring) == 200
        assert np.count_nonzero(ring.kind == 2) == 20  # going on cut no episode: all ended after 10 steps, by the clock


@pytest.mark.parametrize("environments", [1, 4, 8, 32])
def test_evaluations_and_checkpoints_come_every_so_many_steps_whatever_the_number_of_environments(
    environments, tmp_path
):
    with (
        RunDirectory.create(tmp_path / "run", "run") as directory,
        tiny(environments=environments, run_dir=directory) as run,
    ):
        events = list(run.steps(640, evaluate_every=160, evaluate_episodes=1, save_every=320))
    assert [event.step for event in kinds(events, Evaluated)] == [160, 320, 480, 640]
    assert [event.step for event in kinds(events, Saved) if event.kind == "last"] == [320, 640]


def test_learning_comes_after_every_so_many_steps_whatever_the_number_of_environments():
    gradient_steps = {}
    for environments in (1, 2, 3, 8, 16):
        with tiny(environments=environments) as run:
            events = list(run.steps(480))
        gradient_steps[environments] = run.learner.progress.gradient_steps
        assert all(event.step >= 16 for event in kinds(events, Learned))
    # The phases of the warm-up are not made up for; where one step takes 16, its first phase holds two.
    assert gradient_steps == {1: 59, 2: 59, 3: 59, 8: 59, 16: 60}


def test_after_a_budget_that_ends_between_two_learning_phases_the_next_one_comes_where_it_was_due():
    with tiny(environments=1) as run:
        run.train(21)
        assert [event.step for event in run.steps(20) if isinstance(event, Learned)] == [24, 32, 40]


def test_ppo_learns_after_whole_rollouts_only():
    with tiny(algorithm="ppo") as run:
        steps = [event.step for n in (100, 28, 70) for event in run.steps(n) if isinstance(event, Learned)]
    assert steps == [64, 128, 192]


def test_steps_can_be_left_at_any_event_and_taken_up_again():
    with tiny(algorithm="ppo") as whole:
        expected = [event.losses for event in whole.steps(640) if isinstance(event, Learned)]
    with tiny(algorithm="ppo") as run:
        run.learner.progress.total = 640
        found = []
        for skipped in (1, 2, 3, 1, 2):
            for event in run.steps(640 - run.step):
                if isinstance(event, Learned):
                    found.append(event.losses)
                skipped -= isinstance(event, Collected | Learned)
                if not skipped:
                    break
        left = run.step
        found += [event.losses for event in run.steps(640 - run.step) if isinstance(event, Learned)]
        assert run.step == 640
    assert 0 < left < 640
    assert found == [losses for losses in expected if losses in found]
    assert len(found) >= len(expected) - 5  # at most one was learned and not told each time
    weights = whole.engine.weights()
    assert all(np.array_equal(value, weights[name]) for name, value in run.engine.weights().items())


def test_a_run_stops_at_its_target_and_says_so():
    with tiny() as run:
        finished = run.train(1_000, evaluate_every=100, evaluate_episodes=2, target=10.0)
        assert (finished.reason, finished.step, run.step) == ("target", 104, 104)
        assert run.train(100, evaluate_every=50, target=10.5).reason == "steps"


def test_a_run_stops_after_the_step_at_hand_when_it_is_asked_to():
    with tiny() as run:
        finished = run.train(1_000, callbacks=[lambda event: run.stop() if event.step >= 200 else None])
        assert (finished.reason, finished.step) == ("interrupted", 200)
        assert run.train(48).reason == "steps"
        assert run.step == 248
        last = [lambda event: run.stop() if event.step == 300 else None]
        assert run.train(52, callbacks=last).reason == "steps", "it had taken all of them"


def test_what_cannot_be_is_refused():
    with tiny() as run:
        with pytest.raises(ConfigError, match="steps = 0; expected a whole number of at least 1"):
            run.train(0)
        with pytest.raises(ConfigError, match="evaluate_every = 0"):
            run.train(10, evaluate_every=0)
        with pytest.raises(ConfigError, match="give evaluate_every"):
            run.train(10, target=1.0)
        with pytest.raises(ConfigError, match="episodes = 0"):
            run.evaluate(episodes=0)


@pytest.mark.parametrize("algorithm", ["dqn", "ppo"])
def test_everything_that_a_run_opens_is_closed(algorithm):
    Counted.counts.clear()
    with tiny(algorithm=algorithm) as run:
        assert Counted.counts["open"] == 0
        run.train(70, evaluate_every=32, evaluate_episodes=3)
        run.evaluate(episodes=2)
        assert Counted.counts["open"] == 4
    run.close()
    assert Counted.counts["open"] == 0


def test_a_run_that_was_closed_goes_on_as_if_it_had_not_been():
    with tiny() as whole, tiny() as run:
        whole.learner.progress.total = run.learner.progress.total = 1_000  # else a schedule is stretched
        whole.train(70)
        run.train(70)
        run.close()
        expected, events = list(whole.steps(100)), list(run.steps(100))
    assert [e.episodes for e in kinds(events, Collected)] == [e.episodes for e in kinds(expected, Collected)]
    assert [e.losses for e in kinds(events, Learned)] == [e.losses for e in kinds(expected, Learned)]
    assert isinstance(events[-1], Finished)
