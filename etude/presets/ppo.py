"""Presets of PPO.

Where the zoo explores with state-dependent noise (gSDE), these presets draw independent Gaussian noise: see `source`.
"""

from __future__ import annotations

from etude.base.schedules import Linear
from etude.networks import Conv, Mlp
from etude.presets.preset import ATARI, ATARI_SOURCE, ZOO, Preset

_NETWORK = Mlp((64, 64), "tanh", "orthogonal")  # of Stable-Baselines3, as are the figures that the zoo leaves out

_LUNAR_LANDER = {
    "network": _NETWORK,
    "learning_rate": 3e-4,
    "gamma": 0.999,
    "gae_lambda": 0.98,
    "clip_range": 0.2,
    "entropy_coefficient": 0.01,
    "rollout_length": 1_024,
    "minibatch_size": 64,
    "epochs": 4,
    "normalize_observation": False,
    "normalize_reward": False,
}

_MUJOCO = Preset(
    config={
        "network": _NETWORK,
        "learning_rate": Linear(3e-4, 0.0),
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "clip_range": 0.2,
        "value_clip_range": 0.2,
        "entropy_coefficient": 0.0,
        "rollout_length": 2_048,
        "minibatch_size": 64,
        "epochs": 10,
        "normalize_observation": True,
        "normalize_reward": True,
    },
    steps=1_000_000,
    environments=1,
    source="Huang et al. 2022, CleanRL, arXiv:2111.08819, ppo_continuous_action.py.",
)

PPO = {
    "CartPole-v1": Preset(
        config={
            "network": _NETWORK,
            "learning_rate": Linear(1e-3, 0.0),
            "gamma": 0.98,
            "gae_lambda": 0.8,
            "clip_range": Linear(0.2, 0.0),
            "entropy_coefficient": 0.0,
            "rollout_length": 64,
            "minibatch_size": 256,
            "epochs": 20,
            "normalize_observation": False,
            "normalize_reward": False,
        },
        steps=100_000,
        environments=8,
        source=ZOO.format("ppo", "CartPole-v1") + ". Twice the rollout (zoo: 32), which keeps what is learned.",
    ),
    "Acrobot-v1": Preset(
        config={
            "network": _NETWORK,
            "learning_rate": 3e-4,
            "gamma": 0.99,
            "gae_lambda": 0.94,
            "clip_range": 0.2,
            "entropy_coefficient": 0.0,
            "rollout_length": 256,
            "minibatch_size": 64,
            "epochs": 4,
            "normalize_observation": True,
            "normalize_reward": True,
        },
        steps=1_000_000,
        environments=16,
        source=ZOO.format("ppo", "Acrobot-v1") + ".",
    ),
    "MountainCar-v0": Preset(
        config={
            "network": _NETWORK,
            "learning_rate": 3e-4,
            "gamma": 0.99,
            "gae_lambda": 0.98,
            "clip_range": 0.2,
            "entropy_coefficient": 0.0,
            "rollout_length": 16,
            "minibatch_size": 64,
            "epochs": 4,
            "normalize_observation": True,
            "normalize_reward": True,
        },
        steps=1_000_000,
        environments=16,
        source=ZOO.format("ppo", "MountainCar-v0") + ".",
    ),
    "MountainCarContinuous-v0": Preset(
        config={
            "network": Mlp((64, 64), "tanh"),
            "learning_rate": 7.77e-5,
            "gamma": 0.9999,
            "gae_lambda": 0.9,
            "clip_range": 0.1,
            "entropy_coefficient": 0.00429,
            "value_coefficient": 0.19,
            "rollout_length": 8,
            "minibatch_size": 8,
            "epochs": 10,
            "max_gradient_norm": 5.0,
            "normalize_observation": True,
            "normalize_reward": True,
        },
        steps=20_000,
        environments=1,
        source=ZOO.format("ppo", "MountainCarContinuous-v0") + ". Without gSDE, and so with a first deviation of 1 "
        "(zoo: log_std_init -3.29). A minibatch of the 8 steps that there are (zoo: 256, which is cut to 8).",
    ),
    "Pendulum-v1": Preset(
        config={
            "network": _NETWORK,
            "learning_rate": 1e-3,
            "gamma": 0.9,
            "gae_lambda": 0.95,
            "clip_range": 0.2,
            "entropy_coefficient": 0.0,
            "rollout_length": 1_024,
            "minibatch_size": 64,
            "epochs": 10,
            "normalize_observation": False,
            "normalize_reward": False,
        },
        steps=100_000,
        environments=4,
        source=ZOO.format("ppo", "Pendulum-v1") + ". Without gSDE.",
    ),
    "LunarLander-v3": Preset(
        config=_LUNAR_LANDER,
        steps=1_000_000,
        environments=16,
        source=ZOO.format("ppo", "LunarLander-v3") + ".",
    ),
    "LunarLanderContinuous-v3": Preset(
        config=_LUNAR_LANDER,
        steps=1_000_000,
        environments=16,
        source=ZOO.format("ppo", "LunarLanderContinuous-v3") + ".",
    ),
    "HalfCheetah-v5": _MUJOCO,
    "Hopper-v5": _MUJOCO,
    "Walker2d-v5": _MUJOCO,
    ATARI: Preset(
        config={
            "network": Conv(),
            "learning_rate": Linear(2.5e-4, 0.0),
            "gamma": 0.99,
            "gae_lambda": 0.95,
            "clip_range": Linear(0.1, 0.0),
            "entropy_coefficient": 0.01,
            "value_coefficient": 0.5,
            "rollout_length": 128,
            "minibatch_size": 256,
            "epochs": 4,
            "normalize_observation": False,
            "normalize_reward": False,
            "clip_reward": True,
        },
        steps=10_000_000,
        environments=8,
        source=ZOO.format("ppo", "atari") + ATARI_SOURCE,
    ),
}
