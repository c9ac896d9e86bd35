"""One cell of defaults.py with Stable-Baselines3, in an environment of its own (requirements-peers.txt). Prints JSON.

`PYTHON peers_defaults.py ppo Hopper-v5 '{"steps": 100000, "seed": 1, "starts": [3, 1, 4]}'`
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import gymnasium as gym
import stable_baselines3
import torch
from measure import answer, significant

LONGEST = 10_000  # steps of an episode, as in etude's evaluations; the best actions may never end one


def train(algorithm: str, environment: str, asked: dict[str, Any]) -> dict:
    """With its own defaults, one environment among them; evaluated with the best actions from these starts."""
    began = time.perf_counter()
    kind = getattr(stable_baselines3, algorithm.upper())
    model = kind("MlpPolicy", make(environment), seed=asked["seed"], device="cpu")
    model.learn(asked["steps"])
    seconds = time.perf_counter() - began
    env = make(environment)
    returns = [play(model, env, start) for start in asked["starts"]]
    mean = sum(returns) / len(returns)
    return {"return": significant(mean, 5), "steps": asked["steps"], "seconds": round(seconds, 1)}


def make(environment: str) -> gym.Env:
    if not environment.startswith("MiniGrid-"):
        return gym.make(environment)
    from minigrid.wrappers import FlatObsWrapper

    return FlatObsWrapper(gym.make(f"minigrid:{environment}"))


def play(model: Any, env: gym.Env, start: int) -> float:
    """The return of one episode, or of its first LONGEST steps."""
    observation, _ = env.reset(seed=start)
    total, ended, steps = 0.0, False, 0
    while not ended and steps < LONGEST:
        steps += 1
        action, _ = model.predict(observation, deterministic=True)
        taken = int(action) if isinstance(env.action_space, gym.spaces.Discrete) else action
        observation, reward, terminated, truncated, _ = env.step(taken)
        total, ended = total + float(reward), terminated or truncated
    return total


if __name__ == "__main__":
    torch.set_num_threads(1)
    answer(train(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
