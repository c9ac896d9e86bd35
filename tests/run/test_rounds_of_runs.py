"""Runs that learn from rounds of whole episodes: their budgets, and what they refuse."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest
from run_makers import run_given
from run_worlds import Counted, Failing, Labelled

from etude import Mlp, Run, checkpoint, presets
from etude.algorithms import ESConfig, IMPALAConfig, ReinforceConfig
from etude.base.errors import ConfigError
from etude.base.events import Collected, Evaluated, Finished, Learned, Saved, Started
from etude.checkpoint.run_directory import RunDirectory
from etude.engines.numpy import NumpyEngine
from etude.training.description import Execution

CONFIGS = {
    "reinforce": ReinforceConfig(network=Mlp((4,))),
    "es": ESConfig(network=Mlp((4,)), sigma=0.5, learning_rate=0.1),
}


def own_network():
    import torch

    return torch.nn.Linear(4, 2)


each_algorithm = pytest.mark.parametrize("algorithm", CONFIGS)


def run_of(algorithm, env=Labelled, **more):
    return run_given(
        algorithm, env, **{"config": CONFIGS[algorithm], "environments": 4, "engine": "torch", "seed": 5, **more}
    )


def of_kind(events, kind):
    return [event for event in events if isinstance(event, kind)]


@each_algorithm
def test_a_run_ends_with_the_round_in_which_it_has_taken_its_steps_and_every_event_says_so(algorithm):
    with run_of(algorithm) as run:
        events = list(run.steps(100))
        collected, finished = of_kind(events, Collected), events[-1]
        lengths = [[end.length for end in event.episodes] for event in collected]
        assert all(len(round_) == 4 for round_ in lengths), "one episode of every environment"
        assert [event.step for event in collected] == np.cumsum([sum(round_) for round_ in lengths]).tolist()
        assert collected[-2].step < 100 <= collected[-1].step == run.step == finished.step
        assert isinstance(finished, Finished) and finished.reason == "steps"
        assert [event.step for event in of_kind(events, Learned)] == [event.step for event in collected]
        assert run.learner.progress.gradient_steps == len(collected)
        first = run.step
        again = list(run.steps(30))
    assert of_kind(again, Started)[0].step == first
    assert again[-1].step >= first + 30
    assert sorted({end.environment for event in collected for end in event.episodes}) == [0, 1, 2, 3]


@each_algorithm
def test_evaluations_and_checkpoints_come_after_the_round_that_passed_their_step(algorithm, tmp_path):
    with RunDirectory.create(tmp_path / "run", "run") as directory, run_of(algorithm, run_dir=directory) as run:
        events = list(run.steps(200, evaluate_every=50, evaluate_episodes=1, save_every=100))
    ends = [event.step for event in of_kind(events, Collected)]
    due = [next(step for step in ends if step >= at) for at in (50, 100, 150, 200)]
    assert [event.step for event in of_kind(events, Evaluated)] == due
    saved = [event for event in of_kind(events, Saved) if event.kind == "last"]
    assert [event.step for event in saved] == [due[1], due[3]]
    assert checkpoint.read(saved[0].path)["replay"] == {}


def test_every_step_of_a_round_is_learned_from_once():
    with run_of("reinforce") as run:
        seen = []
        learn = run.engine.learn
        run.engine.learn = lambda batches, hyper: seen.append(batches) or learn(batches, hyper)
        run.train(60)
    assert sum(int(np.count_nonzero(batches.weight)) for batches in seen) == run.step
    assert {batches.weight.shape for batches in seen} == {(1, 256)}


def test_reinforce_goes_by_the_name_of_pg_too_and_takes_its_preset():
    with Run("pg", "CartPole-v1", engine="torch") as run:
        assert run.algorithm == run.description()["algorithm"] == "reinforce"
        assert run.agent.config == ReinforceConfig(**presets.lookup("reinforce", "CartPole-v1").config)


def test_evolution_evaluates_the_weights_themselves_and_explores_around_them():
    with run_of("es") as run:
        run.train(50)
        weights, version = run.learner.exploring_policy()
        assert version.gradient_steps == run.learner.progress.gradient_steps > 1
        assert weights.keys() == run.learner.acting_weights().keys()
        assert isinstance(run.actor(), NumpyEngine)


def test_workers_that_fail_are_replaced_and_the_generation_goes_on(tmp_path):
    env = partial(Failing, "kill", 13, tmp_path / "once")
    with run_of("es", env, workers=2) as run:
        events = list(run.steps(200))
    assert any("replaced" in getattr(event, "message", "") for event in events)
    assert all(np.isfinite(list(event.metrics.values())).all() for event in of_kind(events, Learned))


@pytest.mark.parametrize(
    ("algorithm", "setup", "message"),
    [
        ("reinforce", {"workers": 2, "overlap": True}, "learns from whole episodes of its present policy"),
        ("es", {"workers": 2, "overlap": True}, "learns from whole episodes of its present policy"),
        ("es", {"environments": 3}, "environments = 3.*an even number"),
        ("reinforce", {"replay_folder": "replay"}, "keeps a batch of episodes in memory"),
    ],
)
def test_what_rounds_cannot_be_is_refused(algorithm, setup, message):
    with pytest.raises(ConfigError, match=message), run_of(algorithm, Counted, **setup) as run:
        run.train(10)


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        ({"vectorization": "native"}, "wait for each other"),
        ({"config": dataclasses.replace(CONFIGS["es"], network=own_network)}, "Use an Mlp"),
    ],
)
def test_evolution_refuses_native_simulators_and_networks_that_numpy_does_not_compute(setup, message):
    with pytest.raises(ConfigError, match=message), run_of("es", "CartPole-v1", **setup) as run:
        run.train(10)


def test_unrolls_are_collected_while_they_are_learned_from():
    config = IMPALAConfig(network=Mlp((4,)), rollout_length=5)
    with Run(
        "impala", Counted, config=config, environments=4, workers=2, engine="torch", execution=Execution(overlap=True)
    ) as run:
        events = list(run.steps(400))
    assert run.step == 400
    kl = [event.metrics["approx_kl"] for event in of_kind(events, Learned)]
    assert len(kl) == 20
    assert kl[0] == pytest.approx(0.0, abs=1e-6), "the first unrolls are of the present policy"
    assert max(kl) > 1e-7, "the later ones of an older one"
