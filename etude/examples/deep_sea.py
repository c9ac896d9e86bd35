"""Deep sea: the smallest task that undirected exploration does not solve.

Osband et al. 2020, Behaviour suite for reinforcement learning, arXiv:1908.03568, appendix A, after bsuite's code.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from etude.base.errors import ConfigError

MOVE_COST = 0.01  # of all moves to the right of an episode that takes no others, together
PIXELS = 10  # the side of a cell in frames


class DeepSea(gym.Env[Any, Any]):
    """A square of `size` x `size` cells. A diver starts at the top left and sinks one row at each step, to the left or
    to the right; after `size` steps the episode terminates.

    Observation: the diver's cell as a one-hot vector [size * size] float32; zeros at the end. Action: Discrete(2);
    which of the two moves to the right is drawn for each cell from `mapping_seed` and stays the same. Reward:
    -0.01 / size for each move to the right, and 1 for that from the bottom right cell. The best return is 0.99; a
    policy of random actions finds the reward once in 2 ** size episodes, and moves to the left cost nothing.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}

    def __init__(self, size: int = 10, mapping_seed: int = 42, render_mode: str | None = None):
        if size < 2:
            raise ConfigError(f"DeepSea: size = {size}; expected a whole number of at least 2.")
        if render_mode not in (None, "rgb_array"):
            raise ConfigError(f"DeepSea draws frames, render_mode='rgb_array', and no window; got {render_mode!r}.")
        self.size: int = size
        self.render_mode = render_mode
        self._right = np.random.default_rng(mapping_seed).integers(0, 2, (size, size))
        self.observation_space: Box = Box(0.0, 1.0, (size * size,), np.float32)
        self.action_space: Discrete = Discrete(2)
        self._row = self._column = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Back to the top left."""
        super().reset(seed=seed)
        self._row = self._column = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """See the class."""
        reward, last = 0.0, self.size - 1
        if action == self._right[self._row, self._column]:
            reward = float(self._row == self._column == last) - MOVE_COST / self.size
            self._column = min(self._column + 1, last)
        else:
            self._column = max(self._column - 1, 0)
        self._row += 1
        return self._observe(), reward, self._row == self.size, False, {}

    def render(self) -> np.ndarray | None:
        """The cells [10 * size, 10 * size, 3] uint8: the diver in blue, the rewarded cell in green."""
        if self.render_mode is None:
            return None
        cells = np.full((self.size, self.size, 3), 240, np.uint8)
        cells[-1, -1] = (60, 170, 80)
        cells[min(self._row, self.size - 1), self._column] = (40, 80, 200)
        return cells.repeat(PIXELS, 0).repeat(PIXELS, 1)

    def _observe(self) -> np.ndarray:
        found = np.zeros((self.size, self.size), np.float32)
        if self._row < self.size:
            found[self._row, self._column] = 1.0
        return found.reshape(-1)
