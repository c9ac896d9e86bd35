"""Writes models/: small models of Stable-Baselines3, what `predict` answers of them, and moments of VecNormalize.

It needs Stable-Baselines3, which is no dependency: run it in an environment of its own, `python golden_models.py`, with
the versions that golden.json then names. The zips are as `model.save` writes them, but compressed, and without what the
optimizers keep.
"""

import json
import zipfile
from pathlib import Path

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

HERE = Path(__file__).parent / "models"
OFF_POLICY = {"learning_starts": 10, "batch_size": 8, "policy_kwargs": {"net_arch": [6, 5]}}
MODELS = {
    "ppo": (PPO, "Pendulum-v1", {"n_steps": 32, "batch_size": 16, "policy_kwargs": {"net_arch": [6, 5]}}),
    "a2c": (A2C, "CartPole-v1", {"policy_kwargs": {"net_arch": {"pi": [6], "vf": [5]}, "activation_fn": torch.nn.ELU}}),
    "dqn": (DQN, "CartPole-v1", OFF_POLICY),
    "sac": (SAC, "Pendulum-v1", OFF_POLICY),
    "td3": (TD3, "Pendulum-v1", OFF_POLICY),
    "ddpg": (DDPG, "Pendulum-v1", OFF_POLICY),
}
KEPT = ("data", "policy.pth", "pytorch_variables.pth", "_stable_baselines3_version")


def compressed(path: Path) -> None:
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in KEPT}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)


def main() -> None:
    torch.set_num_threads(1)
    answers = {"versions": {"stable-baselines3": stable_baselines3.__version__, "torch": torch.__version__}}
    for name, (algorithm, env, arguments) in MODELS.items():
        environments = DummyVecEnv([lambda env=env: gymnasium.make(env)] * 2)
        if name == "ppo":
            environments = VecNormalize(environments, gamma=0.98)
        model = algorithm("MlpPolicy", environments, seed=1, device="cpu", **copied(arguments))
        model.learn(64)
        (HERE / name).mkdir(parents=True, exist_ok=True)
        model.save(HERE / name / "model.zip")
        compressed(HERE / name / "model.zip")
        space = gymnasium.make(env).observation_space
        observation = np.random.default_rng(3).uniform(-2, 2, (20, *space.shape)).astype(np.float32)
        seen = observation
        if name == "ppo":
            environments.save(str(HERE / name / "vec_normalize.pkl"))
            seen = environments.normalize_obs(observation)
        action, _ = model.predict(seen, deterministic=True)
        answers[name] = {"observation": observation.tolist(), "action": action.tolist()}
    (HERE / "golden.json").write_text(json.dumps(answers) + "\n")


def copied(arguments: dict) -> dict:
    """A copy: policies write into policy_kwargs."""
    return {**arguments, "policy_kwargs": dict(arguments["policy_kwargs"])}


if __name__ == "__main__":
    main()
