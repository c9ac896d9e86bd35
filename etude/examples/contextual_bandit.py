"""Contextual bandits, as environments whose episodes have one step: over a table of contexts and rewards, such as a
labelled data set, or with rewards that are linear in the context."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from etude.base.errors import ConfigError


class ContextualBandit(gym.Env[Any, Any]):
    """Observe a context, choose an action, get its reward; the next context has nothing to do with it.

    contexts: [M, D], drawn uniformly. rewards: [M, K], the expected reward of each action: of labels [M], for reward 1
    where the label is named, `np.eye(K)[labels]`. noise: the standard deviation of what is added to a reward.

    `info["regret"]` is the expected reward of the best action, minus that of the one taken.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, contexts: Any, rewards: Any, noise: float = 0.0, render_mode: str | None = None):
        self.contexts: np.ndarray = np.asarray(contexts, np.float32)
        self.rewards: np.ndarray = np.asarray(rewards, np.float32)
        if self.contexts.ndim != 2 or self.rewards.ndim != 2 or len(self.contexts) != len(self.rewards):
            raise ConfigError(
                f"ContextualBandit: contexts of shape {self.contexts.shape}, rewards of shape {self.rewards.shape}; "
                "expected [M, D] and [M, K], a row of rewards for each context."
            )
        self.noise, self.render_mode = noise, render_mode
        self.observation_space: Box = Box(-np.inf, np.inf, self.contexts.shape[1:], np.float32)
        self.action_space: Discrete = Discrete(self.rewards.shape[1])
        self._row = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A new context."""
        super().reset(seed=seed)
        self._row = int(self.np_random.integers(len(self.contexts)))
        return self.contexts[self._row].copy(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """See the class."""
        expected = self.rewards[self._row]
        reward = float(expected[action]) + self.noise * float(self.np_random.standard_normal())
        regret = float(expected.max() - expected[action])
        return self.contexts[self._row].copy(), reward, True, False, {"regret": regret}


class LinearBandit(ContextualBandit):
    """Contexts, and the weights of each action, on the unit sphere; the expected reward is their product, with `power`
    1, or that power of it, and then not linear."""

    def __init__(
        self, size: int = 5, actions: int = 4, noise: float = 0.1, power: int = 1, task_seed: int = 0,
        render_mode: str | None = None,
    ):  # fmt: skip
        rng = np.random.default_rng(task_seed)
        drawn = [rng.standard_normal((n, size)) for n in (20_000, actions)]
        contexts, weights = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in drawn)
        super().__init__(contexts, (contexts @ weights.T) ** power, noise, render_mode)
