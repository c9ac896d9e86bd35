"""Four experiments of bsuite: catching, exploring deeply, remembering, swinging up.

`pip install bsuite`, then `python benchmarks/bsuite_tasks.py` writes bsuite_tasks.json: for each task and seed the mean
return of 100 greedy episodes after training, and the mean return of the training episodes, which is what bsuite scores.
Osband et al. 2020, Behaviour suite for reinforcement learning, arXiv:1908.03568.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

SEEDS = (1, 2, 3)


class Task(gymnasium.Env):
    """An environment of bsuite, by its id, in Gymnasium's terms. An episode of the suite's own length is truncated
    where its last discount says that the world goes on."""

    def __init__(self, name: str):
        import bsuite

        self.world = bsuite.load_from_id(name)
        shape = self.world.observation_spec().shape
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (int(np.prod(shape)),), np.float32)
        self.action_space = gymnasium.spaces.Discrete(int(self.world.action_spec().num_values))

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.world.unwrapped._rng = np.random.RandomState(seed % 2**32)
        return self._seen(self.world.reset()), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        step = self.world.step(int(action))
        over = step.last()
        return self._seen(step), float(step.reward), over and step.discount == 0, over and step.discount != 0, {}

    @staticmethod
    def _seen(step: Any) -> np.ndarray:
        return np.asarray(step.observation, np.float32).reshape(-1)
