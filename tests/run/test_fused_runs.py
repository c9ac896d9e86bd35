"""Runs whose learning phases are carried out many in one compiled call."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import etude
from etude import ops
from etude.algorithms import DQNConfig, PPOConfig, RecurrentPPOConfig, SACConfig, TD3Config
from etude.base.errors import ConfigError
from etude.base.events import Collected, Evaluated, Learned, Saved
from etude.base.schedules import Linear
from etude.base.spaces import Box
from etude.engines.scanned import Phases
from etude.envs.functional import FunctionalEnvironment
from etude.networks import Mlp
from etude.report.series import read_records
from etude.training.compiled import FusedRollout
from etude.tuning import GridSearch, SerialExecutor, TrialTraining

CARTPOLE = "functional:CartPole-v1"
PLAIN = {"normalize_observation": False, "normalize_reward": False}
CONFIG = PPOConfig(rollout_length=16, minibatch_size=48, epochs=2, learning_rate=Linear(1e-3, 0.0), **PLAIN)
PHASE = 16 * 8
LONG = etude.Schedule(total=PHASE * 12)


class Drift(FunctionalEnvironment):
    """A point that is pushed from where it began; episodes are cut off after 12 steps, or end at the edge."""

    observation_space, action_space = Box(-9.0, 9.0, (2,)), Box(-1.0, 1.0, (1,))

    def reset(self, key, params):
        position = ops.uniform(key, -1.0, 1.0, (2,))
        return ops.cast(position, "float32"), (position, 0)

    def step(self, key, state, action, params):
        position, time = state[0] + action + ops.uniform(key, -0.1, 0.1, (2,)), state[1] + 1
        reward = -ops.sum(ops.square(position))
        terminated = ops.abs(position[0]) > 2.0
        return ops.cast(position, "float32"), (position, time), reward, terminated, time >= 12, {}


def made(fused=True, env=CARTPOLE, config=CONFIG, algorithm="ppo", run_dir=None, **execution):
    execution = etude.Execution(vectorization="compiled", fused=fused, **execution)
    return etude.Run(algorithm, env, config=config, engine="jax", environments=8, execution=execution, run_dir=run_dir)


def told(event):
    """What an event says, in numbers that can be compared."""
    if isinstance(event, Collected):
        return [number for end in event.episodes for number in (end.environment, end.episode, end.length, end.total)]
    if isinstance(event, Learned):
        return [event.gradient_steps, *(x for _, x in sorted({**event.losses, **event.metrics}.items()))]
    return list(event.returns) if isinstance(event, Evaluated) else []


def assert_alike(own, theirs, rtol=1e-3, atol=1e-4):
    assert [(type(e), e.step) for e in own] == [(type(e), e.step) for e in theirs]
    for one, other in zip(own, theirs, strict=True):
        np.testing.assert_allclose(told(one), told(other), rtol, atol)


def assert_same_weights(run, other, atol=0.0):
    weights = other.engine.weights()
    for name, value in run.engine.weights().items():
        np.testing.assert_allclose(value, weights[name], atol=atol, rtol=0)


# The replay is full after 400 steps, so that rows are overwritten
REPLAYED = {
    "network": Mlp((16, 16)),
    "buffer_size": 400,
    "train_every": 16,
    "gradient_steps": 3,
    "batch_size": 24,
    "learning_starts": 200,
}


@pytest.mark.long_but("continuous", "td3")
@pytest.mark.parametrize("case", ["ppo", "continuous", "td3"])
def test_events_come_at_the_same_steps_with_the_same_numbers(case, tmp_path):
    given = {
        "ppo": {},
        "continuous": {"env": Drift, "config": PPOConfig(rollout_length=16, clip_reward=True, epochs=2, **PLAIN)},
        # Fewer steps in a phase than there are environments; random actions, and losses that come late
        "td3": {
            "algorithm": "td3",
            "env": Drift,
            "config": TD3Config(
                **{**REPLAYED, "train_every": 2, "gradient_steps": 1}, random_steps=300, clip_reward=True
            ),
        },
    }[case]
    own, theirs = (made(fused, run_dir=tmp_path / str(fused), **given) for fused in (True, False))
    both = [
        list(run.steps(PHASE * 9 + 20, evaluate_every=400, evaluate_episodes=2, save_every=700))
        for run in (own, theirs)
    ]
    assert_alike(*both)
    assert {Collected, Learned, Evaluated, Saved} <= {type(event) for event in both[0]}
    assert_same_weights(own, theirs, atol=1e-5)
    # A rollout that both have begun ends in the next call
    assert_alike(*(list(run.steps(PHASE * 2)) for run in (own, theirs)))


@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_a_call_that_is_left_in_its_middle_is_taken_back_to_the_last_event(algorithm, tmp_path):
    config = SACConfig(**{**REPLAYED, "train_every": PHASE, "learning_starts": 0})
    given = {"algorithm": "sac", "env": Drift, "config": config} if algorithm == "sac" else {}
    whole, left, stopped = (made(**given) for _ in range(3))
    expected = list(whole.steps(PHASE * 6, schedule=LONG))
    seen = list(itertools.islice(left.steps(PHASE * 6, schedule=LONG), 8))  # Started, ... Learned, Collected
    assert left.step < PHASE * 6
    alone = made(**given)
    list(alone.steps(left.step, schedule=LONG))
    for event in stopped.steps(PHASE * 6, schedule=LONG):
        if isinstance(event, Learned) and event.step == left.step:
            stopped.save(tmp_path / "run")
            stopped.stop()
    assert stopped.step == left.step
    env = given.get("env")
    loaded = etude.load(tmp_path / "run", env=env)
    unfused = etude.load(tmp_path / "run", env=env, execution=etude.Execution(vectorization="compiled"))
    for run in (left, stopped, loaded):
        assert_same_weights(run, alone)
    rest = list(loaded.steps(PHASE * 12 - loaded.step, schedule=LONG))
    assert_alike([e for e in rest if isinstance(e, Learned) and e.step <= PHASE * 6],
                 [e for e in expected if isinstance(e, Learned) and e.step > left.step], 0, 0)  # fmt: skip
    list(unfused.steps(PHASE * 12 - unfused.step))
    assert_same_weights(unfused, loaded, atol=1e-4)
    assert len(seen) == 8


@pytest.mark.parametrize("acting", ["evaluate", "act", "actor"])
def test_what_acts_while_events_are_told_has_the_weights_of_each(acting):
    seen = np.ones((1, 2), np.float32)
    acts = {
        "evaluate": lambda run: run.evaluate(1).returns,
        "act": lambda run: run.act(seen[0]).tolist(),
        "actor": lambda run: np.ravel(run.actor().act(seen)[0]).tolist(),
    }[acting]
    found = {True: [], False: []}
    for fused, own in found.items():
        run = made(fused, Drift, PPOConfig(rollout_length=16, epochs=2, **PLAIN))
        for event in run.steps(PHASE * 5, schedule=LONG):
            own += acts(run) if isinstance(event, (Collected, Learned)) else []
    np.testing.assert_allclose(found[True], found[False], rtol=1e-3, atol=1e-4)


def test_programs_are_shared_and_without_branches_as_on_a_gpu_have_the_same_numbers(monkeypatch):
    class Elsewhere(Phases):
        def __init__(self, *given):
            super().__init__(*given)
            self._branches = False

    branching, alike = made(env=Drift), made(env=Drift)
    branching.train(PHASE * 3)
    alike.train(PHASE)
    assert branching.engine.compile_seconds > 0.0 == alike.engine.compile_seconds  # equal environments share programs
    monkeypatch.setattr("etude.training.compiled.Phases", Elsewhere)
    other = made(env=Drift)
    other.train(PHASE * 3)
    assert not other.loop._collection.rollout.program._branches
    assert_same_weights(branching, other, atol=1e-5)


REFUSED = {
    "normalize_observation": {"config": PPOConfig(normalize_reward=False)},
    "normalize_reward": {"config": PPOConfig(normalize_observation=False)},
    "rewrite": {"rewrite": lambda steps: steps},
    "advantage_sequences": {"algorithm": "recurrent_ppo", "config": RecurrentPPOConfig(**PLAIN)},
    "value_normaliser.moments": {"config": PPOConfig(normalize_value=True, **PLAIN)},
    "leave priorities": {"algorithm": "dqn", "config": DQNConfig(priority_exponent=0.6)},
    "reset_every": {"algorithm": "dqn", "config": DQNConfig(reset_every=100)},
    "expected one to be a multiple": {"algorithm": "dqn", "config": DQNConfig(train_every=12)},
}


@pytest.mark.parametrize("named", REFUSED)
def test_what_does_not_fit_is_refused_by_name(named):
    with pytest.raises(ConfigError, match=f"fused = True.*{named}"):
        made(**REFUSED[named]).train(64)


@pytest.mark.parametrize("environments", [4, pytest.param(8, marks=pytest.mark.long)])
def test_a_run_goes_on_with_other_environments_and_from_an_unfused_one(environments, tmp_path):
    config = DQNConfig(n_step=3, **REPLAYED)
    made(False, algorithm="dqn", config=config, run_dir=tmp_path / "run").train(600)
    found = []
    for fused in (True, False):
        execution = etude.Execution(vectorization="compiled", fused=fused)
        run = etude.load(tmp_path / "run", execution=execution, environments=environments)
        run.train(640)
        found.append(run)
    assert_same_weights(*found, 1e-6)


def test_it_goes_with_compiled_rollouts_alone():
    with pytest.raises(ConfigError, match="expected 'compiled'"):
        etude.Execution(fused=True)


def test_many_agents_learn_in_one_program_with_the_numbers_that_each_has_alone(tmp_path, monkeypatch):
    rates, together = [1e-3, 3e-3, 1e-2], []
    learn_together = FusedRollout.learn_together

    def counted(rollout, due):
        together.append(len(due))
        learn_together(rollout, due)

    monkeypatch.setattr(FusedRollout, "learn_together", counted)
    config = PPOConfig(rollout_length=16, minibatch_size=64, epochs=2, **PLAIN)
    made = {"engine": "jax", "environments": 8, "execution": etude.Execution(vectorization="compiled", fused=True)}
    found = []
    for jobs in (1, SerialExecutor(3)):
        with etude.Study(
            "ppo", CARTPOLE, {"learning_rate": rates, "gamma": [0.9]}, config=config, steps=PHASE * 6, jobs=jobs,
            search=GridSearch(), folder=tmp_path / str(jobs == 1), **made,
            training=TrialTraining(evaluate_every=PHASE * 3, evaluate_episodes=2),
        ) as study:  # fmt: skip
            study.run()
            assert study.state.trials[0].status == "finished"
            records = [read_records(tmp_path / str(jobs == 1) / f"trial-{i:04d}/metrics.jsonl") for i in range(3)]
            found.append(([trial.scores for trial in study.state.trials], [list(each) for each in records]))
    assert together[0] == 3
    (alone, own), (joint, theirs) = found
    assert joint == alone and len({trial[-1].mean for trial in alone}) > 1
    for one, other in zip(itertools.chain(*own), itertools.chain(*theirs), strict=True):
        assert one.keys() == other.keys()
        for name in one.keys() & {"loss/model", "train/entropy", "step", "explained_variance"}:
            np.testing.assert_allclose(one[name], other[name], 1e-3, 1e-4)
    # A sweep divides its seeds over processes, and those of a process learn together
    swept = etude.sweep("ppo", CARTPOLE, seeds=3, config=config, steps=PHASE * 4, processes=1,
                        folder=tmp_path / "sweep", **made)  # fmt: skip
    alone = etude.Run("ppo", CARTPOLE, config=config, seed=2, **made)
    alone.train(PHASE * 4)
    assert_same_weights(swept.load(2), alone, atol=1e-5)
