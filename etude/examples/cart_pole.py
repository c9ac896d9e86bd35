"""CartPole whose velocities are hidden: the smallest task that needs a memory and is otherwise well known. CartPole
whose actions are shuffled: the smallest task whose actions the observation describes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

POSITIONS = [0, 2]  # of what CartPole-v1 observes: the cart's position and the pole's angle
EMBEDDINGS = np.array([[0.5, 0.5, -0.5, 0.5], [0.5, -0.5, 0.5, 0.5]], np.float32)  # of pushing left and right


class WithoutVelocities(gym.ObservationWrapper):
    """Gymnasium's CartPole-v1, of which only the cart's position and the pole's angle are observed [2], float32: which
    way either moves is seen from two observations. Otherwise as CartPole-v1, whose best return is 500.

    render_mode: as of CartPole-v1.
    """

    def __init__(self, render_mode: str | None = None):
        super().__init__(gym.make("CartPole-v1", render_mode=render_mode))
        whole = self.env.observation_space
        assert isinstance(whole, Box)
        self.observation_space = Box(whole.low[POSITIONS], whole.high[POSITIONS], dtype=np.float32)

    def observation(self, observation: Any) -> np.ndarray:
        """The two positions of [4]."""
        return observation[POSITIONS]


class WithShuffledActions(gym.Wrapper):
    """Gymnasium's CartPole-v1 whose two actions change places among the slots of a Discrete action at every step; the
    other slots are forbidden. Otherwise as CartPole-v1, whose best return is 500.

    Observations: `observation` [4] of CartPole-v1, `actions` [slots, 4], in each slot the embedding of its action and
    zeros where there is none, and `action_mask` [slots]. ValueError for an action that is forbidden.

    slots: how many, at least 2. render_mode: as of CartPole-v1.
    """

    def __init__(self, slots: int = 10, render_mode: str | None = None):
        super().__init__(gym.make("CartPole-v1", render_mode=render_mode))
        if slots < 2:
            raise ValueError(f"slots = {slots}; expected at least 2, one for each action of CartPole.")
        self.slots = slots
        self.action_space = Discrete(slots)
        self.observation_space = Dict(
            {
                "observation": self.env.observation_space,
                "actions": Box(-1.0, 1.0, (slots, EMBEDDINGS.shape[1]), np.float32),
                "action_mask": MultiBinary(slots),
            }
        )
        self._places = np.arange(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A new episode, with the actions in new slots."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._described(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """A step with the action in a slot; then the actions change slots."""
        chosen = np.flatnonzero(self._places == action)
        if len(chosen) != 1:
            raise ValueError(f"Slot {action} holds no action; those that do are {sorted(self._places.tolist())}.")
        observation, reward, terminated, truncated, info = self.env.step(int(chosen[0]))
        return self._described(observation), reward, terminated, truncated, info

    def _described(self, observation: Any) -> dict[str, np.ndarray]:
        self._places = self.np_random.permutation(self.slots)[:2]
        actions, mask = np.zeros((self.slots, EMBEDDINGS.shape[1]), np.float32), np.zeros(self.slots, np.int8)
        actions[self._places], mask[self._places] = EMBEDDINGS, 1
        return {"observation": observation, "actions": actions, "action_mask": mask}
