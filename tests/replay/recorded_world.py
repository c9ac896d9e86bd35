"""A plain-Python record of what environments did, to compare rings and views with.

Observations encode (environment, episode, t), so that a transition that joins two episodes, or misses a step, shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from etude.base.data import Steps
from etude.base.spaces import Box, Dict, Discrete, Spaces

VECTOR = Spaces(Box(-np.inf, np.inf, (3,), np.float32), Box(-1, 1, (2,), np.float32))
NESTED = Spaces(
    Dict({"code": Box(-np.inf, np.inf, (3,), np.float64), "image": Box(0, 255, (2, 2, 1), np.uint8)}), Discrete(50)
)
STACKS = Spaces(
    Dict({"code": Box(-np.inf, np.inf, (3,), np.float32), "image": Box(0, 255, (3, 2, 1), np.uint8)}), Discrete(50)
)

_IMAGE, _VECTOR = Box(0, 255, (3, 2, 1), np.uint8), Box(-np.inf, np.inf, (2,), np.float32)
GOALS = Spaces(  # goals are small vectors, that are reached again and again
    Dict(
        {"code": STACKS.observation["code"], "observation": _IMAGE, "achieved_goal": _VECTOR, "desired_goal": _VECTOR}
    ),
    Discrete(50),
)
PICTURES = Spaces(  # goals are stacks of images
    Dict({"code": STACKS.observation["code"], "observation": _IMAGE, "achieved_goal": _IMAGE, "desired_goal": _IMAGE}),
    Discrete(50),
)


@dataclass
class Row:
    """One transition. `code` is (environment, episode, t)."""

    code: tuple[int, int, int]
    action: int
    reward: float
    terminated: bool
    truncated: bool

    @property
    def next_code(self) -> tuple[int, int, int]:
        return (self.code[0], self.code[1], self.code[2] + 1)


@dataclass
class World:
    """N environments that end episodes at random. `columns` records the rows of each since it was made."""

    spaces: Spaces
    environments: int
    rng: np.random.Generator
    p_end: float = 0.2
    columns: list[list[Row]] = field(default_factory=list)

    def __post_init__(self):
        self.columns = [[] for _ in range(self.environments)]
        self.at = [[0, 0] for _ in range(self.environments)]  # episode, t

    def encode(self, codes: list[tuple[int, int, int]]):
        """The observations for codes: [len(codes), ...]."""
        vector = np.array(codes, np.float32).reshape(-1, 3)
        if self.spaces is VECTOR:
            return vector
        if self.spaces is NESTED:
            return {
                "code": vector,
                "image": (vector.sum(1) % 251).astype(np.uint8)[:, None, None, None].repeat(2, 1).repeat(2, 2),
            }
        images = np.array([self.stack(*code) for code in codes], np.uint8).reshape(-1, 3, 2, 1)
        if self.spaces is STACKS:
            return {"code": vector, "image": images}
        achieved, desired = self.vector_goals(codes) if self.spaces is GOALS else self.picture_goals(codes)
        return {"code": vector, "observation": images, "achieved_goal": achieved, "desired_goal": desired}

    @staticmethod
    def vector_goals(codes: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray]:
        """Achieved and desired goals [len(codes), 2]; those achieved in one episode repeat after six steps."""
        achieved = [((environment + episode + t) % 2, t % 3) for environment, episode, t in codes]
        desired = [(environment % 2, (environment + episode) % 3) for environment, episode, _ in codes]
        return np.float32(achieved).reshape(-1, 2), np.float32(desired).reshape(-1, 2)

    @staticmethod
    def picture_goals(codes: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray]:
        """The same as stacks [len(codes), 3, 2, 1]; those achieved repeat after three steps."""
        achieved = [[s % 3 if s >= 0 else 5 for s in (t - 2, t - 1, t)] for _, _, t in codes]
        desired = [[(environment + 10 * episode) % 256] * 3 for environment, episode, _ in codes]
        image = lambda frames: np.uint8(frames).reshape(-1, 3, 1, 1).repeat(2, 2)  # noqa: E731
        return image(achieved), image(desired)

    @staticmethod
    def stack(environment: int, episode: int, t: int) -> np.ndarray:
        """Three frames [3, 2, 1]; those before the first of an episode are of its own kind (not black or repeated)."""
        newest = [
            (40 * environment + 11 * episode + s if s >= 0 else 200 - 3 * s + episode) % 256 for s in (t - 2, t - 1, t)
        ]
        return np.array([[[frame], [frame ^ 1]] for frame in newest])

    def step(self, times: int, columns: list[int] | None = None, restart: tuple[int, ...] = ()) -> Steps:
        """`times` steps of some columns, of which those in `restart` begin a new episode first."""
        columns = list(range(self.environments)) if columns is None else columns
        for column in restart:
            self.at[column] = [self.at[column][0] + 1, 0]
            if self.columns[column] and not self.columns[column][-1].terminated:
                self.columns[column][-1].truncated = True
        rows: list[list[Row]] = []
        for _ in range(times):
            rows.append([self._row(column) for column in columns])
        flat = [row for line in rows for row in line]
        shape = (times, len(columns))
        ended = np.array([row.terminated or row.truncated for row in flat]).reshape(shape)
        batched = lambda tree: _map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), tree)  # noqa: E731
        action = np.array([row.action for row in flat]).reshape(shape)
        if self.spaces is VECTOR:
            action = np.stack([action / 50, -action / 50], -1).astype(np.float32)
        return Steps(
            observation=batched(self.encode([row.code for row in flat])),
            action=action,
            reward=np.array([row.reward for row in flat], np.float32).reshape(shape),
            terminated=np.array([row.terminated for row in flat]).reshape(shape),
            truncated=np.array([row.truncated for row in flat]).reshape(shape),
            next_observation=self.encode([(column, *self.at[column]) for column in columns]),
            final_observation=self.encode([row.next_code for row in flat if row.terminated or row.truncated]),
            final_index=np.argwhere(ended),
            columns=np.array(columns),
            restarted=np.array([column in restart for column in columns]),
            extras={"log_prob": -np.array([row.reward for row in flat], np.float32).reshape(shape)},
        )

    def _row(self, column: int) -> Row:
        episode, t = self.at[column]
        terminated, truncated = (bool(self.rng.random() < self.p_end / 2) for _ in range(2))
        row = Row((column, episode, t), int(self.rng.integers(50)), float(self.rng.normal()), terminated, truncated)
        self.columns[column].append(row)
        self.at[column] = [episode + 1, 0] if terminated or truncated else [episode, t + 1]
        return row

    def kept(self, limit: int) -> dict[tuple[int, int, int], tuple[int, int]]:
        """Where the newest `limit` rows of each column are: code -> (column, position in it)."""
        return {
            row.code: (column, position)
            for column, rows in enumerate(self.columns)
            for position, row in enumerate(rows)
            if position >= len(rows) - limit
        }


def _map(function, tree):
    return {key: function(leaf) for key, leaf in tree.items()} if isinstance(tree, dict) else function(tree)


def code_of(observation) -> list[tuple[int, int, int]]:
    """The codes in observations [M, ...]."""
    vector = observation["code"] if isinstance(observation, dict) else observation
    return [tuple(int(number) for number in row) for row in vector.reshape(-1, 3)]
