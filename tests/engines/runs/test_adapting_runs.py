"""Hyperparameters that adjust themselves, on every engine: compiled once for each size, saved and resumed."""

import dataclasses

import numpy as np
import pytest
from cases import variants_but
from run_cases import (
    APEX_DDPG_TINY,
    DQN_TINY,
    IMPALA_TINY,
    PPO_TINY,
    R2D2_TINY,
    RAINBOW_TINY,
    RECURRENT_PPO_TINY,
    SAC_TINY,
    differences,
)

import etude
from etude import Linear, Run
from etude.adapt import Adapt
from etude.algorithms import DQN
from etude.base.errors import ConfigError
from etude.base.events import Adjusted, Learned
from etude.explore import Boltzmann
from etude.training.description import Environment, Execution
from etude.training.kinds import kind_of
from etude.training.kinds.kind import check_shared_replay

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


def longer(*algorithms):
    return [pytest.param(algorithm, marks=pytest.mark.long) for algorithm in algorithms]


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


@pytest.mark.parametrize("algorithm", ["ppo", *longer("recurrent_ppo", "impala")])
def test_a_run_whose_rollouts_change_their_length_goes_on_from_a_checkpoint_and_in_workers(
    algorithm, engine_name, tmp_path
):
    if engine_name != "torch":
        pytest.skip("the same on every engine: runs on torch")
    tiny = {
        "ppo": PPO_TINY,
        "recurrent_ppo": RECURRENT_PPO_TINY,
        "impala": dataclasses.replace(IMPALA_TINY, rollout_length=16),
    }[algorithm]
    (signal, target), length = (("gradient_variance", 1e-9) if algorithm == "impala" else ("kl", 1e-3)), 16
    rule = Adapt(signal, "rollout_length", target=target, every=1, rate=1.0, smooth=1.0, low=8)
    config = dataclasses.replace(tiny, adapt=(rule, Adapt("gradient_variance", "learning_rate")))
    with Run(algorithm, "CartPole-v1", config=config, environments=4, seed=3, engine=engine_name) as run:
        phases = [event for event in run.steps(640) if isinstance(event, Learned)]
        run.save(tmp_path / "run.etude")
        after = [event.adjusted for event in run.steps(320) if isinstance(event, Learned)]
        expected = plain(run.state())
    at = [length]
    for phase in phases:
        at += [next((int(event.after) for event in phase.adjusted if event.name == rule.hyperparameter), at[-1])]
    assert len(set(at)) > 1 and set(at) <= {length >> 1, length, length << 1, length << 2}
    assert (np.diff([0, *(event.step for event in phases)]) == 4 * np.array(at[:-1])).all(), "as the phase before says"
    with etude.load(tmp_path / "run.etude", workers=2) as again:
        assert [event.adjusted for event in again.steps(320) if isinstance(event, Learned)] == after
        assert differences(expected, plain(again.state())) == []


@pytest.mark.parametrize("algorithm", ["dqn", *longer("rainbow", "r2d2")])
def test_a_run_learns_from_the_window_of_its_replay_that_a_rule_says_and_goes_on_from_a_checkpoint(
    algorithm, engine_name, tmp_path
):
    if engine_name != "torch":
        pytest.skip("replays are in NumPy: runs on torch")
    tiny = {"dqn": DQN_TINY, "rainbow": RAINBOW_TINY, "r2d2": R2D2_TINY}[algorithm]
    rule = Adapt("ess", "buffer_size", target=1.5, every=3, rate=0.5, smooth=1.0, low=64)
    config = dataclasses.replace(tiny, buffer_size=200, adapt=(rule,))
    with Run(algorithm, "CartPole-v1", config=config, environments=4, seed=3, engine=engine_name) as run:
        sizes, sample = [], run.learner.replay.sample
        run.learner.replay.sample = lambda k, n: sizes.append(len(run.learner.replay)) or sample(k, n)
        before = [event for event in run.steps(320) if isinstance(event, Adjusted)]
        run.learner.replay.sample = sample
        run.save(tmp_path / "run.etude")
        after = [event for event in run.steps(160) if isinstance(event, Adjusted)]
        expected = plain(run.state())
    windows = [int(event.after) for event in before]
    assert windows == sorted(windows, reverse=True) and windows[-1] == 64, "the signal is always below its target"
    assert max(sizes[-8:]) == 64 < max(sizes) <= 200, "nothing older is sampled"
    with etude.load(tmp_path / "run.etude", workers=2) as again:
        assert [event for event in again.steps(160) if isinstance(event, Adjusted)] == after
        assert differences(expected, plain(again.state())) == []


