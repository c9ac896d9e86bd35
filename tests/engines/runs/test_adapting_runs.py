"""Hyperparameters that adjust themselves, on every engine: compiled once for each size, saved and resumed."""

import dataclasses

import pytest
from cases import variants_but
from run_cases import DQN_TINY, PPO_TINY, SAC_TINY, differences

import etude
from etude import Run
from etude.adapt import Adapt
from etude.base.errors import ConfigError
from etude.base.events import Adjusted, Learned

QUICK = {"every": 2, "smooth": 0.5, "rate": 0.5}
RULES = {
    "dqn": (Adapt("ess", "batch_size", target=0.2, **QUICK), Adapt("gradient_variance", "learning_rate", **QUICK)),
    "ppo": (Adapt("kl", "learning_rate", target=1e-4, **QUICK), Adapt("ess", "minibatch_size", target=0.1, **QUICK)),
    "sac": (Adapt("noise_scale", "tau", target=1.0, **QUICK), Adapt("ess", "gradient_steps", target=0.9, **QUICK)),
}
WORLDS = {"dqn": ("CartPole-v1", DQN_TINY), "ppo": ("CartPole-v1", PPO_TINY), "sac": ("Pendulum-v1", SAC_TINY)}


def made(engine_name, algorithm, **more):
    env, config = WORLDS[algorithm]
    config = dataclasses.replace(config, adapt=RULES[algorithm])
    return Run(algorithm, env, config=config, environments=4, seed=3, engine=engine_name, **more)


def plain(state):
    return {name: part for name, part in state.items() if name != "description"}


@pytest.mark.parametrize("algorithm", variants_but(("ppo",), RULES))
def test_a_run_that_adjusts_itself_goes_on_from_a_checkpoint_with_the_same_numbers_and_in_workers(
    algorithm, engine_name, tmp_path
):
    with made(engine_name, algorithm) as run:
        before = [event for event in run.steps(320) if isinstance(event, Adjusted)]
        run.save(tmp_path / "run.etude")
        after = [event for event in run.steps(320) if isinstance(event, Adjusted)]
        expected = plain(run.state())
    assert {event.name for event in before + after} == {rule.hyperparameter for rule in RULES[algorithm]}
    with etude.load(tmp_path / "run.etude", workers=2) as again:
        assert [event for event in again.steps(320) if isinstance(event, Adjusted)] == after
        assert differences(expected, plain(again.state())) == []


def test_changed_hyperparameters_are_learned_with(engine_name):
    learned = []
    with made(engine_name, "ppo") as run:
        learn = run.engine.learn
        run.engine.learn = lambda batches, hyper: learned.append((hyper, batches.weight.shape)) or learn(batches, hyper)
        run.train(640)
        rate, sizes = run.learner.hyper()["learning_rate"], run.learner.adapting.rules.counts()
        run.train(64)
    assert learned[-1][0]["learning_rate"] == rate != PPO_TINY.learning_rate
    assert learned[-1][1][1] == sizes["minibatch_size"] != PPO_TINY.minibatch_size


def test_a_run_that_learns_more_often_does_not_catch_up_on_phases_that_were_never_due(engine_name):
    if engine_name != "torch":
        pytest.skip("the same on every engine: runs on torch")
    rule = Adapt("ess", "train_every", target=0.01, every=1, rate=9.0, low=4)
    config = dataclasses.replace(DQN_TINY, train_every=16, gradient_steps=1, learning_starts=32, adapt=(rule,))
    with Run("dqn", "CartPole-v1", config=config, environments=4, seed=3, engine=engine_name) as run:
        steps = [(event.step, event.gradient_steps) for event in run.steps(64) if isinstance(event, Learned)]
    first, *rest = steps
    assert first == (32, 1)
    assert rest == [(32 + 4 * i, 1 + i) for i in range(1, 9)], "every 4 steps from the first phase on"


@pytest.mark.parametrize("algorithm", ["a3c", "es"])
def test_algorithms_whose_learner_computes_no_losses_refuse_rules(algorithm, engine_name):
    with pytest.raises(ConfigError, match="do not come from losses on batches"):
        Run(algorithm, "CartPole-v1", engine=engine_name, adapt="kl:learning_rate")
