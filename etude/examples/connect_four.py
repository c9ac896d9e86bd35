"""Connect Four for a league: PettingZoo's, in which either agent may begin, and a player that looks one step ahead."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.base.errors import MissingExtra

try:
    from pettingzoo import AECEnv
    from pettingzoo.classic import connect_four_v3
except ImportError:
    raise MissingExtra("Connect Four", "multiagent") from None

ROWS, COLUMNS, LINE = 6, 7, 4
AGENTS = ("player", "opponent")
_DIRECTIONS = ((0, 1), (1, 0), (1, 1), (1, -1))


class RandomSeats(AECEnv):
    """A turn-based environment whose two agents change seats: which of them begins is drawn from the seed of each
    episode.

    env: an `AECEnv` of two agents with the same spaces. names: of the two agents that change seats.
    """

    def __init__(self, env: Any, names: tuple[str, str] = AGENTS):
        self.env, self.possible_agents = env, list(names)
        self.metadata, self.render_mode = env.metadata, env.render_mode
        self._seat = dict(zip(names, env.possible_agents, strict=True))
        self._seeds = np.random.default_rng()

    def observation_space(self, agent: str) -> Any:
        return self.env.observation_space(self._seat[agent])

    def action_space(self, agent: str) -> Any:
        return self.env.action_space(self._seat[agent])

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        self.env.reset(seed=seed, options=options)
        rng = self._seeds if seed is None else np.random.default_rng(seed)
        seats = self.env.possible_agents if rng.random() < 0.5 else self.env.possible_agents[::-1]
        self._seat = dict(zip(self.possible_agents, seats, strict=True))

    def step(self, action: Any) -> None:
        self.env.step(action)

    def observe(self, agent: str) -> Any:
        return self.env.observe(self._seat[agent])

    def last(self, observe: bool = True) -> tuple[Any, ...]:
        return self.env.last(observe)

    @property
    def agents(self) -> list[str]:
        return [agent for agent, seat in self._seat.items() if seat in self.env.agents]

    @property
    def agent_selection(self) -> str:
        return next(agent for agent, seat in self._seat.items() if seat == self.env.agent_selection)

    @property
    def infos(self) -> dict[str, Any]:
        return {agent: self.env.infos[self._seat[agent]] for agent in self.agents}

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


def connect_four(render_mode: str | None = None) -> RandomSeats:
    """PettingZoo's connect_four_v3 with the agents `player` and `opponent`. An observation is a board [6, 7, 2], one
    plane for the agent's own stones and one for the other's, and an action mask [7]; whoever wins gets 1, and the other
    -1."""
    return RandomSeats(connect_four_v3.raw_env(render_mode=render_mode))


def look_ahead(observation: dict[str, np.ndarray], rng: np.random.Generator) -> int:
    """A player that wins if one move wins, else stops the other from winning with its next move, else draws one of the
    allowed moves, each alike."""
    board, allowed = observation["observation"], np.flatnonzero(observation["action_mask"])
    for stones in (board[:, :, 0], board[:, :, 1]):
        for column in allowed.tolist():
            row = ROWS - 1 - int(board[:, column].sum())  # row 0 is the top one
            if _wins(stones, row, column):
                return column
    return int(rng.choice(allowed))


def _wins(stones: np.ndarray, row: int, column: int) -> bool:
    """Whether one more stone here makes a line of four."""
    return any(
        1 + _in_line(stones, row, column, down, right) + _in_line(stones, row, column, -down, -right) >= LINE
        for down, right in _DIRECTIONS
    )


def _in_line(stones: np.ndarray, row: int, column: int, down: int, right: int) -> int:
    """How many stones follow in one direction without a gap."""
    count, r, c = 0, row + down, column + right
    while 0 <= r < ROWS and 0 <= c < COLUMNS and stones[r, c]:
        count, r, c = count + 1, r + down, c + right
    return count
