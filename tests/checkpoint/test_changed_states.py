"""A checkpoint with one changed value is refused by its place, or is of a run that goes on: never anything else."""

from __future__ import annotations

import copy
import dataclasses
import functools

import numpy as np
import pytest

import etude
from benchmarks.reliability.changes import change
from benchmarks.reliability.runs import RUNS
from etude import Mlp, Run, checkpoint
from etude.algorithms import DQNConfig
from etude.base.errors import CheckpointError
from etude.run import from_state

STEPS = 48


@functools.cache
def state_of(name: str) -> dict:
    with RUNS[name]() as run:
        run.train(STEPS)
        return copy.deepcopy(run.state())


@pytest.mark.long_but("0", "3", "6", "9")
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", RUNS)
def test_a_state_with_one_changed_value_is_refused_or_goes_on(name, seed):
    changed, what = change(state_of(name), np.random.default_rng([seed, list(RUNS).index(name)]))
    try:
        run = from_state(changed)
    except CheckpointError:
        return
    with run:
        if "replay" in changed:
            run.train(8)
        assert all(np.isfinite(value).all() for value in run.engine.weights().values()), what


def at(state: dict, place: str, value: object) -> dict:
    """A copy of a state with this value at a place."""
    changed = copy.deepcopy(state)
    *path, last = place.split("/")
    holder = functools.reduce(lambda part, key: part[int(key) if isinstance(part, list) else key], path, changed)
    holder[last] = value(holder[last]) if callable(value) else value
    return changed


def with_number(number):
    def put(array):
        array = array.copy()
        array.reshape(-1)[-1] = number
        return array

    return put


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("dqn", "engine/first/q.dense0.weight", lambda x: x[:-1]),
        ("dqn", "engine/second/q.dense0.weight", with_number(-1)),
        ("dqn", "engine/values/q_target.dense0.bias", with_number(np.nan)),
        ("dqn", "engine/step", 2**70),
        ("dqn", "engine/noise/state", "many"),
        ("dqn", "replay/ring/head", with_number(10**6)),
        ("dqn", "replay/ring/filled", with_number(-1)),
        ("dqn", "replay/ring/kind", with_number(1)),
        ("dqn", "replay/ring/action", with_number(7)),
        ("dqn", "replay/ring/observations/finals/used", 2**70),
        ("dqn", "replay/ring/observations/finals/free", np.zeros(3, np.int64)),
        ("dqn", "replay/selector/error", lambda x: np.append(x, x[:1])),
        ("dqn", "replay/selector/alpha", -1.0),
        ("dqn", "progress/step", -1),
        ("dqn", "progress/phases", 10**6),
        ("dqn", "rollout/environments/1/open/actions", with_number(2)),
        ("dqn", "rollout/environments/1/open/observation", []),
        ("dqn", "description/setup/environments", 10**9),
        ("dqn", "description/config/optimizer/beta1", 1.0),
        ("ppo", "moments/all/variance", with_number(-1)),
        ("ppo", "scale/returns", np.zeros(3)),
        ("sac", "layer_noise/noise", []),
        ("recurrent_ppo", "rollout/environments/0/recurrent_state", with_number(np.inf)),
        ("maddpg", "rollout/environments/0/total_by_agent", with_number(np.inf)),
        ("maddpg", "rollout/environments/0/total_by_agent", np.zeros(2)),
        ("ppo", "rollout/environments/0/total_by_agent", np.zeros(0)),
        ("a3c", "rollout/worker_gradients/0/gradients/model.critic.dense0.weight", with_number(np.nan)),
        ("bc", "description/data/transitions", 10**15),
    ],
)
def test_what_is_wrong_is_named_by_its_place(name, place, value):
    with pytest.raises(CheckpointError, match=place.split("/")[0]):
        from_state(at(state_of(name), place, value))


def test_nothing_of_a_state_is_taken_where_a_part_of_it_is_wrong():
    with RUNS["dqn"]() as run:
        run.train(24)
        before = copy.deepcopy(run.state())
        with pytest.raises(CheckpointError, match="rollout/environments/1/total"):
            run.restore(at(state_of("dqn"), "rollout/environments/1/total", "much"))
        after = run.state()
    for part in ("values", "first", "second"):
        for name, array in before["engine"][part].items():
            np.testing.assert_array_equal(array, after["engine"][part][name])
    assert len(before["replay"]["ring"]["reward"]) == len(after["replay"]["ring"]["reward"])


def test_another_network_is_told_with_both_shapes(tmp_path):
    checkpoint.write(tmp_path / "run.etude", state_of("dqn"))
    other = DQNConfig(network=Mlp((6,)), buffer_size=200, priority_exponent=0.6)
    with pytest.raises(CheckpointError, match=r"engine/values/q.dense0.weight is \(4, 4\), here \(4, 6\)"):
        from_state(checkpoint.read(tmp_path / "run.etude"), config=other)


def test_a_state_of_a_run_with_other_workers_is_taken():
    with Run("dqn", "CartPole-v1", engine="torch", environments=2, workers=2) as run:
        run.train(48)
        state = copy.deepcopy(run.state())
    with from_state(state, workers=0) as again:
        again.train(8)
        assert again.step == 56


def test_a_run_that_is_to_learn_less_often_goes_on():
    config = RUNS["dqn"]().agent.config
    with from_state(state_of("dqn"), config=dataclasses.replace(config, train_every=16)) as run:
        before = run.learner.progress.gradient_steps
        run.train(16)
        assert run.learner.progress.gradient_steps == before + 4, "a phase at step 64"


@functools.cache
def trained_seldom(environments: int = 1, mixed: bool = False, steps: int = 2_000) -> dict:
    """A run that learned every 50 steps. mixed: half of each batch is recorded data."""
    data = [(etude.record("CartPole-v1", 4, seed=5), 0.5), ("sampler", 0.5)] if mixed else None
    with Run("dqn", "CartPole-v1", config=SELDOM, engine="torch", environments=environments, data=data) as run:
        run.train(steps)
        return copy.deepcopy(run.state())


SELDOM = DQNConfig(
    network=Mlp((4,)), learning_starts=30, train_every=50, gradient_steps=1, batch_size=8, buffer_size=500
)


@pytest.mark.long_but("1-1-True", "4-1-False", "4-3-True", "1-40-False")
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(("environments", "train_every"), [(1, 1), (4, 1), (4, 3), (1, 40), (1, 7)])
def test_a_run_that_is_to_learn_more_often_takes_no_gradient_steps_for_the_steps_before(
    environments, train_every, mixed
):
    state = trained_seldom(environments, mixed)
    assert state["progress"]["gradient_steps"] == 2_000 // 50
    with from_state(state, config=dataclasses.replace(SELDOM, train_every=train_every)) as run:
        for taken, piece in ((12, 12), (20, 8), (84, 64)):
            run.train(piece)
            due = sum(step % train_every == 0 for step in range(2_001, 2_001 + taken))
            assert run.learner.progress.gradient_steps == 40 + due


def test_a_run_that_is_to_begin_learning_later_or_earlier_owes_no_gradient_steps():
    state, step = trained_seldom(steps=1_000), 1_000
    for changed, expected in (({"learning_starts": 1_040}, 61), ({"learning_starts": 0, "train_every": 10}, 10)):
        with from_state(state, config=dataclasses.replace(SELDOM, **{"train_every": 1, **changed})) as run:
            run.train(100)
            assert run.step == step + 100
            assert run.learner.progress.gradient_steps == 20 + expected
