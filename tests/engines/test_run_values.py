"""Runs of every algorithm on environments whose values are known."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from run_probes import Forever, Sides

from etude import DQNConfig, Mlp, PPOConfig, R2D2Config, Recurrent, Run, SACConfig
from etude.events import Learned

GAMMA = 0.8
OFF_POLICY = {"network": Mlp((16,)), "gamma": GAMMA, "learning_rate": 1e-2, "batch_size": 32, "warmup": 200}
OFTEN = {"learn_every": 100, "updates": 100}
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
    "ppo": PPOConfig(network=Mlp((16,), "tanh"), gamma=GAMMA, learning_rate=1e-2, rollout=50, minibatch=100, epochs=10),
}
ONE_STEP = ("dqn", "sac", "ppo")


def trained(name, engine_name, env, steps, environments=4):
    run = Run(name.split("-")[0], env, config=CONFIGS[name], engine=engine_name, environments=environments, seed=1)
    with run:
        learned = [event for event in run.steps(steps) if isinstance(event, Learned)]
    return run, learned


def found_value(name, engine_name, mistaken=False):
    """What a trained agent takes the value of `Forever` to be."""
    env = partial(Forever, name.startswith("sac"), mistaken)
    run, learned = trained(name, engine_name, env, 2_000 if name != "ppo" else 6_000)
    if name == "ppo":
        return float(run.engine.value(np.array([[1.0, 0.5]], np.float32))[0])
    return float(np.mean([event.metrics["q_value"] for event in learned[-3:]]))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_value_of_a_reward_of_1_that_a_clock_cuts_off_is_that_of_a_world_that_never_ends(name, engine_name):
    assert found_value(name, engine_name) == pytest.approx(1 / (1 - GAMMA), rel=0.05)


@pytest.mark.parametrize("name", ONE_STEP)
def test_recorded_as_the_end_of_the_world_the_same_clock_gives_another_value(name, engine_name):
    # Over one step: 1 / (1 - 0.8 gamma). PPO regresses on returns of several steps: between that and the first's.
    assert found_value(name, engine_name, mistaken=True) < 0.8 / (1 - GAMMA)


@pytest.mark.parametrize(("name", "continuous"), [("dqn", False), ("ppo", False), ("ppo", True), ("sac", True)])
def test_delayed_rewards_for_what_the_observation_asks_for_are_found_and_valued(name, continuous, engine_name):
    run, _ = trained(name, engine_name, partial(Sides, continuous), 3_000 if name != "ppo" else 8_000)
    assert run.evaluate(episodes=20).mean == pytest.approx(1.0, abs=0.03)
    observation = np.array([[side, time] for time in (0, 1) for side in (-1, 1)], np.float32)
    best = [GAMMA, GAMMA, 1, 1]
    if name == "dqn":
        np.testing.assert_allclose(run.engine.act(observation).max(1), best, atol=0.05)
    elif name == "ppo":
        np.testing.assert_allclose(run.engine.value(observation), best, atol=0.15)  # of a policy that still explores
