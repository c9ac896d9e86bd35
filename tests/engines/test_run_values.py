"""Runs of every algorithm on environments whose values are known."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from run_probes import Forever, Sides

from etude import (
    A2CConfig,
    ApexDQNConfig,
    APPOConfig,
    C51Config,
    DQNConfig,
    ESConfig,
    IMPALAConfig,
    Linear,
    Mlp,
    PPOConfig,
    QRDQNConfig,
    R2D2Config,
    RainbowConfig,
    Recurrent,
    ReinforceConfig,
    Run,
    SACConfig,
)
from etude.events import Learned

GAMMA = 0.8
OFF_POLICY = {"network": Mlp((16,)), "gamma": GAMMA, "learning_rate": 1e-2, "batch_size": 32, "warmup": 200}
OFTEN = {"learn_every": 100, "updates": 100}
SUPPORT = {"atoms": 15, "lowest": -2.0, "highest": 6.0}
PARTS = {
    **OFF_POLICY,
    "network": Mlp((16,), dueling=True, noisy=0.1),
    "double": True,
    "n_step": 3,
    "priority_exponent": 0.6,
}
ON_POLICY = {"network": Mlp((16,), "tanh"), "gamma": GAMMA, "learning_rate": 1e-2, "initial_log_std": -1.0}
CONFIGS = {
    "dqn": DQNConfig(**OFF_POLICY, **OFTEN, target_every=20, epsilon=0.5),
    "dqn-3-step": DQNConfig(**OFF_POLICY, **OFTEN, target_every=20, epsilon=0.5, n_step=3),
    "r2d2": R2D2Config(
        **OFF_POLICY | OFTEN | {"network": Recurrent(Mlp((8,)), 8), "updates": 40},
        target_every=10,
        epsilon=0.5,
        n_step=3,
        sequence_length=4,
        burn_in=1,
    ),
    "sac": SACConfig(**OFF_POLICY, **OFTEN, tau=0.05, temperature=1e-3, learn_temperature=False),
    "sac-3-step": SACConfig(**OFF_POLICY, **OFTEN, tau=0.05, temperature=1e-3, learn_temperature=False, n_step=3),
    "c51": C51Config(**OFF_POLICY, **OFTEN, **SUPPORT, target_every=20, epsilon=0.5),
    "qr_dqn": QRDQNConfig(**OFF_POLICY, **OFTEN, target_every=20, epsilon=0.5, quantiles=5),
    "qr_dqn-parts": QRDQNConfig(**PARTS, **OFTEN, target_every=20, epsilon=0.5, quantiles=5),
    "rainbow": RainbowConfig(
        **{**OFF_POLICY, "network": Mlp((16,), dueling=True, noisy=0.5)}, **OFTEN, **SUPPORT, target_every=20
    ),
    "apex_dqn": ApexDQNConfig(
        **{**OFF_POLICY, "network": Mlp((16,), dueling=True)}, **OFTEN, target_every=20, n_step=1
    ),
    "ppo": PPOConfig(**ON_POLICY, rollout=50, minibatch=100, epochs=10),
    "a2c": A2CConfig(**ON_POLICY, entropy=0.0),
    "appo": APPOConfig(**ON_POLICY, entropy=0.0, rollout=25, minibatch=50, epochs=4),
    "impala": IMPALAConfig(**ON_POLICY, entropy=0.0, rollout=5),
    "ppo-penalty": PPOConfig(
        **ON_POLICY, rollout=50, minibatch=100, epochs=10, objective="penalty", normalize_value=True, value_clip=0.5
    ),
    "reinforce": ReinforceConfig(**ON_POLICY),
}
ONE_STEP = ("dqn", "sac", "ppo", "ppo-penalty", "a2c", "appo", "impala", "reinforce", "c51", "qr_dqn")
VALUES = ("dqn", "c51", "qr_dqn", "rainbow", "apex_dqn")
OFF_POLICY_NAMES = (*VALUES, "r2d2", "sac")


def trained(name, engine_name, env, steps, environments=4):
    run = Run(name.split("-")[0], env, config=CONFIGS[name], engine=engine_name, environments=environments, seed=1)
    with run:
        learned = [event for event in run.steps(steps) if isinstance(event, Learned)]
    return run, learned


def found_value(name, engine_name, mistaken=False):
    """What a trained agent takes the value of `Forever` to be."""
    env = partial(Forever, name.startswith("sac"), mistaken)
    off_policy = name.split("-")[0] in OFF_POLICY_NAMES
    run, learned = trained(name, engine_name, env, 2_000 if off_policy else 6_000)
    if not off_policy:
        return float(run.engine.value(np.array([[1.0, 0.5]], np.float32))[0])
    return float(np.mean([event.metrics["q_value"] for event in learned[-3:]]))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_value_of_a_reward_of_1_that_a_clock_cuts_off_is_that_of_a_world_that_never_ends(name, engine_name):
    assert found_value(name, engine_name) == pytest.approx(1 / (1 - GAMMA), rel=0.05)


@pytest.mark.parametrize("name", ONE_STEP)
def test_recorded_as_the_end_of_the_world_the_same_clock_gives_another_value(name, engine_name):
    # Over one step: 1 / (1 - 0.8 gamma). PPO regresses on returns of several steps: between that and the first's.
    assert found_value(name, engine_name, mistaken=True) < 0.8 / (1 - GAMMA)


@pytest.mark.parametrize(
    ("name", "continuous"),
    [
        *((name, False) for name in VALUES),
        *(("ppo", False), ("ppo", True), ("sac", True), ("a2c", False), ("a2c", True)),
        *(("ppo-penalty", False), ("appo", True), ("impala", False), ("reinforce", False), ("reinforce", True)),
    ],
)
def test_delayed_rewards_for_what_the_observation_asks_for_are_found_and_valued(name, continuous, engine_name):
    run, _ = trained(name, engine_name, partial(Sides, continuous), 3_000 if name in OFF_POLICY_NAMES else 8_000)
    assert run.evaluate(episodes=20).mean == pytest.approx(1.0, abs=0.03)
    observation = np.array([[side, time] for time in (0, 1) for side in (-1, 1)], np.float32)
    best = [GAMMA, GAMMA, 1, 1]
    if name in VALUES:
        np.testing.assert_allclose(run.engine.act(observation).max(1), best, atol=0.05)
    elif name != "sac":
        np.testing.assert_allclose(run.engine.value(observation), best, atol=0.15)  # of a policy that still explores


@pytest.mark.parametrize("continuous", [False, True])
def test_evolution_finds_what_the_observation_asks_for_from_returns_alone(continuous, engine_name):
    config = ESConfig(network=Mlp((8,), "tanh"), learning_rate=Linear(0.1, 0.0), deviation=0.2)
    run = Run("es", partial(Sides, continuous), config=config, engine=engine_name, environments=16, seed=2)
    with run:
        before = run.evaluate(episodes=20).mean
        run.train(6_000)
        after = run.evaluate(episodes=20).mean
    assert before < 0.9
    assert after == pytest.approx(1.0, abs=0.03)