COMPILED = {  # rule, config, and the sizes, of which each is compiled once
    "dqn": (
        Adapt("ess", "batch_size", target=0.1, every=1, rate=0.5, smooth=1.0, low=12, high=36, align=12),
        dataclasses.replace(DQN_TINY, batch_size=12),
        {(2, 12), (2, 24), (2, 36)},
    ),
    "ppo": (
        Adapt("kl", "rollout_length", target=1e-6, every=1, rate=1.0, smooth=1.0, low=8, high=16),
        dataclasses.replace(PPO_TINY, rollout_length=8, minibatch_size=12, epochs=1),
        {(2, 12), (4, 12)},
    ),
}


@pytest.mark.parametrize("algorithm", COMPILED)
def test_each_size_that_a_rule_steps_to_is_compiled_once(algorithm, engine_name):
    if engine_name != "jax":
        pytest.skip("torch compiles nothing, and TensorFlow as JAX does")
    rule, config, sizes = COMPILED[algorithm]
    config, shapes = dataclasses.replace(config, adapt=(rule,)), []
    with Run(algorithm, "CartPole-v1", config=config, environments=3, seed=3, engine=engine_name) as run:
        learn, traces = run.engine.learn, run.engine.traces
        run.engine.learn = lambda batches, hyper: shapes.append(batches.weight.shape[:2]) or learn(batches, hyper)
        run.train(240)
        assert set(shapes) == sizes and len(shapes) > len(sizes)
        assert run.engine.traces == traces + len(sizes)


def test_rules_of_sizes_that_a_run_cannot_follow_are_refused(engine_name):
    if engine_name != "torch":
        pytest.skip("found before anything is computed")
    length, window = Adapt("kl", "rollout_length"), Adapt("ess", "buffer_size")
    wrong = {
        "overlap = True collects the next rollout before": ("ppo", PPO_TINY, length, {"overlap": True, "workers": 1}),
        "may change rollout_length to 4: .* expected a rollout of whole sequences": (
            "recurrent_ppo", RECURRENT_PPO_TINY, length, {},
        ),
        "expected a hyperparameter that may change": ("ppo", PPO_TINY, window, {}),
        "adapt = rollout_length; expected": ("dqn", DQN_TINY, dataclasses.replace(length, direction=1), {}),
        "has high = 400; the replay has room for 200": ("dqn", DQN_TINY, dataclasses.replace(window, high=400), {}),
        "to 3, which is less than a batch of 8 steps. Give the rule low=8": (
            "dqn", DQN_TINY, dataclasses.replace(window, low=3), {},
        ),
        "minibatch_size = 16, and its rule has align = 12; expected a multiple": (
            "ppo", PPO_TINY, Adapt("kl", "minibatch_size", align=12), {},
        ),
    }  # fmt: skip
    for said, (algorithm, config, rule, given) in wrong.items():
        config = dataclasses.replace(config, adapt=(rule,))
        with pytest.raises(ConfigError, match=said):
            Run(algorithm, "CartPole-v1", config=config, environments=4, engine=engine_name, **given)
    with pytest.raises(ConfigError, match="a rule of DQN changes buffer_size, which would forget what the others"):
        check_shared_replay(kind_of(agent := DQN(dataclasses.replace(DQN_TINY, adapt=(window,)))), agent)


@pytest.mark.variant
def test_changed_hyperparameters_are_learned_with(engine_name):
    learned = []
    with made(engine_name, "ppo") as run:
        learn = run.engine.learn
        run.engine.learn = lambda batches, hyper: learned.append((hyper, batches.weight.shape)) or learn(batches, hyper)
        run.train(640)
        rate, sizes = run.learner.hyper()["learning_rate"], run.learner.adapting.rules.counts()
        run.train(64)
    factor = rate / PPO_TINY.learning_rate.end
    within = PPO_TINY.learning_rate.at(640 + 32, 704)
    assert learned[-1][0]["learning_rate"] == pytest.approx(factor * within) and factor != 1
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
        Run("dqn", "CartPole-v1", config=config, engine=engine_name, execution=Execution(explorer=Boltzmann(1.0)))
    with pytest.raises(ConfigError, match="adapt changes epsilon, but nothing explores with it"):
        Run("ppo", "CartPole-v1", adapt=("ess:epsilon",), engine=engine_name)
    agents, world = {f"pole_{i}": DQN(config) for i in range(2)}, "etude.examples.cart_pole:CartPoles"
    with pytest.raises(ConfigError, match="pole_0: adapt changes epsilon; rules change exploration in runs of one"):
        Run(agents, Environment(world, args={"count": 2}), engine=engine_name)


@pytest.mark.variant
@pytest.mark.parametrize("algorithm", ["a3c", "es"])
def test_algorithms_whose_learner_computes_no_losses_refuse_rules(algorithm, engine_name):
    with pytest.raises(ConfigError, match="do not come from losses on batches"):
        Run(algorithm, "CartPole-v1", engine=engine_name, adapt="kl:learning_rate")
