"""Runs that learn from gradients of single environments' rollouts: budgets, what they tell and what they refuse."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from run_makers import run_given
from run_worlds import Labelled

from etude import Linear, Mlp
from etude.algorithms import A3CConfig
from etude.base.errors import ConfigError
from etude.base.events import Collected, Learned
from etude.networks import Recurrent

TINY = A3CConfig(network=Mlp((4,)), rollout_length=4, learning_rate=Linear(1e-2, 0.0))


def with_statistics():
    import torch

    return torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))


def run_of(env=Labelled, config=TINY, **more):
    return run_given("a3c", env, **{"config": config, "environments": 3, "engine": "torch", "seed": 5, **more})


def of_kind(events, kind):
    return [event for event in events if isinstance(event, kind)]


def test_every_rollout_is_one_update_of_older_weights_and_budgets_are_exact():
    with run_of() as run:
        events = list(run.steps(30))
        learned = of_kind(events, Learned)
        assert run.step == 30
        assert [(event.step, event.gradient_steps) for event in learned] == [(4 * i, i) for i in range(1, 8)]
        assert [event.metrics["gradient_age"] for event in learned] == [0, 1, 2, 2, 2, 2, 2]
        again = list(run.steps(6))  # the other half of the rollout that the budget ended in, and one more
        assert [event.step for event in of_kind(again, Learned)] == [32, 36]
        assert run.step == 36
    ended = [end for event in of_kind([*events, *again], Collected) for end in event.episodes]
    assert {end.environment for end in ended} == {0, 1, 2}
    numbers = [[end.episode for end in ended if end.environment == i] for i in range(3)]
    assert numbers == [list(range(len(each))) for each in numbers]


def test_a_budget_in_two_parts_is_the_same_run_as_in_one():
    def weights(*parts):
        with run_of(config=A3CConfig(network=Mlp((4,)), rollout_length=4)) as run:
            for part in parts:
                run.train(part)
            return run.engine.weights()

    whole, halves = weights(40), weights(22, 18)
    assert all(np.array_equal(value, halves[name]) for name, value in whole.items())


def test_schedules_reach_the_learner():
    with run_of() as run:
        before = run.engine.weights()
        run.train(4)
        moved = max(np.abs(value - before[name]).max() for name, value in run.engine.weights().items())
        assert moved == pytest.approx(1e-2 * (1 - 2 / 4), rel=1e-3), "the mean over the rollout"
    with run_of() as run:
        before = run.engine.weights()
        for event in run.steps(400):
            if isinstance(event, Learned):
                break
        moved = max(np.abs(value - before[name]).max() for name, value in run.engine.weights().items())
        assert moved == pytest.approx(1e-2 * (1 - 2 / 400), rel=1e-3)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"normalize_observation": True}, "the learner gets gradients alone"),
        ({"normalize_reward": True}, "the learner gets gradients alone"),
        ({"epochs": 2}, "a rollout gives one gradient"),
        ({"minibatch_size": 2}, "a rollout gives one gradient"),
    ],
)
def test_what_needs_the_steps_is_refused(config, words):
    with pytest.raises(ConfigError, match=words):
        A3CConfig(**config)


def test_what_cannot_be_differentiated_by_single_environments_is_refused():
    with pytest.raises(ConfigError, match="learns from gradients of one agent"):
        run_of("mpe2:simple_spread_v3")
    with pytest.raises(ConfigError, match="takes no data"):
        run_of(data="episodes.h5")
    with pytest.raises(ConfigError, match="whose recurrent state this algorithm does not keep"):
        run_of(config=A3CConfig(network=Recurrent(Mlp((4,)), 4)))
    own = A3CConfig(network=with_statistics)
    with run_of(partial(Labelled, True), own) as run, pytest.raises(ConfigError, match="no gradient moves model"):
        run.train(4)
    for setting, words in (
        ({"overlap": True, "workers": 2}, "Leave overlap off"),
        ({"vectorization": "native"}, "which a native simulator cannot"),
    ):
        with run_of("CartPole-v1", **setting) as run, pytest.raises(ConfigError, match=words):
            run.train(4)
