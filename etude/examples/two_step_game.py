"""The two-step game: a task of two agents whose best joint action no sum of their values finds."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from etude.base.errors import needing

with needing("The two-step game", "multiagent"):
    from pettingzoo import ParallelEnv

PAYOFFS = {1: np.full((2, 2), 7.0), 2: np.array([[0.0, 1.0], [1.0, 8.0]])}  # by the second state and both actions


class TwoStepGame(ParallelEnv):
    """In the first step the first agent chooses between two games, in the second both play it: one pays 7 whatever they
    do, the other 0 or 1, and 8 where both take action 1. Both observe the state, one-hot, and get the payoff.

    The best return is 8; agents whose values are summed (VDN) get 7. Rashid et al. 2018, arXiv:1803.11485, section 5.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "two_step_game", "render_modes": []}
    possible_agents: ClassVar[list[str]] = ["agent_0", "agent_1"]

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode
        self.state_space: spaces.Box = spaces.Box(0.0, 1.0, (3,), np.float32)
        self.observation_spaces: dict[str, Any] = dict.fromkeys(self.possible_agents, self.state_space)
        self.action_spaces: dict[str, Any] = {agent: spaces.Discrete(2) for agent in self.possible_agents}
        self._state = 0

    def observation_space(self, agent: str) -> Any:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        return self.action_spaces[agent]

    def state(self) -> np.ndarray:
        return np.eye(3, dtype=np.float32)[self._state]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.agents, self._state = list(self.possible_agents), 0
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> Any:
        first, second = (int(actions[agent]) for agent in self.possible_agents)
        over, payoff = self._state > 0, 0.0
        if over:
            payoff = float(PAYOFFS[self._state][first, second])
        else:
            self._state = 1 + first
        told = [dict.fromkeys(self.agents, each) for each in (payoff, over, False)]
        seen, infos = self._seen(), {agent: dict[str, Any]() for agent in self.agents}
        self.agents = [] if over else self.agents
        return seen, *told, infos

    def _seen(self) -> dict[str, np.ndarray]:
        return {agent: self.state() for agent in self.agents}
