"""Twenty questions over a generated world."""

from __future__ import annotations

from string import ascii_lowercase
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Text

from etude.base.errors import ConfigError
from etude.language.environment import LEGAL
from etude.language.words import words

QUESTIONS = 20
PROPERTIES = (
    "alive", "big", "bright", "cheap", "clean", "cold", "dark", "edible", "fast", "flat", "fluffy", "green", "hard",
    "heavy", "hollow", "loud", "metal", "new", "old", "open", "plain", "red", "rough", "round", "sharp", "soft",
    "sticky", "sweet", "tall", "warm", "wet", "wooden",
)  # fmt: skip


class TwentyQuestions(gym.Env[str, str]):
    """Find a hidden thing within twenty questions, at a reward of -1 for each but the one that names it.

    `"is it red?"` is answered by `" yes\\n"` or `" no\\n"`, `"is it biftp?"`, which names a thing, too; whatever else
    is asked by `" what?\\n"`.

    things, properties: how many there are. Each thing has each property or not, by lot, and no two have the same ones.
    seed: of the world, which all episodes share.
    """

    metadata: dict[str, Any] = {"render_modes": [], "context": QUESTIONS * 24}

    def __init__(self, things: int = 32, properties: int = 12, seed: int = 0):
        if not (type(things) is type(properties) is int) or not 2 <= things <= 2 ** min(properties - 1, 12):
            raise ConfigError(
                f"TwentyQuestions: things = {things!r}, properties = {properties!r}; expected whole numbers, from 2 "
                "things to half of as many as the properties tell apart, 4,096 at most."
            )
        if properties > len(PROPERTIES):
            raise ConfigError(f"TwentyQuestions: properties = {properties}; there are {len(PROPERTIES)}.")
        rng = np.random.default_rng(seed)
        self.things = words(things, seed)
        self.properties = tuple(sorted(rng.permutation(PROPERTIES)[:properties].tolist()))
        codes = rng.permutation(2**properties)[:things] if properties <= 16 else _different(rng, things, properties)
        self.has = (codes[:, None] >> np.arange(properties)) % 2 == 1  # [things, properties]
        questions = tuple(f"is it {each}?" for each in (*self.properties, *self.things))
        self._answers = {question: i for i, question in enumerate(questions)}
        self._info: dict[str, Any] = {LEGAL: questions}
        self.action_space = Text(max(map(len, questions)), min_length=1, charset=ascii_lowercase + " ?")
        self.observation_space = Text(7, min_length=0, charset=ascii_lowercase + " ?\n")
        self._hidden = self._asked = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._hidden, self._asked = int(self.np_random.integers(len(self.things))), 0
        return "", dict(self._info)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._asked += 1
        asked = self._answers.get(action)
        found = asked == len(self.properties) + self._hidden
        if asked is None:
            answer = "what?"
        else:
            answer = "yes" if found or asked < len(self.properties) and self.has[self._hidden, asked] else "no"
        over = found or self._asked == QUESTIONS
        return f" {answer}\n", 0.0 if found else -1.0, over, False, dict(self._info)


def _different(rng: np.random.Generator, count: int, bits: int) -> np.ndarray:
    """So many different numbers of so many bits, of more than can be listed."""
    found: dict[int, None] = {}
    while len(found) < count:
        found[int(rng.integers(2**bits))] = None
    return np.array(list(found))
