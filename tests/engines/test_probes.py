"""Every algorithm finds the values and the policy of environments where both are known."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from probes import PROBES, Chance, Forever, Sides

import etude
from etude import Mlp
from etude.engines.numpy import NumpyEngine

GAMMA = 0.8
NETWORK = Mlp((16,), "tanh")
OFF_POLICY = {
    "network": NETWORK, "gamma": GAMMA, "learning_rate": 1e-2, "batch_size": 32, "warmup": 200, "learn_every": 100,
    "updates": 100,
}  # fmt: skip
SOFT = {"tau": 0.05, "temperature": 1e-3, "learn_temperature": False}
NOISY = {"tau": 0.05, "exploration_noise": 0.5, "random_steps": 200}


@dataclass(frozen=True)
class Learner:
    """An algorithm that is to find values: after `steps` environment steps, `exactly` so."""

    algorithm: str
    config: Any
    continuous: bool = False
    steps: int = 2_000
    exactly: float = 0.05


LEARNERS = {
    "dqn": Learner("dqn", etude.DQNConfig(**OFF_POLICY, target_every=20, epsilon=0.5)),
    "dqn, 3 steps": Learner("dqn", etude.DQNConfig(**OFF_POLICY, target_every=20, epsilon=0.5, n_step=3)),
    "dqn, priorities": Learner(
        "dqn", etude.DQNConfig(**OFF_POLICY, target_every=20, epsilon=0.5, priority_exponent=0.6)
    ),
    "discrete_sac": Learner("discrete_sac", etude.DiscreteSACConfig(**OFF_POLICY, **SOFT)),
    "ddpg": Learner("ddpg", etude.DDPGConfig(**OFF_POLICY, **NOISY), continuous=True),
    "td3": Learner("td3", etude.TD3Config(**OFF_POLICY, **NOISY, target_noise=0.05), continuous=True),
    "sac": Learner("sac", etude.SACConfig(**OFF_POLICY, **SOFT), continuous=True),
    "ppo": Learner(
        "ppo",
        etude.PPOConfig(network=NETWORK, gamma=GAMMA, learning_rate=1e-2, rollout=50, minibatch=100, epochs=10),
        steps=8_000,
        exactly=0.1,
    ),
}
EVERYWHERE = (Forever, Sides)  # the probes that every engine runs; torch, which compiles nothing, runs all


def trained(learner: Learner, probe: Any, engine_name: str) -> etude.Run:
    env = partial(probe, learner.continuous)
    run = etude.Run(learner.algorithm, env, config=learner.config, engine=engine_name, environments=4, seed=1)
    with run:
        run.train(learner.steps)
    return run


def value(run: etude.Run, observation: np.ndarray) -> np.ndarray:
    """What the agent takes the values of observations [N, 2] to be, when it acts as it thinks best."""
    agent = NumpyEngine(run.agent, run.engine.spaces)
    agent.load(run.engine.weights())
    if run.agent.learns_from == "advantages":
        return agent.value(observation)
    if run.agent.acts_by == "values":
        return agent.act(observation).max(1)
    bound = agent.structure.bind(agent.weights())
    best = agent.act(observation).mode()
    if best.ndim == 1:
        return np.take_along_axis(bound.critic(observation).mean(0), best[:, None], 1)[:, 0]
    q = bound.critic((observation, best))[..., 0]
    return q.mean(0) if q.ndim == 2 else q


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.__name__)
@pytest.mark.parametrize("name", LEARNERS)
def test_values_and_policy_are_found(name, probe, engine_name):
    if engine_name != "torch" and probe not in EVERYWHERE:
        pytest.skip("compiling takes longer than learning: torch runs all probes")
    learner = LEARNERS[name]
    run = trained(learner, probe, engine_name)
    observation, expected = map(np.float32, zip(*probe.known(GAMMA), strict=True))
    slack = 0.25 if probe is Chance else learner.exactly * max(1.0, expected.max())
    np.testing.assert_allclose(value(run, observation), expected, atol=slack)
    if probe.best is not None:
        assert run.evaluate(episodes=20).mean == pytest.approx(probe.best, abs=0.05)
