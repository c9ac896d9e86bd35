"""Rewards of n environments as one array, and what they count for in the return of an episode."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from etude.envs.observations import Finite

_NOTHING: np.ndarray = np.empty(0)  # for what cannot be put in one array; it has no right shape
TEXTS = frozenset((str, bytes, np.str_, np.bytes_))  # NumPy makes numbers of them


class WrongValue(Exception):
    """One environment returned what is no reward, or no number in an `info` that is kept. position: of the environment
    among those that were stepped."""

    def __init__(self, position: int, message: str):
        super().__init__(message)
        self.position = position


class Rewards:
    """What the rewards of one kind of environment look like: by default one number from each, which is also what it
    counts for."""

    shape: tuple[int, ...] = ()  # of those of one environment: () or (agents,)

    def __init__(self) -> None:
        self._finite = Finite()

    def gather(self, rewards: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        """(rewards [n] or [n, agents], what they count for in the returns of episodes [n]), both float32; of single
        numbers, one array twice. Raises WrongValue."""
        try:
            numbers = np.array(rewards, np.float32) if TEXTS.isdisjoint(map(type, rewards)) else _NOTHING
        except (TypeError, ValueError):
            numbers = _NOTHING
        if numbers.shape != (len(rewards),) or not self._finite(numbers):
            self._raise_first(rewards)
        return numbers, numbers

    def explain(self, reward: Any) -> str | None:
        """Why this is no reward; None where it is one."""
        if isinstance(reward, float) and abs(reward) < 1e38:
            return None
        try:
            number = np.array(reward, np.float32)
        except (TypeError, ValueError):
            number = _NOTHING
        if number.shape != () or reward is None or type(reward) in TEXTS:
            kind = f"shape {number.shape}" if isinstance(reward, np.ndarray) else type(reward).__name__
            fix = "float(reward)"
            if number.size > 1:
                weighed = f"lambda reward: float(reward @ {[1.0] * len(number)})"
                fix = f"weigh them, gymnasium.wrappers.TransformReward(env, {weighed})"
            return f"the reward is {str(reward)[:80]} ({kind}); expected one number: {fix}"
        if not np.isfinite(number):
            return f"the reward is {reward}; expected a finite float32 number"
        return None

    def _raise_first(self, rewards: list[Any]) -> None:
        for position, reward in enumerate(rewards):
            message = self.explain(reward)
            if message is not None:
                raise WrongValue(position, message)


class MultiAgentReward(NamedTuple):
    """What several agents earned in one step."""

    each: np.ndarray  # [agents] float32
    score: float  # what it counts for in the return of the episode


class MultiAgentRewards(Rewards):
    """A MultiAgentReward from each environment."""

    def __init__(self, names: tuple[str, ...]):
        self._names = names
        self.shape = (len(names),)

    def gather(self, rewards: list[MultiAgentReward]) -> tuple[np.ndarray, np.ndarray]:
        """See `Rewards`."""
        each = np.array([reward.each for reward in rewards], np.float32)
        scores = np.array([reward.score for reward in rewards], np.float32)
        if not (np.isfinite(each).all() and np.isfinite(scores).all()):
            self._raise_first(rewards)
        return each, scores

    def explain(self, reward: MultiAgentReward) -> str | None:
        """See `Rewards`."""
        for name, number in zip(self._names, reward.each, strict=True):
            if not np.isfinite(number):
                return f"the reward of agent {name!r} is {number}; expected a finite float32 number"
        if not np.isfinite(np.float32(reward.score)):
            return f"the reward of all agents together is {reward.score}; expected a finite float32 number"
        return None
