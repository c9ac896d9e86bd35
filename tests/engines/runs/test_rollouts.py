"""What on-policy runs learn from a rollout, in minibatches of any size."""

import dataclasses

import gymnasium as gym
import numpy as np
import pytest
from cases import variants_but
from run_cases import differences
from several_worlds import Leaving

from etude import Mlp, Recurrent, Run, load
from etude.algorithms import (
    DQN,
    A2CConfig,
    APPOConfig,
    DQNConfig,
    IMPALAConfig,
    MAPPOConfig,
    PPOConfig,
    RecurrentPPOConfig,
)
from etude.algorithms import PPO as PPOAgent
from etude.base.events import Learned
from etude.rewrite import ICM, RND
from etude.training.schedule import Schedule

PPO = PPOConfig(network=Mlp((4,)), rollout_length=32, minibatch_size=16, epochs=1, learning_rate=1e-2)


class Drifting(gym.Env):
    """Observations and rewards grow within an episode. Episodes of 1 to 6 steps, every second of them stopped by a
    clock."""

    observation_space, action_space = gym.spaces.Box(-1e3, 1e3, (2,), np.float32), gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left, self.clock = int(self.np_random.integers(1, 7)), bool(self.np_random.integers(2))
        self.drift = self.np_random.uniform(0, 5)
        return self.observation(), {}

    def step(self, action):
        self.left, self.drift = self.left - 1, self.drift + 1
        over = self.left == 0
        return self.observation(), self.drift * (action - 1.0), over and not self.clock, over and self.clock, {}

    def observation(self):
        return np.float32([self.drift + self.np_random.normal(), self.np_random.normal()])


class Watched:
    """Learns as a run does, and keeps the batches [k, B, ...] that it learned from."""

    def __init__(self, run):
        self._inner, self.batches = run.learner.gradients, []
        run.learner.gradients = self

    def __call__(self, batches, hyper, done):
        self.batches.append(batches)
        return self._inner(batches, hyper, done)


@pytest.mark.variant
@pytest.mark.parametrize("size", [64, 8, 2, 1])
def test_the_moments_of_returns_are_those_of_the_rollouts_whatever_the_size_of_minibatches(size, engine_name):
    config = dataclasses.replace(PPO, rollout_length=16, minibatch_size=size, normalize_value=True, learning_rate=0.0)
    with Run("ppo", Drifting, config=config, environments=4, engine=engine_name, seed=1) as run:
        watched = Watched(run)
        run.train(3 * 64)
        mean, deviation, phases = run.engine.weights()["value_normaliser.moments"]
    returns = np.concatenate([batches.extras["return"].reshape(-1) for batches in watched.batches]).astype(np.float64)
    assert len(returns) == 3 * 64 and returns.std() > 0.1
    assert (mean, deviation, phases) == pytest.approx((returns.mean(), returns.std(), 3), rel=1e-4)


@pytest.mark.parametrize(
    ("algorithm", "config", "environments"),
    [
        ("ppo", dataclasses.replace(PPO, minibatch_size=1), 2),
        ("a2c", A2CConfig(network=Mlp((4,)), normalize_advantage=True, rollout_length=4, minibatch_size=1), 2),
        ("appo", APPOConfig(network=Mlp((4,)), rollout_length=1, minibatch_size=1), 1),
    ],
)
@pytest.mark.variant
def test_the_advantage_of_a_minibatch_of_one_step_moves_the_policy(algorithm, config, environments, engine_name):
    config = dataclasses.replace(config, entropy_coefficient=0.0)
    with Run(algorithm, Drifting, config=config, environments=environments, engine=engine_name, seed=1) as run:
        before = run.engine.weights()
        run.train(64)
        after = run.engine.weights()
    policy = [name for name in before if name.startswith("model.policy")]
    assert policy and all(np.abs(after[name] - before[name]).max() > 1e-5 for name in policy)


def pieces_of(steps, total):
    return [min(steps, total - begun) for begun in range(0, total, steps)]


NORMALISED = {"network": Mlp((4,)), "rollout_length": 16, "normalize_observation": True, "normalize_reward": True}
CASES = {
    "ppo": dataclasses.replace(PPO, rollout_length=16),
    "a2c": A2CConfig(**NORMALISED),
    "impala": IMPALAConfig(**NORMALISED),
    "appo": APPOConfig(**NORMALISED, minibatch_size=32, epochs=1),
    "recurrent_ppo": RecurrentPPOConfig(
        network=Recurrent(Mlp((4,)), 3, "gru"), rollout_length=16, sequence_length=8, minibatch_size=16, epochs=1
    ),
    "mappo": MAPPOConfig(**NORMALISED, minibatch_size=32, epochs=1),
}


