"""Stable-Baselines3, its contrib and SBX, measured in an environment of their own (requirements-peers.txt).

The other scripts run this one: `PYTHON peers.py run sbx dqn 50000 1`; also window, learn, rollouts, replay, acting and
versions. Prints JSON.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from typing import Any

from measure import Window, answer, seconds_per_call, versions

MODULES = {"sb3": "stable_baselines3", "sb3_contrib": "sb3_contrib", "sbx": "sbx"}
CLASSES = {"qr_dqn": "QRDQN", "recurrent_ppo": "RecurrentPPO", "crossq": "CrossQ"}  # else: the name in capitals
_DQN = {
    "learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000, "learning_starts": 1_000, "gamma": 0.99,
    "target_update_interval": 10, "train_freq": 256, "gradient_steps": 128, "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
}  # fmt: skip
_PPO = {
    "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20, "ent_coef": 0.0,
    "learning_rate": lambda left: 1e-3 * left, "clip_range": lambda left: 0.2 * left,
}  # fmt: skip
_TD3 = {
    "learning_rate": 1e-3, "gamma": 0.98, "tau": 0.005, "batch_size": 256, "buffer_size": 200_000,
    "learning_starts": 10_000, "train_freq": 1, "gradient_steps": 1, "policy_kwargs": {"net_arch": [400, 300]},
}  # fmt: skip
# rl-baselines3-zoo: environment, number of environments, hyperparameters. A2C has the optimizer and the falling rate of
# etude's preset; recurrent PPO has the zoo's settings for CartPole without velocities, and fewer units; TRPO's critic
# takes as many steps as etude's, each on the whole rollout; ARS tries all directions in turn in one environment.
ZOO: dict[str, tuple[str, int, dict[str, Any]]] = {
    "dqn": ("CartPole-v1", 1, {**_DQN, "policy_kwargs": {"net_arch": [256, 256]}}),
    "qr_dqn": ("CartPole-v1", 1, {**_DQN, "policy_kwargs": {"net_arch": [256, 256], "n_quantiles": 10}}),
    "a2c": (
        "CartPole-v1", 8, {"ent_coef": 0.0, "use_rms_prop": False, "learning_rate": lambda left: 7e-4 * left},
    ),
    "ppo": ("CartPole-v1", 8, _PPO),
    "recurrent_ppo": ("CartPole-v1", 8, {**_PPO, "policy_kwargs": {"lstm_hidden_size": 64, "net_arch": [64]}}),
    "ddpg": ("Pendulum-v1", 1, _TD3),
    "td3": ("Pendulum-v1", 1, _TD3),
    "sac": ("Pendulum-v1", 1, {"learning_rate": 1e-3}),
    "tqc": ("Pendulum-v1", 1, {"learning_rate": 1e-3}),
    "crossq": ("Pendulum-v1", 1, {"policy_delay": 2, "policy_kwargs": {"net_arch": [256, 256]}}),
    "trpo": (
        "CartPole-v1", 2,
        {"n_steps": 512, "batch_size": 1_024, "n_critic_updates": 40, "gae_lambda": 0.98, "cg_damping": 1e-3},
    ),
    "ars": ("CartPole-v1", 1, {"n_delta": 8}),
}  # fmt: skip


def algorithm_of(library: str, algorithm: str) -> Any:
    return getattr(importlib.import_module(MODULES[library]), CLASSES.get(algorithm, algorithm.upper()))


def run(library: str, algorithm: str, steps: str, seed: str) -> dict:
    """A whole run with the zoo's hyperparameters: seconds from making the model to the end of training."""
    began = time.perf_counter()
    kind = algorithm_of(library, algorithm)
    import numpy as np
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.noise import NormalActionNoise

    imported = time.perf_counter()
    env_id, environments, settings = ZOO[algorithm]
    envs = make_vec_env(env_id, environments, seed=int(seed))
    if algorithm in ("ddpg", "td3"):
        size = envs.action_space.shape
        settings = {**settings, "action_noise": NormalActionNoise(np.zeros(size), np.full(size, 0.1))}
    policy = {"recurrent_ppo": "MlpLstmPolicy", "ars": "LinearPolicy"}.get(algorithm, "MlpPolicy")
    model = kind(policy, envs, seed=int(seed), device="cpu", **settings)
    model.learn(int(steps))
    trained = time.perf_counter()
    mean, _ = evaluate_policy(model, make_vec_env(env_id, 1, seed=int(seed) + 1000), 10)
    return {"seconds": trained - imported, "import_seconds": imported - began, "return": float(mean)}


def window(library: str, algorithm: str, seconds: str, seed: str) -> dict:
    """Steps and processor time while a window is open, from the third phase of learning on: see `simultaneous.py`."""
    kind = algorithm_of(library, algorithm)
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    counted = Window(float(seconds))

    class Counting(BaseCallback):
        rollouts = 0

        def _on_rollout_start(self) -> None:
            waits = getattr(self.model, "learning_starts", 0)
            self.rollouts += self.num_timesteps > waits
            if self.rollouts > 3:
                self.over = counted.is_over(self.num_timesteps)

        def _on_step(self) -> bool:
            return not getattr(self, "over", False)

    env_id, environments, settings = ZOO[algorithm]
    envs = make_vec_env(env_id, environments, seed=int(seed))
    model = kind("MlpPolicy", envs, seed=int(seed), device="cpu", **settings)
    model.learn(1_000_000, Counting())
    return counted.found()


