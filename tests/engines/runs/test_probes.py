"""Every algorithm finds the values and the policy of environments where both are known."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from probes import PROBES, Chance, Corridor, Forever, Sides

import etude
from etude import Linear, Mlp, Recurrent
from etude.algorithms.critics import CriticEnsemble, DiscreteTwinCritic
from etude.base.events import Learned
from etude.engines.numpy import NumpyEngine

GAMMA = 0.8
NETWORK = Mlp((16,), "tanh")
OFF_POLICY = {
    "network": NETWORK, "gamma": GAMMA, "learning_rate": 1e-2, "batch_size": 32, "learning_starts": 200,
    "train_every": 100, "gradient_steps": 100,
}  # fmt: skip
GREEDY = {**OFF_POLICY, "target_update_every": 20, "epsilon": 0.5}
SINGLE = {**GREEDY, "n_step": 1}
SUPPORT = {"atoms": 15, "v_min": -2.0, "v_max": 6.0}
SOFT = {**OFF_POLICY, "tau": 0.05, "temperature": 1e-3, "learn_temperature": False}
NOISY = {**OFF_POLICY, "tau": 0.05, "exploration_noise": 0.5, "random_steps": 200}
ON_POLICY = {
    "network": NETWORK,
    "gamma": GAMMA,
    "learning_rate": 1e-2,
    "initial_log_std": -1.0,
    "normalize_reward": False,
}
# Gradients that are three updates old swing around what they seek, at a constant rate without an end.
SLOWING = {**ON_POLICY, "learning_rate": Linear(1e-2, 0.0)}
EPOCHS = {"rollout_length": 50, "minibatch_size": 100, "epochs": 10}


@dataclass(frozen=True)
class Learner:
    """An algorithm that is to find values: after `steps` environment steps, to within `exactly`, a share. `Sides` needs
    fewer, `steps_on_sides`, and `Forever`, where nothing is to be explored, a third of them."""

    algorithm: str
    config: Any
    continuous: bool = False
    steps: int = 3_000
    steps_on_sides: int = 1_000
    exactly: float = 0.05
    environments: int = 4

    def steps_on(self, probe: Any) -> int:
        return {Sides: self.steps_on_sides, Forever: self.steps // 3}.get(probe, self.steps)


def continuous_control(algorithm: str, config: Any) -> Learner:
    """Off-policy learning of actions that are numbers."""
    return Learner(algorithm, config, continuous=True, steps_on_sides=1_500)


def on_policy(algorithm: str, config: Any, continuous: bool = False) -> Learner:
    """The values are those of a policy that still explores."""
    return Learner(algorithm, config, continuous, steps=8_000, steps_on_sides=2_000, exactly=0.15)


LEARNERS = {
    "dqn": Learner("dqn", etude.algorithms.DQNConfig(**SINGLE)),
    "dqn, 3 steps": Learner("dqn", etude.algorithms.DQNConfig(**GREEDY, n_step=3)),
    "qr_dqn, all parts": Learner(
        "qr_dqn",
        etude.algorithms.QRDQNConfig(
            **{**SINGLE, "network": Mlp((16,), dueling=True, noisy=0.1), "quantiles": 5, "priority_exponent": 0.6}
        ),
    ),
    "dqn, priorities": Learner("dqn", etude.algorithms.DQNConfig(**SINGLE, priority_exponent=0.6)),
    "c51": Learner("c51", etude.algorithms.C51Config(**SINGLE, **SUPPORT)),
    "qr_dqn": Learner("qr_dqn", etude.algorithms.QRDQNConfig(**SINGLE, quantiles=5)),
    "rainbow": Learner(
        "rainbow",
        etude.algorithms.RainbowConfig(
            **{**OFF_POLICY, **SUPPORT, "network": Mlp((16,), dueling=True, noisy=0.5), "target_update_every": 20},
            n_step=1,  # over several, values are those of a policy that explores
        ),
        exactly=0.1,
    ),
    "apex_dqn": Learner(
        "apex_dqn",
        etude.algorithms.ApexDQNConfig(
            **{**OFF_POLICY, "network": Mlp((16,), dueling=True), "target_update_every": 20, "n_step": 1}
        ),
    ),
    "apex_ddpg": continuous_control(
        "apex_ddpg", etude.algorithms.ApexDDPGConfig(**NOISY, exploration_exponent=1.0, n_step=1)
    ),
    "r2d2": Learner(
        "r2d2",
        etude.algorithms.R2D2Config(
            **{**GREEDY, "network": Recurrent(Mlp((8,)), 8), "gradient_steps": 40, "target_update_every": 10},
            n_step=3,
            sequence_length=4,
            burn_in=1,
        ),
    ),
    "discrete_sac": Learner("discrete_sac", etude.algorithms.DiscreteSACConfig(**SOFT)),
    "ddpg": continuous_control("ddpg", etude.algorithms.DDPGConfig(**NOISY)),
    "td3": continuous_control("td3", etude.algorithms.TD3Config(**NOISY, target_noise=0.05)),
    "sac": continuous_control("sac", etude.algorithms.SACConfig(**SOFT)),
    "sac, 3 steps": continuous_control("sac", etude.algorithms.SACConfig(**SOFT, n_step=3)),
    "mpo": continuous_control(
        "mpo", etude.algorithms.MPOConfig(**OFF_POLICY, target_update_every=20, epsilon_mean=0.1, epsilon_std=1e-2)
    ),
    "mpo, choices": Learner("mpo", etude.algorithms.MPOConfig(**OFF_POLICY, target_update_every=20, epsilon_mean=0.1)),
    "v_mpo": on_policy(
        "v_mpo", etude.algorithms.VMPOConfig(**ON_POLICY, rollout_length=50, epsilon=0.5, epsilon_mean=0.05)
    ),
    "reinforce": on_policy("reinforce", etude.algorithms.ReinforceConfig(**ON_POLICY)),
    "a2c": on_policy("a2c", etude.algorithms.A2CConfig(**ON_POLICY, entropy_coefficient=0.0)),
    "a2c, numbers": on_policy("a2c", etude.algorithms.A2CConfig(**ON_POLICY, entropy_coefficient=0.0), continuous=True),
    "a3c": on_policy("a3c", etude.algorithms.A3CConfig(**SLOWING, entropy_coefficient=0.0)),
    "a3c, numbers": on_policy("a3c", etude.algorithms.A3CConfig(**SLOWING, entropy_coefficient=0.0), continuous=True),
    "ppo": on_policy("ppo", etude.algorithms.PPOConfig(**ON_POLICY, **EPOCHS)),
    "ppo, numbers": on_policy("ppo", etude.algorithms.PPOConfig(**ON_POLICY, **EPOCHS), continuous=True),
    "ppo, penalty": on_policy(
        "ppo",
        etude.algorithms.PPOConfig(
            **ON_POLICY, **EPOCHS, objective="penalty", normalize_value=True, value_clip_range=0.5
        ),
    ),
    "pqn": Learner(
        "pqn",
        etude.algorithms.PQNConfig(
            Mlp((16,), layer_norm=True), learning_rate=1e-2, gamma=GAMMA, gae_lambda=0.0, epsilon=0.5, **EPOCHS
        ),
        steps=12_000,
        steps_on_sides=4_000,
    ),
    "trpo": on_policy(
        "trpo", etude.algorithms.TRPOConfig(**ON_POLICY, normalize_observation=False, rollout_length=50, max_kl=0.05)
    ),
    "recurrent_ppo": on_policy(
        "recurrent_ppo",
        etude.algorithms.RecurrentPPOConfig(
            **{**ON_POLICY, **EPOCHS, "network": Recurrent(Mlp((16,), "tanh"), 8)}, sequence_length=10
        ),
    ),
    "impala": on_policy(
        "impala", etude.algorithms.IMPALAConfig(**ON_POLICY, entropy_coefficient=0.0, rollout_length=5)
    ),
    "appo": on_policy(
        "appo",
        etude.algorithms.APPOConfig(
            **ON_POLICY, entropy_coefficient=0.0, rollout_length=25, minibatch_size=50, epochs=4
        ),
    ),
    "es": Learner(
        "es",
        etude.algorithms.ESConfig(network=Mlp((8,), "tanh"), learning_rate=Linear(0.1, 0.0), sigma=0.2),
        steps=6_000,
        steps_on_sides=3_000,
        environments=16,
    ),
    "ars": Learner(
        "ars",
        etude.algorithms.ARSConfig(learning_rate=Linear(0.2, 0.0), sigma=0.2, top_directions=4),
        steps=6_000,
        steps_on_sides=3_000,
        environments=16,
    ),
}
SEVERAL_STEPS = ("dqn, 3 steps", "sac, 3 steps")  # uncorrected returns are those of the policy that explores
# ES has no critic; the values of agents with a memory belong to that: see test_r2d2 and test_recurrent_ppo
WITHOUT_VALUES = ("es", "ars", "r2d2", "recurrent_ppo")
# One of each kind, as the parity test holds the arithmetic of all equal.
TRIED = ("dqn", "r2d2", "td3", "sac", "ppo", "impala", "es", "dqn, priorities", "a3c", "recurrent_ppo", "trpo", "appo")
# What comes after a time limit is the business of the view that makes batches: one algorithm for each.
ONE_OF_EACH_VIEW = ("dqn", "dqn, 3 steps", "reinforce", "ppo", "pqn", "impala")
ONE_STEP = (
    "dqn",
    "c51",
    "qr_dqn",
    "sac",
    "ddpg",
    "td3",
    "reinforce",
    "a2c",
    "ppo",
    "ppo, penalty",
    "pqn",
    "impala",
    "appo",
)
# Where plain exploration does not lead out of the corridor in time: policies that are nearly deterministic from the
# start, and rewards that only whole episodes are told of.
NOT_THROUGH_THE_CORRIDOR = ("a2c, numbers", "ppo, numbers", "es", "ars")


def trained(learner: Learner, engine_name: str, probe: Any, **options: Any) -> etude.Run:
    env, settings = partial(probe, learner.continuous, **options), {"engine": engine_name, "seed": 1}
    run = etude.Run(learner.algorithm, env, config=learner.config, environments=learner.environments, **settings)
    with run:
        run.train(learner.steps_on(probe))
    return run


def value(run: etude.Run, observation: np.ndarray) -> np.ndarray:
    """What the agent takes the values of observations [N, 2] to be, when it acts as it thinks best."""
    agent = NumpyEngine(run.agent, run.engine.spaces)
    agent.load(run.engine.weights())
    if run.agent.learns_from in ("advantages", "gradients", "unrolls", "episodes"):
        return agent.value(observation)
    if run.agent.acts_by == "values":
        return agent.act(observation).max(1)
    bound, best = agent.layout.bind(agent.weights()), agent.act(observation).mode()
    if isinstance(bound.critic, CriticEnsemble | DiscreteTwinCritic):
        return bound.critic(observation, best).mean(0)
    if isinstance(run.engine.spaces.action, gym.spaces.Discrete):
        return np.take_along_axis(bound.critic(observation), best[:, None], 1)[:, 0]
    return bound.critic((observation, best))[:, 0]


def mark_of(probe, name):
    """Which engine runs a learner on a probe; what is not needed to notice a mistake is run with --whole."""
    tried = {Sides: (*ONE_OF_EACH_VIEW, *TRIED), Forever: ONE_OF_EACH_VIEW}.get(probe, ())
    if probe is Sides and name == "ppo":
        return pytest.mark.every_engine
    return pytest.mark.one_engine("jax") if name in tried else pytest.mark.long


EVERY_PAIR = [
    pytest.param(name, probe, marks=mark_of(probe, name), id=f"{name}-{probe.__name__}")
    for name, probe in itertools.product(LEARNERS, PROBES)
]


class TwoOfTwelve(gym.Env):
    """Four steps, in each of which two of twelve actions are allowed; the lower one earns 1."""

    observation_space = gym.spaces.Dict(
        observation=gym.spaces.MultiBinary(12), action_mask=gym.spaces.MultiBinary(12)
    )  # what is seen is the mask
    action_space = gym.spaces.Discrete(12)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.observe(), {}

    def step(self, action):
        assert self.mask[action]
        reward, self.time = float(action == self.mask.argmax()), self.time + 1
        return self.observe(), reward, self.time == 4, False, {}

    def observe(self):
        self.mask = np.zeros(12, np.int8)
        self.mask[self.np_random.choice(12, 2, replace=False)] = 1
        return {"observation": self.mask, "action_mask": self.mask}


@pytest.mark.one_engine("jax")
def test_discrete_sac_learns_where_two_of_twelve_actions_are_allowed(engine_name):
    settings = {**OFF_POLICY, "network": Mlp((32,)), "gamma": 0.5, "batch_size": 64, "temperature": 0.5}
    config = etude.algorithms.DiscreteSACConfig(**settings, tau=0.05)
    with etude.Run("discrete_sac", TwoOfTwelve, config=config, engine=engine_name, environments=4, seed=1) as run:
        learned = [event for event in run.steps(800) if isinstance(event, Learned)]
        assert run.evaluate(episodes=50).mean > 3.8
    assert learned[-1].metrics["alpha"] < 1  # 286 where forbidden actions count for the target
    assert learned[-1].metrics["policy_entropy"] == pytest.approx(0.6 * np.log(2), abs=0.1)


def test_the_best_number_is_found_beside_the_best_choice(engine_name):
    with etude.Run("ppo", Aimed, config=LEARNERS["ppo"].config, engine=engine_name, environments=4, seed=1) as run:
        run.train(3_000)
        assert run.evaluate(episodes=4).mean == pytest.approx(2.0, abs=0.05)


class Aimed(gym.Env):
    """One step: 1 minus the squared distance of a number from 3, and 1 for the last of three choices."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Dict({"which": gym.spaces.Discrete(3), "far": gym.spaces.Box(0, 4, (), np.float32)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action):
        reward = 1 - (float(action["far"]) - 3) ** 2 + (action["which"] == 2)
        return np.ones(1, np.float32), float(reward), True, False, {}