def made(algorithm, engine_name, **more):
    env = Leaving if algorithm == "mappo" else Drifting
    given = {"config": CASES[algorithm], "environments": 4, "engine": engine_name, "seed": 1}
    return Run(algorithm, env, **{**given, **more})


def trained(run, pieces, total=640):
    """What a run of so many steps has learned, and its moments."""
    for steps in pieces:
        run.train(steps, schedule=Schedule(total=total))
    state = run.learner.state()
    return {"weights": run.engine.weights(), **{name: state[name] for name in ("moments", "scale")}}


@pytest.mark.long_but("ppo-38", "ppo-7", "a2c-256", "impala-10", "appo-38", "recurrent_ppo-7", "mappo-10")
@pytest.mark.parametrize("steps", [38, 10, 7, 256])
@pytest.mark.parametrize("algorithm", variants_but(("ppo",), CASES))
def test_a_run_in_pieces_of_any_length_learns_what_one_call_learns(algorithm, steps, engine_name):
    with made(algorithm, engine_name) as whole, made(algorithm, engine_name) as run:
        expected, watched = trained(whole, [640]), Watched(run)
        assert differences(expected, trained(run, pieces_of(steps, 640))) == []
        assert run.step == whole.step == 640
    assert sum(batches.weight.size for batches in watched.batches) == 640


@pytest.mark.variant
@pytest.mark.parametrize("rewrite", [RND(network=Mlp((4,)), batch_size=24), ICM(network=Mlp((4,)), batch_size=24)])
def test_intrinsic_rewards_of_a_run_in_pieces_are_those_of_one_call(rewrite, engine_name):
    def learned(pieces):
        with made("ppo", engine_name, rewrite=rewrite) as run:
            found = trained(run, pieces)
            return found | {"rewriters": run.learner.state()["rewriters"]}

    assert differences(learned([640]), learned(pieces_of(38, 640))) == []


@pytest.mark.variant
def test_pieces_are_the_same_with_workers_evaluations_and_checkpoints_in_between(engine_name, tmp_path):
    with made("ppo", engine_name) as whole:
        expected = trained(whole, [640])
    run = made("ppo", engine_name)
    for steps, workers in ((38, 2), (7, 0), (101, 3), (494, 0)):
        run.train(steps, schedule=Schedule(total=640))
        run.evaluate(episodes=1)
        run.save(tmp_path / "run.etude")
        run.close()
        run = load(tmp_path / "run.etude", workers=workers, env=Drifting, trust=True)
    with run:
        assert differences(expected, trained(run, [])) == []


@pytest.mark.variant
def test_a_policy_beside_one_that_learns_more_often_learns_from_what_it_acted_with(engine_name):
    config = dataclasses.replace(PPO, minibatch_size=None, learning_rate=5e-2)
    often = DQNConfig(network=Mlp((4,)), learning_starts=0, train_every=4, batch_size=8, n_step=1)
    policies = {"stays": PPOAgent(config), "leaves": DQN(often)}
    with Run(policies, Leaving, environments=4, engine=engine_name, seed=1) as run:
        events = [event for event in run.steps(640) if isinstance(event, Learned)]
    found = [event.metrics["stays.approx_kl"] for event in events if "stays.approx_kl" in event.metrics]
    assert len(found) == 640 // (32 * 4)
    np.testing.assert_allclose(found, 0, atol=1e-7)


@pytest.mark.variant
def test_a_rollout_whose_length_a_rule_changes_is_learned_from_after_a_piece_that_ends_inside(engine_name):
    config = dataclasses.replace(PPO, adapt=("kl:rollout_length",))
    with made("ppo", engine_name, config=config) as run:
        watched = Watched(run)
        run.train(7)
        run.train(256)
        assert sum(batches.weight.size for batches in watched.batches) >= 128


@pytest.mark.parametrize("algorithm", variants_but((), ["impala", "recurrent_ppo", "ppo"]))
def test_the_noise_of_a_minibatch_is_in_steps_as_minibatch_size_is(algorithm, engine_name):
    config = dataclasses.replace(CASES[algorithm], minibatch_size=64, adapt=("noise_scale:minibatch_size",))
    with made(algorithm, engine_name, config=config) as run:
        watched = Watched(run)
        run.train(64)
        gradients, size = run.learner.adapting._gradients(watched.batches[0], 4, run.learner.hyper())
    assert len(gradients) == 4 and size == 16
