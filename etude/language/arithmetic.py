"""Sums with answers that can be verified."""

from __future__ import annotations

from string import digits
from typing import Any

import gymnasium as gym
from gymnasium.spaces import Text

from etude.base.errors import ConfigError

OPERATIONS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


class Arithmetic(gym.Env[str, str]):
    """Answer one question such as `"12+7="`: reward 1 for the number itself, `"19"`, else 0.

    largest: of the two numbers, each from 0. operations: of `+-*`.
    """

    def __init__(self, largest: int = 20, operations: str = "+"):
        if type(largest) is not int or not 0 < largest < 10**9:
            raise ConfigError(f"Arithmetic: largest = {largest!r}; expected a whole number from 1 to 999,999,999.")
        if not operations or not set(operations) <= OPERATIONS.keys():
            raise ConfigError(f"Arithmetic: operations = {operations!r}; expected some of {''.join(OPERATIONS)}.")
        self._largest, self._operations, self._answer = largest, operations, ""
        answers = [largest * largest if "*" in operations else 2 * largest, -largest if "-" in operations else 0]
        asked, said = len(f"{largest}+{largest}="), max(len(str(answer)) for answer in answers)
        self.metadata = {"render_modes": [], "context": asked + said + 1}
        self.observation_space = Text(asked, min_length=0, charset=digits + operations + "=")
        self.action_space = Text(said, charset=digits + "-" * ("-" in operations))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        first, second = self.np_random.integers(self._largest + 1, size=2).tolist()
        operation = self._operations[self.np_random.integers(len(self._operations))]
        self._answer = str(OPERATIONS[operation](first, second))
        return f"{first}{operation}{second}=", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", float(action == self._answer), True, False, {}