def learn(library: str, network: str, repeats: str) -> dict:
    """Seconds per gradient step of `train`, sampling included."""
    import gymnasium as gym
    import numpy as np

    class Noise(gym.Env):
        """Random observations of the size that is asked for."""

        def __init__(self, size: int, action_space: gym.Space):
            self.observation_space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)
            self.action_space = action_space
            self.rng = np.random.default_rng(0)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return self.rng.standard_normal(self.observation_space.shape, np.float32), {}

        def step(self, action: Any) -> Any:
            return self.reset()[0], float(self.rng.standard_normal()), self.rng.random() < 0.02, False, {}

    discrete, box = gym.spaces.Discrete(2), gym.spaces.Box(-1, 1, (6,), np.float32)
    if network == "dqn":
        settings: dict[str, Any] = {"batch_size": 64, "learning_starts": 100, "train_freq": 32, "gradient_steps": 32}
        model = algorithm_of(library, "dqn")(
            "MlpPolicy", Noise(4, discrete), device="cpu", policy_kwargs={"net_arch": [128]}, **settings
        )
        model.learn(512)
        steps, train = 32, lambda: model.train(gradient_steps=32, batch_size=64)
    elif network == "sac":
        model = algorithm_of(library, "sac")("MlpPolicy", Noise(17, box), device="cpu", learning_starts=100)
        model.learn(300)
        steps, train = 8, lambda: model.train(gradient_steps=8, batch_size=256)
    else:
        model = algorithm_of(library, "ppo")("MlpPolicy", Noise(17, box), device="cpu", n_steps=2048)
        model.learn(2048)
        steps, train = 320, model.train
    train()
    return {"seconds": [seconds_per_call(train, 0.5) / steps for _ in range(int(repeats))]}


def rollouts(env_id: str, environments: str, steps: str) -> dict:
    """Environment steps per second with random actions drawn beforehand, and the memory of the processes."""
    import gymnasium as gym
    import numpy as np
    from rollouts import resident, workers_of
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    found: dict[str, Any] = {}
    n = int(environments)
    for name, kind in (("DummyVecEnv", DummyVecEnv), ("SubprocVecEnv", SubprocVecEnv)):
        env = kind([lambda: gym.make(env_id) for _ in range(n)])
        actions = np.stack([[env.action_space.sample() for _ in range(n)] for _ in range(64)])
        env.reset()
        for i in range(64):
            env.step(actions[i])
        began = time.perf_counter()
        for i in range(int(steps) // n):
            env.step(actions[i % 64])
        found[name] = int(steps) // n * n / (time.perf_counter() - began)
        if kind is SubprocVecEnv:
            found["resident"] = [resident(pid) for pid in workers_of(os.getpid())]
        env.close()
    return found


def replay(repeats: str) -> dict:
    """Bytes of a transition, seconds to sample 256 and to add a step of 8 environments (17 observations, 6 actions)."""
    import gymnasium as gym
    import numpy as np
    from stable_baselines3.common.buffers import ReplayBuffer

    rng = np.random.default_rng(0)
    box, actions = gym.spaces.Box(-np.inf, np.inf, (17,), np.float32), gym.spaces.Box(-1, 1, (6,), np.float32)
    buffer = ReplayBuffer(100_000, box, actions, n_envs=8, handle_timeout_termination=True)
    row = rng.standard_normal((8, 17)).astype(np.float32), rng.standard_normal((8, 6)).astype(np.float32)
    done, reward, infos = np.zeros(8, bool), np.ones(8, np.float32), [{} for _ in range(8)]

    def add() -> None:
        buffer.add(row[0], row[0], row[1], reward, done, infos)

    for _ in range(buffer.buffer_size):
        add()
    names = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
    held = sum(getattr(buffer, name).nbytes for name in names)
    frames = ReplayBuffer(1_000, gym.spaces.Box(0, 255, (84, 84, 4), np.uint8), gym.spaces.Discrete(4), n_envs=1)
    return {
        "bytes": held / (buffer.buffer_size * 8),
        "frame_bytes": sum(getattr(frames, name).nbytes for name in names) / frames.buffer_size,
        "sample": [seconds_per_call(lambda: buffer.sample(256)) for _ in range(int(repeats))],
        "add": [seconds_per_call(add) for _ in range(int(repeats))],
    }


def acting(repeats: str) -> dict:
    """Seconds from one observation to an action, `predict` of a 4-128-2 DQN, in both libraries."""
    import gymnasium as gym
    import numpy as np

    observation = np.zeros(4, np.float32)
    found: dict[str, list[float]] = {}
    for library in ("sb3", "sbx"):
        model = algorithm_of(library, "dqn")(
            "MlpPolicy", gym.make("CartPole-v1"), device="cpu", policy_kwargs={"net_arch": [128]}
        )
        model.predict(observation, deterministic=True)
        found[library] = [
            seconds_per_call(lambda model=model: model.predict(observation, deterministic=True))
            for _ in range(int(repeats))
        ]
    return found


if __name__ == "__main__":
    TASKS = {
        "run": run, "window": window, "learn": learn, "rollouts": rollouts, "replay": replay, "acting": acting,
        "versions": versions,
    }  # fmt: skip
    answer(TASKS[sys.argv[1]](*sys.argv[2:]))
