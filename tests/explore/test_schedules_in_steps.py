"""Schedules over a fraction of a run, over steps, and through points."""

from __future__ import annotations

import pytest

import etude
from etude.algorithms import DQNConfig
from etude.base.errors import ConfigError
from etude.base.schedules import Linear, at
from etude.checkpoint.config_json import from_json, to_json
from etude.explore import EpsilonGreedy

POINTS = [(0, 1.0), (10_000, 0.1), (50_000, 0.02)]


def test_a_schedule_in_steps_does_not_depend_on_the_length_of_the_run():
    falling = Linear(1.0, 0.5, steps=100)
    assert [at(falling, step, total) for step in (0, 50, 100, 1_000) for total in (10, 10_000)] == [
        1.0, 1.0, 0.75, 0.75, 0.5, 0.5, 0.5, 0.5,
    ]  # fmt: skip


def test_a_schedule_through_points_is_linear_between_them_and_constant_after_the_last():
    through = Linear.through(POINTS)
    assert at(through, 0, 1) == 1.0
    assert at(through, 5_000, 1) == pytest.approx(0.55)
    assert at(through, 10_000, 1) == 0.1
    assert at(through, 30_000, 1) == pytest.approx(0.06)
    assert [at(through, step, 1) for step in (50_000, 10**9)] == [0.02, 0.02]
    assert Linear.through(POINTS[:2]) == Linear(1.0, 0.1, steps=10_000)


@pytest.mark.parametrize("schedule", [
    0.25, Linear(1e-2, 0.0), Linear(1.0, 0.2, 0.3), Linear(0.1, 0.9, steps=37),
    Linear.through([(0, 1.0), (20, 0.0), (55, 2.0)]),
])  # fmt: skip
@pytest.mark.parametrize(("before", "after"), [(0, 100), (10, 30), (29, 31), (50, 100), (99, 100), (90, 130)])
def test_a_schedule_over_several_steps_is_its_mean_over_them(schedule, before, after):
    slices = 10_000
    each = [before + (after - before) * (i + 0.5) / slices for i in range(slices)]
    mean = sum(at(schedule, step, 100) for step in each) / slices
    assert at(schedule, after, 100, over=after - before) == pytest.approx(mean, rel=1e-6, abs=1e-9)


def test_the_mean_of_a_schedule_that_ends_before_the_first_step_is_that_of_its_values():
    schedule = Linear(1.0, 0.0, 0.1)  # of 4 steps: 1 at step 0, 0 from step 1 on
    assert [schedule.at(step, 4) for step in range(4)] == [1.0, 0.0, 0.0, 0.0]
    assert at(schedule, 4, 4, over=4) == pytest.approx(1 / 8)


def test_a_fraction_of_the_run_is_what_it_was():
    assert [at(Linear(1.0, 0.0, 0.5), step, 100) for step in (0, 10, 50, 80)] == [1.0, 0.8, 0.0, 0.0]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Linear(1.0, 0.0, 0.5, steps=10), "a fraction of the run or a number of steps; give one"),
        (lambda: Linear(1.0, 0.0, steps=0), "expected whole numbers above 0"),
        (lambda: Linear(1.0, 0.0, steps=10.0), "expected whole numbers above 0"),
        (lambda: Linear(1.0, 0.0, steps=10, then=((10, 1.0),)), "each above the one before"),
        (lambda: Linear(1.0, 0.0, steps=10, then=((20, float("nan")),)), "expected finite numbers"),
        (lambda: Linear(1.0, 0.0, then=((20, 1.0),)), "give steps, or Linear.through"),
        (lambda: Linear.through([(5, 1.0), (10, 0.0)]), "two or more points .step, value., the first at step 0"),
        (lambda: Linear.through([(0, 1.0)]), "two or more points"),
    ],
)
def test_schedules_that_cannot_be_are_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


def test_every_point_of_a_schedule_is_checked():
    with pytest.raises(ConfigError, match="epsilon = .*; expected a number from 0 to 1"):
        DQNConfig(epsilon=Linear.through([(0, 1.0), (10, 0.5), (20, -0.1)]))
    with pytest.raises(ConfigError, match="epsilon = .*; expected a number from 0 to 1"):
        EpsilonGreedy(Linear.through([(0, 1.0), (10, 0.5), (20, 1.1)]))


@pytest.mark.parametrize("schedule", [Linear.through(POINTS), Linear(1.0, 0.1, steps=50), Linear(1.0, 0.1, 0.5)])
def test_schedules_are_stored_with_their_config(schedule):
    config = DQNConfig(epsilon=schedule, learning_rate=Linear(1e-3, 0.0, steps=9))
    assert from_json(DQNConfig, to_json(config)) == config


def test_configs_from_before_schedules_had_steps_load():
    data = to_json(DQNConfig(epsilon=Linear(1.0, 0.1, 0.5)))
    del data["epsilon"]["steps"], data["epsilon"]["then"]
    assert from_json(DQNConfig, data).epsilon == Linear(1.0, 0.1, 0.5)


def test_a_run_follows_a_schedule_in_steps_and_goes_on_with_it(tmp_path):
    rate = etude.Linear.through([(0, 1e-3), (32, 1e-4), (64, 5e-5)])
    small = {"learning_starts": 8, "train_every": 8, "gradient_steps": 1, "batch_size": 8, "engine": "torch"}
    schedules = {"learning_rate": rate, "epsilon": etude.Linear(1.0, 0.5, steps=40)}
    with etude.Run("dqn", "CartPole-v1", **small, network=etude.Mlp((4,)), **schedules, environments=1) as run:
        run.train(32)
        assert run.learner.hyper()["learning_rate"] == 1e-4
        run.save(tmp_path / "run.etude")
    with etude.load(tmp_path / "run.etude") as again:
        assert again.agent.config.learning_rate == rate
        again.train(1_000)
        assert again.learner.hyper()["learning_rate"] == 5e-5


@pytest.mark.parametrize("fraction", [-0.1, float("nan"), "all"])
def test_a_part_of_a_run_is_a_number_of_at_least_0(fraction):
    with pytest.raises(ConfigError, match="fraction = .*; expected a number of at least 0"):
        Linear(1.0, 0.0, fraction)