@pytest.mark.parametrize(("name", "probe"), EVERY_PAIR)
def test_values_and_policy_are_found(name, probe, engine_name):
    if probe is Corridor and name in NOT_THROUGH_THE_CORRIDOR:
        pytest.skip("explores too little to come to the end of the corridor")
    learner = LEARNERS[name]
    if name in WITHOUT_VALUES and probe.best is None:
        pytest.skip("nothing but values is asked for, and it tells none")
    if name in SEVERAL_STEPS and probe.best is not None:
        pytest.skip("the values are those of a policy that explores")
    run = trained(learner, engine_name, probe)
    observation, expected = map(np.float32, zip(*probe.known(GAMMA), strict=True))
    if name not in WITHOUT_VALUES:
        slack = 0.25 if probe is Chance else learner.exactly * max(1.0, expected.max())
        np.testing.assert_allclose(value(run, observation), expected, atol=slack)
    if probe.best is not None:
        assert run.evaluate(episodes=20).mean == pytest.approx(probe.best, abs=0.05)


@pytest.mark.long_but("dqn", "ppo")
@pytest.mark.parametrize("name", [pytest.param(n, marks=mark_of(Forever, n)) for n in ONE_STEP])
def test_a_clock_that_is_told_as_the_end_of_the_world_gives_another_value(name, engine_name):
    # Over one step: 1 / (1 - 0.8 gamma). Where returns of several steps count: between that and the first's.
    learner = LEARNERS[name]
    run = trained(learner, engine_name, Forever, mistaken=True)
    assert value(run, np.array([[0, 1]], np.float32))[0] < 0.8 / (1 - GAMMA)
