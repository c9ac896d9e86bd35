"""Hyperparameters that adjust themselves, on every engine: compiled once for each size, saved and resumed."""

import dataclasses

import numpy as np
import pytest
from cases import variants_but
from run_cases import APEX_DDPG_TINY, DQN_TINY, PPO_TINY, SAC_TINY, differences

import etude
from etude import Linear, Run
from etude.adapt import Adapt
from etude.algorithms import DQN
from etude.base.errors import ConfigError
from etude.base.events import Adjusted, Learned
from etude.explore import Boltzmann

QUICK = {"every": 2, "smooth": 0.5, "rate": 0.5}
RULES = {
    "dqn": (
        Adapt("ess", "batch_size", target=0.2, **QUICK),
        Adapt("gradient_variance", "learning_rate", **QUICK),
        Adapt("ess", "epsilon", target=0.2, **QUICK),
    ),
    "apex_ddpg": (Adapt("ess", "exploration_noise", target=0.9, **QUICK),),
    "ppo": (Adapt("kl", "learning_rate", target=1e-4, **QUICK), Adapt("ess", "minibatch_size", target=0.1, **QUICK)),
    "sac": (
        Adapt("noise_scale", "tau", target=1.0, **QUICK),
        Adapt("ess", "gradient_steps", target=0.9, **QUICK),
        Adapt("noise_scale", "optimizer.beta1", target=1.0, **QUICK),
    ),
}
WORLDS = {
    "dqn": ("CartPole-v1", dataclasses.replace(DQN_TINY, epsilon=Linear(1.0, 0.1, steps=300))),
    "apex_ddpg": ("Pendulum-v1", APEX_DDPG_TINY),
    "ppo": ("CartPole-v1", PPO_TINY),
    "sac": ("Pendulum-v1", SAC_TINY),
}


def made(engine_name, algorithm, **more):
    env, config = WORLDS[algorithm]
    config = dataclasses.replace(config, adapt=RULES[algorithm])
    return Run(algorithm, env, config=config, environments=4, seed=3, engine=engine_name, **more)


def plain(state):
    return {name: part for name, part in state.items() if name != "description"}


@pytest.mark.parametrize("algorithm", variants_but(("dqn",), RULES))
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


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_explores_with_the_epsilon_that_rules_have_changed(workers, engine_name):
    if engine_name != "torch":
        pytest.skip("explorers run in NumPy: the same on every engine")
    rule = Adapt("ess", "epsilon", target=1e3, every=1, rate=1e3, high=1.0)  # the signal is far below its target
    config = dataclasses.replace(DQN_TINY, epsilon=1e-6, learning_starts=60, learning_rate=0.0, adapt=(rule,))
    given = {"config": config, "environments": 4, "seed": 3, "engine": engine_name, "workers": workers}
    actions = []
    with Run("dqn", "CartPole-v1", **given) as run:
        take = run.learner.take
        run.learner.take = lambda steps: actions.extend(steps.action.ravel().tolist()) or take(steps)
        changed = [event for event in run.steps(200) if isinstance(event, Adjusted)]
        explorer = run.exploring(4)
    assert [event.after for event in changed] == [pytest.approx(1.001e-3), 1.0]
    first, second = (event.step for event in changed)
    assert len(actions) == 200
    assert len(set(actions[:first])) == 1, "the best action, of a network that learns nothing"
    assert 0.3 < np.mean(actions[second:]) < 0.7
    assert explorer.inner.of(np.arange(4))._present().epsilon == 1.0


def test_rules_of_exploration_that_nothing_reads_are_refused(engine_name):
    if engine_name != "torch":
        pytest.skip("found before there is an engine")
    config = dataclasses.replace(DQN_TINY, adapt=(Adapt("ess", "epsilon"),))
    with pytest.raises(ConfigError, match=r"adapt changes epsilon, but the run explores with Boltzmann"):
        Run("dqn", "CartPole-v1", config=config, explorer=Boltzmann(1.0), engine=engine_name)
    with pytest.raises(ConfigError, match="adapt changes epsilon, but nothing explores with it"):
        Run("ppo", "CartPole-v1", adapt=("ess:epsilon",), engine=engine_name)
    agents, world = {f"pole_{i}": DQN(config) for i in range(2)}, "etude.examples.cart_pole:CartPoles"
    with pytest.raises(ConfigError, match="pole_0: adapt changes epsilon; rules change exploration in runs of one"):
        Run(agents, world, env_args={"count": 2}, engine=engine_name)


@pytest.mark.parametrize("algorithm", ["a3c", "es"])
def test_algorithms_whose_learner_computes_no_losses_refuse_rules(algorithm, engine_name):
    with pytest.raises(ConfigError, match="do not come from losses on batches"):
        Run(algorithm, "CartPole-v1", engine=engine_name, adapt="kl:learning_rate")
