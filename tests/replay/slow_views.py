"""Views of transitions in plain Python, one step after the other, over lists of the rows that a ring stores."""

from __future__ import annotations

import numpy as np
from recorded_world import Row, World

Code = tuple[int, int, int]


class Stored:
    """The rows that a ring of `limit` rows a column holds, by their episodes."""

    def __init__(self, world: World, limit: int):
        self.world = world
        self.episodes: dict[tuple[int, int], list[Row]] = {}
        for rows in world.columns:
            for row in rows[-limit:]:
                self.episodes.setdefault(row.code[:2], []).append(row)

    def position(self, code: Code) -> int:
        return [row.code for row in self.episodes[code[:2]]].index(code)

    def earlier(self, code: Code) -> list[Row]:
        """The stored rows of the same episode before this one."""
        return self.episodes[code[:2]][: self.position(code)]

    def on(self, code: Code) -> list[Row]:
        """This row and the stored rows of the same episode after it."""
        return self.episodes[code[:2]][self.position(code) :]

    def achieved(self, code: Code) -> np.ndarray:
        return self.world.encode([code])["achieved_goal"][0]

    def desired(self, code: Code) -> np.ndarray:
        return self.world.encode([code])["desired_goal"][0]

    def outcome(self, row: Row, goal: Code | None) -> tuple[float, bool, bool]:
        """Reward, whether the step terminated, and whether it ended the episode. `goal`: where it was achieved."""
        if goal is None:
            return row.reward, row.terminated, row.terminated or row.truncated
        reward, done = reward_done(self.achieved(row.next_code), self.achieved(goal))
        return float(reward), bool(done), bool(done) or row.terminated or row.truncated

    def transition(self, code: Code, n: int, gamma: float, goal: Code | None) -> tuple[float, float, Code]:
        """(discounted sum of rewards, discount, code of the observation that it applies to) over up to n steps."""
        total, discount = 0.0, 1.0
        for row in self.on(code)[:n]:
            reward, terminated, ended = self.outcome(row, goal)
            total, discount, following = total + discount * reward, discount * gamma, row.next_code
            if terminated:
                discount = 0.0
            if ended:
                break
        return total, discount, following

    def goals(self, codes: list[Code], strategy: str, share: float, rng: np.random.Generator) -> list[Code | None]:
        """Where the new goal of each row is achieved, None for those that keep theirs; draws as `Hindsight` does."""
        chosen = rng.random(len(codes)) < share
        picked = [code for code, yes in zip(codes, chosen, strict=True) if yes]
        before = np.array([len(self.earlier(code)) for code in picked], np.int64)
        after = np.array([len(self.on(code)) - 1 for code in picked], np.int64)
        later = {
            "future": lambda: rng.integers(after + 1),
            "final": lambda: after,
            "episode": lambda: rng.integers(before + after + 1) - before,
        }[strategy]()
        steps = iter(later.tolist())
        return [
            (*code[:2], code[2] + next(steps) + 1) if yes else None for code, yes in zip(codes, chosen, strict=True)
        ]


def reward_done(achieved: np.ndarray, goal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Takes goals [..., 2], or stacks [..., 3, 2, 1]: the fewer the better to reach what is equal."""
    axes = (-1,) if achieved.shape[-1] == 2 else (-3, -2, -1)
    distance = np.abs(np.float32(achieved) - np.float32(goal)).sum(axes)
    return np.where(distance == 0, 1.0, -distance - 1.0), distance == 0
