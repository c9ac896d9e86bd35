"""Connect Four for a league, in which either agent may begin: PettingZoo's, and the same rules in less time; and a
player that looks one step ahead."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from etude.base.errors import ConfigError, needing

with needing("Connect Four", "multiagent"):
    from pettingzoo import AECEnv
    from pettingzoo.classic import connect_four_v3

ROWS, COLUMNS, LINE = 6, 7, 4
AGENTS = ("player", "opponent")
_DIRECTIONS = ((0, 1), (1, 0), (1, 1), (1, -1))
LINES = tuple(
    tuple((row + i * down, column + i * right) for i in range(LINE))
    for down, right in _DIRECTIONS
    for row in range(ROWS)
    for column in range(COLUMNS)
    if row + (LINE - 1) * down < ROWS and 0 <= column + (LINE - 1) * right < COLUMNS
)
_LINES_THROUGH = np.array([[divmod(i, COLUMNS) in line for line in LINES] for i in range(ROWS * COLUMNS)])


class RandomSeats(AECEnv):
    """A turn-based environment whose two agents change seats: which of them begins is drawn from the seed of each
    episode.

    env: an `AECEnv` of two agents with the same spaces. names: of the two agents that change seats.
    """

    def __init__(self, env: Any, names: tuple[str, str] = AGENTS):
        self.env: Any = env
        self.possible_agents: list[str] = list(names)
        self.metadata: Any = env.metadata
        self.render_mode: Any = env.render_mode
        self._seat = dict(zip(names, env.possible_agents, strict=True))
        self._seeds = np.random.default_rng()

    def observation_space(self, agent: str) -> Any:
        return self.env.observation_space(self._seat[agent])

    def action_space(self, agent: str) -> Any:
        return self.env.action_space(self._seat[agent])

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
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


class ConnectFour(AECEnv):
    """The rules, observations and agents of `connect_four`, in plain Python, with boards of uint8, which convolutions
    read as images.

    line_counts: whether observations hold `columns` [7, 12] float32: for the cell where a stone would fall in each
        column, and then for the cell above, how many lines of four through it hold 1, 2, 3 of one's own stones and none
        of the other's; then 1, 2, 3 of the other's and none of one's own. Zeros where there is no such cell.
    begins: the agent that has the first move; None: drawn from the seed of each episode.
    """

    metadata: dict[str, Any] = {"name": "connect_four", "render_modes": ["ansi"], "is_parallelizable": False}

    def __init__(self, line_counts: bool = False, begins: str | None = None, render_mode: str | None = None):
        if begins not in (None, *AGENTS):
            raise ConfigError(f"begins = {begins!r}; expected {AGENTS[0]!r}, {AGENTS[1]!r} or None.")
        self.line_counts: bool = line_counts
        self.begins = begins
        self.render_mode: str | None = render_mode
        self.possible_agents: list[str] = list(AGENTS)
        board, mask = Box(0, 1, (ROWS, COLUMNS, 2), np.uint8), Box(0, 1, (COLUMNS,), np.int8)
        counts = {"columns": Box(0, len(LINES), (COLUMNS, 12), np.float32)} if line_counts else {}
        self._observation_space = Dict({"observation": board, "action_mask": mask, **counts})
        self._action_space = Discrete(COLUMNS)
        self._seeds = np.random.default_rng()

    def observation_space(self, agent: str) -> Any:
        return self._observation_space

    def action_space(self, agent: str) -> Any:
        return self._action_space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        rng = self._seeds if seed is None else np.random.default_rng(seed)
        first = AGENTS[int(rng.random() >= 0.5)] if self.begins is None else self.begins
        second = AGENTS[1 - AGENTS.index(first)]
        self.agent_selection: str = first
        self.agents: list[str] = list(AGENTS)
        self._other = {first: second, second: first}
        self._boards = {agent: np.zeros((ROWS, COLUMNS, 2), np.uint8) for agent in AGENTS}
        self._in_lines = {agent: np.zeros(len(LINES), np.int64) for agent in AGENTS}  # stones in each of `LINES`
        self._free = [ROWS] * COLUMNS  # rows of each column
        self._mask, self._none = np.ones(COLUMNS, np.int8), np.zeros(COLUMNS, np.int8)
        self._over, self._returns = False, dict.fromkeys(AGENTS, 0.0)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in AGENTS}

    def step(self, action: int | None) -> None:
        agent = self.agent_selection
        other = self._other[agent]
        if self._over:
            self.agents.remove(agent)
            self.agent_selection = other
            return
        if action is None or not self._mask[action]:
            raise ValueError(f"column {action} is no legal move; the mask is {self._mask.tolist()}")
        row = self._free[action] = self._free[action] - 1
        self._mask[action] = row > 0
        self._boards[agent][row, action, 0] = self._boards[other][row, action, 1] = 1
        self._in_lines[agent] += _LINES_THROUGH[row * COLUMNS + action]
        won = bool((self._in_lines[agent] == LINE).any())
        if won:
            self._returns = {agent: 1.0, other: -1.0}
        self._over, self.agent_selection = won or not self._mask.any(), other

    def observe(self, agent: str) -> dict[str, np.ndarray]:
        mask = self._mask if agent == self.agent_selection else self._none
        seen = {"observation": self._boards[agent].copy(), "action_mask": mask.copy()}
        return {**seen, "columns": self._line_counts(agent)} if self.line_counts else seen

    def last(self, observe: bool = True) -> tuple[Any, ...]:
        agent = self.agent_selection
        seen = self.observe(agent) if observe else None
        return seen, self._returns[agent], self._over, False, self.infos[agent]

    def render(self) -> str | None:
        """The board as text: x for the stones of `player`, o for those of `opponent`."""
        if self.render_mode is None:
            return None
        board = self._boards[AGENTS[0]]
        return "\n".join("".join("x" if own else "o" if other else "." for own, other in row) for row in board)

    def close(self) -> None:
        """Nothing to close."""

    def _line_counts(self, agent: str) -> np.ndarray:
        own, other = self._in_lines[agent], self._in_lines[self._other[agent]]
        cells = _LINES_THROUGH.astype(np.float32) @ _KINDS[own * (LINE + 1) + other]  # [cells, 6]
        cells = np.concatenate([np.zeros((2 * COLUMNS, 6), np.float32), cells])
        lowest = (np.array(self._free) + 1) * COLUMNS + np.arange(COLUMNS)  # behind two rows of zeros
        return np.concatenate([cells[lowest], cells[lowest - COLUMNS]], 1)


def _kinds() -> np.ndarray:
    """[25, 6] by 5 times one's own stones in a line plus the other's: which of six kinds the line is of, one-hot."""
    kinds = np.zeros(((LINE + 1) ** 2, 2 * (LINE - 1)), np.float32)
    for count in range(1, LINE):
        kinds[count * (LINE + 1), count - 1] = kinds[count, LINE - 2 + count] = 1
    return kinds


_KINDS = _kinds()


def look_ahead(observation: dict[str, np.ndarray], rng: np.random.Generator) -> int:
    """A player that wins if one move wins, else stops the other from winning with its next move, else draws one of the
    allowed moves, each alike."""
    board, allowed = observation["observation"], np.flatnonzero(observation["action_mask"])
    for stones in (board[:, :, 0], board[:, :, 1]):
        for column in allowed.tolist():
            row = ROWS - 1 - int(board[:, column].sum())  # row 0 is the top one
            # Whether one more stone here makes a line of four
            if any(
                1 + _in_line(stones, row, column, down, right) + _in_line(stones, row, column, -down, -right) >= LINE
                for down, right in _DIRECTIONS
            ):
                return column
    return int(rng.choice(allowed))


def _in_line(stones: np.ndarray, row: int, column: int, down: int, right: int) -> int:
    """How many stones follow in one direction without a gap."""
    count, r, c = 0, row + down, column + right
    while 0 <= r < ROWS and 0 <= c < COLUMNS and stones[r, c]:
        count, r, c = count + 1, r + down, c + right
    return count
