"""CleanRL's scripts, run as they stand in a clone of github.com/vwxyzjn/cleanrl, in the environment of
requirements-peers.txt. Prints JSON.

`PYTHON peers_cleanrl.py FOLDER dqn 50000 1`. For the scripts that read their options with tyro (version 2.0.0b1). They
are written for Gymnasium 0.29 and an older JAX; what is named otherwise since then is put back before one starts.

Timed like the other libraries: from making the environments, until the script closes them, which is after the last
gradient step; its log for TensorBoard is a part of that. What a script cannot be told, its networks above all, etude
follows: see whole_run.py. The return is the mean of the last ten episodes of training, exploration included.
"""

from __future__ import annotations

import contextlib
import math
import os
import runpy
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import answer

CARTPOLE = {
    "env_id": "CartPole-v1", "learning_rate": 2.5e-4, "gamma": 0.99, "batch_size": 128, "buffer_size": 10_000,
    "learning_starts": 10_000, "train_frequency": 10, "target_network_frequency": 500, "start_e": 1.0, "end_e": 0.05,
    "exploration_fraction": 0.5,
}  # fmt: skip
PENDULUM = {
    "env_id": "Pendulum-v1", "learning_rate": 1e-3, "gamma": 0.98, "tau": 0.005, "batch_size": 256,
    "buffer_size": 200_000, "learning_starts": 10_000, "exploration_noise": 0.1,
}  # fmt: skip
# CartPole with values of actions: the scripts' own hyperparameters. The others: the zoo's, but for the networks.
SCRIPTS: dict[str, tuple[str, dict[str, Any]]] = {
    "dqn": ("dqn_jax", CARTPOLE),
    "c51": ("c51_jax", {**CARTPOLE, "n_atoms": 101, "v_min": -100, "v_max": 100}),
    "ddpg": ("ddpg_continuous_action_jax", {**PENDULUM, "policy_frequency": 1}),
    "td3": ("td3_continuous_action_jax", {**PENDULUM, "policy_frequency": 2, "policy_noise": 0.2, "noise_clip": 0.5}),
    "sac": (
        "sac_continuous_action",
        {
            "env_id": "Pendulum-v1", "policy_lr": 1e-3, "q_lr": 1e-3, "gamma": 0.99, "tau": 0.005, "batch_size": 256,
            "buffer_size": 1_000_000, "learning_starts": 100, "policy_frequency": 1, "target_network_frequency": 1,
        },
    ),
    "ppo": (
        "ppo",
        {
            "env_id": "CartPole-v1", "num_envs": 8, "num_steps": 32, "num_minibatches": 1, "update_epochs": 20,
            "learning_rate": 1e-3, "gamma": 0.98, "gae_lambda": 0.8, "clip_coef": 0.2, "ent_coef": 0.0,
        },
    ),
}  # fmt: skip


def run(folder: str, algorithm: str, steps: str, seed: str) -> dict:
    """A whole run of a script, in this process."""
    script, settings = SCRIPTS[algorithm]
    clone, began = Path(folder).resolve(), time.perf_counter()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the other libraries are told to stay on the CPU
    environments = timed_environments()
    if script.endswith("jax"):
        accept_old_clip()
    options = {**settings, "total_timesteps": steps, "seed": seed}
    sys.argv = [script, *(f"--{name.replace('_', '-')}={value}" for name, value in options.items())]
    sys.path.insert(0, str(clone))
    with tempfile.TemporaryDirectory() as logs, contextlib.chdir(logs):
        runpy.run_path(str(clone / "cleanrl" / f"{script}.py"), run_name="__main__")
    return {
        "seconds": environments.closed - environments.made,
        "import_seconds": environments.made - began,
        "return": statistics.fmean(environments.returns[-10:] or [math.nan]),
    }


def timed_environments() -> Any:
    """Gymnasium's environments that are stepped together, which now note when they are made and closed, and what
    episodes earn; an episode's end and the start of the next are one step, as before Gymnasium 1.0."""
    import gymnasium as gym

    class Environments(gym.vector.SyncVectorEnv):
        made = closed = 0.0
        returns: list[float] = []

        def __init__(self, makers: Any):
            Environments.made = time.perf_counter()
            super().__init__(makers, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)

        def step(self, actions: Any) -> Any:
            *stepped, infos = super().step(actions)
            if "final_info" in infos:
                infos["final_observation"], episodes = infos["final_obs"], infos["final_info"]["episode"]
                infos["final_info"] = [
                    {"episode": {"r": earned, "l": length}} if ended else None
                    for earned, length, ended in zip(episodes["r"], episodes["l"], infos["_final_info"], strict=True)
                ]
                Environments.returns += [float(info["episode"]["r"]) for info in infos["final_info"] if info]
            return *stepped, infos

        def close(self, **how: Any) -> None:
            Environments.closed = Environments.closed or time.perf_counter()
            super().close(**how)

    gym.vector.SyncVectorEnv = Environments  # type: ignore[misc]
    return Environments


def accept_old_clip() -> None:
    """JAX named the bounds of `clip` a_min and a_max."""
    import jax.numpy as jnp

    clip = jnp.clip
    jnp.clip = lambda x, *bounds, **named: clip(x, *bounds, **{k.removeprefix("a_"): v for k, v in named.items()})


if __name__ == "__main__":
    answer(run(*sys.argv[1:]))
