"""Small runs of every algorithm, and how two of them are compared."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from etude import Linear, Mlp, Recurrent, Run
from etude.algorithms import (
    ALGORITHMS,
    A2CConfig,
    A3CConfig,
    ApexDDPGConfig,
    APPOConfig,
    DDPGConfig,
    DQNConfig,
    DreamerV3Config,
    ESConfig,
    IMPALAConfig,
    LinUCBConfig,
    MADDPGConfig,
    MPOConfig,
    NeuralTSConfig,
    PETSConfig,
    PPOConfig,
    PQNConfig,
    R2D2Config,
    RainbowConfig,
    RecurrentPPOConfig,
    ReinforceConfig,
    SACConfig,
    TDMPC2Config,
    TRPOConfig,
    VMPOConfig,
)
from etude.base.data import Episode
from etude.base.events import Collected, Evaluated, Event, Learned
from etude.base.spaces import Box, Spaces
from etude.offline import Dataset
from etude.presets import POINT

RATE = Linear(1e-2, 1e-4)
TINY = Mlp((8,))
FAST = {
    "network": TINY,
    "learning_rate": RATE,
    "batch_size": 8,
    "learning_starts": 24,
    "train_every": 8,
    "gradient_steps": 2,
}
NORMALISED = {"normalize_observation": True, "normalize_reward": True}
DQN_TINY = DQNConfig(**FAST, n_step=1, target_update_every=7, buffer_size=200)
SEQUENCES = {"network": Recurrent(Mlp((8,)), 4), "sequence_length": 6, "burn_in": 2}
R2D2_TINY = R2D2Config(**FAST | SEQUENCES, target_update_every=7, buffer_size=200, n_step=3)
DREAMER_V3_TINY = DreamerV3Config(
    **FAST | {"encoder": TINY, "dynamics": TINY, "units": 8, "latents": 2, "classes": 4, "bins": 5, "buffer_size": 200},
    sequence_length=6,
    horizon=4,
)
TD_MPC2_TINY = TDMPC2Config(
    **FAST | {"encoder": TINY, "latent_size": 8, "sequence_length": 2, "n_critics": 2, "bins": 5, "buffer_size": 200},
    n_plans=8,
    n_policy_plans=2,
    n_elites=4,
    iterations=2,
)
PETS_TINY = PETSConfig(**FAST, buffer_size=200, n_models=2, horizon=3, n_plans=8, n_elites=4, iterations=2)
PPO_TINY = PPOConfig(network=TINY, learning_rate=RATE, rollout_length=16, minibatch_size=16, epochs=2)
PQN_TINY = PQNConfig(network=TINY, learning_rate=RATE, rollout_length=16, minibatch_size=16, epochs=2)
LIN_UCB_TINY = LinUCBConfig(batch_size=2, train_every=8, gradient_steps=4, buffer_size=100)
NEURAL_TS_TINY = NeuralTSConfig(network=TINY, learning_rate=RATE, batch_size=8, train_every=2, buffer_size=100)
TRPO_TINY = TRPOConfig(network=TINY, learning_rate=RATE, rollout_length=16, epochs=3)
V_MPO_TINY = VMPOConfig(network=TINY, learning_rate=RATE, rollout_length=16, epochs=3)
RECURRENT_PPO_TINY = RecurrentPPOConfig(
    network=Recurrent(Mlp((8,)), 4),
    learning_rate=RATE,
    rollout_length=16,
    sequence_length=8,
    minibatch_size=32,
    epochs=2,
)
RAINBOW_TINY = RainbowConfig(
    **{**FAST, "network": Mlp((8,), dueling=True, noisy=0.5)}, target_update_every=7, buffer_size=200, atoms=11
)
ADAPTIVE = {"objective": "penalty", "normalize_value": True, "value_clip_range": 0.2}
APPO_TINY = APPOConfig(network=TINY, learning_rate=RATE, rollout_length=8, minibatch_size=16, target_update_every=3)
ES_TINY = ESConfig(network=TINY, learning_rate=RATE, sigma=0.1, normalize_observation=True)
IMPALA_TINY = IMPALAConfig(network=TINY, learning_rate=RATE, rollout_length=8)
A2C_TINY = A2CConfig(network=TINY, learning_rate=RATE)
A3C_TINY = A3CConfig(network=TINY, learning_rate=RATE, entropy_coefficient=RATE)
REINFORCE_TINY = ReinforceConfig(network=TINY, learning_rate=RATE)
APEX_DDPG_TINY = ApexDDPGConfig(**FAST, buffer_size=200, random_steps=24)
SAC_TINY = SACConfig(**FAST, buffer_size=200)
MPO_TINY = MPOConfig(**FAST, buffer_size=200, samples=3, target_update_every=7)
SAC_GSDE_TINY = dataclasses.replace(SAC_TINY, gsde=True)
PPO_GSDE_TINY = dataclasses.replace(PPO_TINY, gsde=True, gsde_sample_every=7)
HINDSIGHT = {"hindsight": "future", "n_step": 2, "priority_exponent": 0.6}
DDPG_HINDSIGHT_TINY = DDPGConfig(**FAST, **HINDSIGHT, **NORMALISED, buffer_size=200, random_steps=24)

MIXED_TINY = dataclasses.replace(DQN_TINY, n_step=2, priority_exponent=0.6, **NORMALISED)


def recorded(env: str, episodes: int = 6) -> Dataset:
    """Episodes of 9 random observations each, which no environment returned."""
    made = gym.make(env)
    source, rng = Spaces(made.observation_space, made.action_space), np.random.default_rng(0)
    made.action_space.seed(0)

    def episode(number: int) -> Episode:
        observation = rng.uniform(-1, 1, (10, *made.observation_space.shape)).astype(np.float32)
        action = np.stack([made.action_space.sample() for _ in range(9)])
        if isinstance(made.action_space, Box):
            action = action / made.action_space.high
        return Episode(observation, action, rng.normal(size=9).astype(np.float32), number % 2 == 0, number % 2 == 1)

    return Dataset(tuple(map(episode, range(episodes))), source)


CART, PENDULUM = recorded("CartPole-v1"), recorded("Pendulum-v1")
MIXED = {"data": [(CART, 0.6), ("sampler", 0.4)]}


@dataclass(frozen=True)
class Case:
    """One algorithm on one environment."""

    name: str
    env: str
    config: Any
    steps: int = 200
    changed: dict[str, Any] = field(default_factory=dict)  # settings that are others in the resumed run
    given: dict[str, Any] = field(default_factory=dict)  # arguments of the run besides

    @property
    def algorithm(self) -> str:
        return next(name for name, (_, config) in ALGORITHMS.items() if config is type(self.config))

    def run(self, engine: str, **more: Any) -> Run:
        settings = {"environments": 4, "seed": 3, "engine": engine, **self.given, **more}
        return Run(self.algorithm, self.env, config=self.config, **settings)


# One of each way in which workers collect goes on with two of them, the others with one.
CASES = [
    Case("dqn", "CartPole-v1", dataclasses.replace(DQN_TINY, n_step=3, **NORMALISED), changed={"workers": 2}),
    Case("dqn-frames", "CartPole-v1", DQN_TINY, changed={"workers": 2}, given={"frame_stack": 3}),
    Case("ppo", "CartPole-v1", dataclasses.replace(PPO_TINY, **NORMALISED, **ADAPTIVE), changed={"workers": 2}),
    Case("pqn", "CartPole-v1", dataclasses.replace(PQN_TINY, **NORMALISED), changed={"workers": 2}),
    Case("trpo", "CartPole-v1", dataclasses.replace(TRPO_TINY, **NORMALISED), changed={"workers": 2}),
    Case("v_mpo", "CartPole-v1", dataclasses.replace(V_MPO_TINY, **NORMALISED), changed={"workers": 2}),
    Case("mpo", "Pendulum-v1", dataclasses.replace(MPO_TINY, **NORMALISED), changed={"workers": 1}),
    Case("lin_ucb", "CartPole-v1", LIN_UCB_TINY, changed={"workers": 2}),
    Case("neural_ts", "CartPole-v1", dataclasses.replace(NEURAL_TS_TINY, **NORMALISED), changed={"workers": 1}),
    Case("neural_ts, recorded", "CartPole-v1", NEURAL_TS_TINY, 400, given={"data": CART, "environments": 1}),
    Case("sac", "Pendulum-v1", dataclasses.replace(SAC_TINY, **NORMALISED), changed={"workers": 1}),
    Case("sac-gsde", "Pendulum-v1", SAC_GSDE_TINY, changed={"workers": 1}),
    Case("ppo-gsde", "Pendulum-v1", PPO_GSDE_TINY, changed={"workers": 1}),
    Case("rainbow", "CartPole-v1", dataclasses.replace(RAINBOW_TINY, actor_priorities=True), changed={"workers": 2}),
    Case("r2d2", "CartPole-v1", dataclasses.replace(R2D2_TINY, **NORMALISED), changed={"workers": 2}),
    Case("dreamer_v3", "CartPole-v1", dataclasses.replace(DREAMER_V3_TINY, **NORMALISED), changed={"workers": 2}),
    Case("td_mpc2", "Pendulum-v1", dataclasses.replace(TD_MPC2_TINY, **NORMALISED), changed={"workers": 1}),
    Case("pets", "Pendulum-v1", PETS_TINY, changed={"workers": 1}),
    Case("a2c", "CartPole-v1", A2C_TINY, changed={"workers": 1}),
    Case("a3c", "CartPole-v1", A3C_TINY, changed={"workers": 2}),
    Case("apex_ddpg", "Pendulum-v1", APEX_DDPG_TINY, changed={"workers": 1}),
    Case("ddpg-hindsight", POINT, DDPG_HINDSIGHT_TINY, changed={"workers": 1}),
    Case("appo", "CartPole-v1", APPO_TINY, changed={"workers": 1}),
    Case("es", "CartPole-v1", ES_TINY, changed={"workers": 2}),
    Case("impala", "CartPole-v1", dataclasses.replace(IMPALA_TINY, **NORMALISED), changed={"workers": 1}),
    Case("recurrent_ppo", "CartPole-v1", dataclasses.replace(RECURRENT_PPO_TINY, **NORMALISED), changed={"workers": 1}),
    Case("reinforce", "CartPole-v1", dataclasses.replace(REINFORCE_TINY, **NORMALISED), changed={"workers": 1}),
    Case("dqn-box2d", "LunarLander-v3", DQN_TINY, steps=600),
    Case("ppo-mujoco", "HalfCheetah-v5", PPO_TINY),
    Case(
        "dqn-in-turns",
        "pettingzoo.classic:tictactoe_v3",
        dataclasses.replace(DQN_TINY, n_step=2, priority_exponent=0.6, **NORMALISED),
        changed={"workers": 2},
    ),
    Case("ppo-several", "mpe2:simple_spread_v3", dataclasses.replace(PPO_TINY, **NORMALISED), changed={"workers": 2}),
    Case("maddpg", "mpe2:simple_speaker_listener_v4", MADDPGConfig(**FAST, buffer_size=200), changed={"workers": 1}),
    Case("dqn-data", "CartPole-v1", MIXED_TINY, changed={"workers": 2}, given=MIXED),
    Case("sac-mujoco", "HalfCheetah-v5", dataclasses.replace(SAC_TINY, n_step=2)),
]


def measured(events: list[Event]) -> list[tuple]:
    """All numbers that a run told but the times."""
    found: list[tuple] = []
    for event in events:
        if isinstance(event, Collected):
            found.extend((event.step, *episode) for episode in event.episodes)
        elif isinstance(event, Learned):
            found.append((event.step, event.gradient_steps, event.losses, event.metrics))
        elif isinstance(event, Evaluated):
            found.append((event.step, event.returns, event.lengths, event.best))
    return found


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Where two states differ, bit for bit; the setup and the time that passed are nobody's business."""
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return [f"{path}: {sorted(one)} and {sorted(other)}"]
        keys = [key for key in one if key not in ("seconds", "setup")]
        return [found for key in keys for found in differences(one[key], other[key], f"{path}.{key}")]
    if isinstance(one, list | tuple):
        if len(one) != len(other):
            return [f"{path}: {len(one)} and {len(other)}"]
        return [found for i, part in enumerate(one) for found in differences(part, other[i], f"{path}.{i}")]
    if isinstance(one, np.ndarray):
        same = one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    else:
        same = one == other
    return [] if same else [f"{path}: {one} and {other}"]
