"""Log probabilities of actions in the recordings of runs."""

from __future__ import annotations

import numpy as np
import pytest

import etude
from etude.base.events import Collected, Started
from etude.networks import Mlp
from etude.offline import Reader, Writer

pytestmark = pytest.mark.usefixtures("quick_shards")
QUICK = {
    "network": Mlp((8,)),
    "engine": "torch",
    "learning_starts": 20,
    "train_every": 20,
    "gradient_steps": 1,
    "batch_size": 8,
}
NOISE = {"exploration_noise": 0.5, "random_steps": 10}
RECORDED = {
    "dqn": ("CartPole-v1", {"epsilon": 0.3}, {"log_prob"}),
    "td3": ("Pendulum-v1", NOISE, {"log_prob", "action_clipped"}),
    "sac": ("Pendulum-v1", {}, {"log_prob", "sampled_action"}),
    "apex_dqn": ("CartPole-v1", {"environments": 2}, {"log_prob"}),
}


@pytest.mark.parametrize("algorithm", RECORDED)
def test_a_recorded_run_keeps_the_probabilities_of_its_actions_and_learns_the_same(algorithm, tmp_path):
    env, settings, extras = RECORDED[algorithm]
    runs = [etude.Run(algorithm, env, seed=3, **QUICK, **settings) for _ in range(2)]
    runs[0].train(260, [Writer(tmp_path)])
    runs[1].train(260)
    episodes = Reader(tmp_path).read().episodes
    assert episodes and all(set(each.extras) == extras for each in episodes)
    assert all(np.isfinite(each.extras["log_prob"]).all() for each in episodes)
    for name, weights in runs[1].engine.weights().items():
        np.testing.assert_array_equal(runs[0].engine.weights()[name], weights)


def test_recorded_epsilon_greedy_actions_have_its_probabilities(tmp_path):
    run = etude.Run("dqn", "CartPole-v1", seed=3, epsilon=0.4, **{**QUICK, "learning_starts": 1_000})
    run.train(200, [Writer(tmp_path)])
    for each in Reader(tmp_path).read().episodes:
        best = run.actor().act(each.observation[:-1]).argmax(1)
        expected = np.where(each.action == best, 0.8, 0.2)
        np.testing.assert_allclose(np.exp(each.extras["log_prob"]), expected, rtol=1e-5)


def test_a_run_without_a_writer_of_log_probabilities_collects_none(tmp_path):
    found = []
    run = etude.Run("dqn", "CartPole-v1", seed=3, **QUICK)
    extras = [lambda event: isinstance(event, Collected) and found.append({*event.steps[0].extras})]
    run.train(20, [*extras, Writer(tmp_path / "none", columns=[])])
    run.train(20, extras)
    assert set().union(*found) == set()
    run.train(20, [*extras, Writer(tmp_path / "all")])
    assert found[-1] == {"log_prob"}
    run.train(20, extras)
    assert found[-1] == set()


@pytest.mark.parametrize("setup", [{}, {"workers": 1, "overlap": True}], ids=str)
def test_a_recording_that_begins_in_the_middle_of_a_run_has_probabilities_throughout(setup, tmp_path):
    run = etude.Run("dqn", "CartPole-v1", seed=3, **QUICK, **setup)
    run.train(60)
    writer = Writer(tmp_path)
    run.train(140, [writer])
    run.close()
    episodes = Reader(tmp_path).read().episodes
    assert episodes and writer.incomplete
    assert all({*each.extras} == {"log_prob"} and len(each.extras["log_prob"]) == len(each.reward) for each in episodes)


def test_a_recording_that_began_without_probabilities_goes_on_without_them(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(Started, "record_log_prob", lambda self: None)  # as earlier versions did
        with etude.Run("dqn", "CartPole-v1", seed=3, run_dir=tmp_path / "run", **QUICK) as run:
            run.train(60, [Writer(tmp_path / "recorded")])
    with etude.load(tmp_path / "run") as run:
        run.train(140, [Writer(tmp_path / "recorded")])
    assert all(not each.extras for each in Reader(tmp_path / "recorded").read().episodes)
