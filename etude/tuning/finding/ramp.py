"""A learning rate that grows geometrically from update to update, and what training with it reported."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from etude.base.errors import ConfigError
from etude.solo.callbacks import EndTraining
from etude.tuning.finding.suggestion import Observed


class RampEnded(EndTraining):
    """The last update of a ramp was made; raised inside of training, whose effects are undone."""


@dataclass(frozen=True)
class Ramp:
    """Update i, from 0, learns with `start * factor**i`; after `updates` of them the rate is `end`."""

    start: float
    end: float
    updates: int

    def __post_init__(self) -> None:
        if type(self.updates) is not int or self.updates < 2:
            raise ConfigError(f"N = {self.updates!r}; expected a whole number of at least 2: updates of the ramp.")
        numbers = all(isinstance(rate, int | float) and math.isfinite(rate) for rate in (self.start, self.end))
        if not numbers or not 0 < self.start < self.end:
            raise ConfigError(
                f"start_lr = {self.start!r}, end_lr = {self.end!r}; expected two numbers above 0, the lower one first, "
                "such as 1e-5 and 1."
            )

    @property
    def factor(self) -> float:
        """By which the rate grows from one update to the next."""
        return (self.end / self.start) ** (1 / self.updates)

    def at(self, update: int) -> float:
        """The rate after so many updates."""
        return self.end if update == self.updates else self.start * self.factor**update


@dataclass
class RampRecord:
    """What training with a ramp reported.

    losses: of each update; the mean where there are several losses. rewards: returns of episodes; the mean of those
    that ended together. ended: how many updates were made before each of these. problem: why training failed; "" where
    it did not.
    """

    ramp: Ramp
    losses: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    problem: str = ""

    @property
    def rate(self) -> float:
        """The rate of the next update."""
        return self.ramp.at(len(self.losses))

    def add_loss(self, loss: float) -> None:
        """Record an update; RampEnded after the last one."""
        self.losses.append(loss)
        if len(self.losses) == self.ramp.updates:
            raise RampEnded

    def add_reward(self, reward: float, updates: int) -> None:
        """Record an episode that ended after so many updates."""
        self.rewards.append(reward)
        self.ended.append(updates)

    @property
    def rates(self) -> np.ndarray:
        """[n] of each update."""
        return np.array([self.ramp.at(i) for i in range(len(self.losses))])

    def rewards_of_updates(self, rewards: np.ndarray) -> np.ndarray:
        """[n], for each update the first of the rewards [E] of episodes that ended after it; for the last updates, that
        of the last episode. NaN where no episode ended."""
        if not len(rewards):
            return np.full(len(self.losses), np.nan)
        after = np.searchsorted(self.ended, np.arange(len(self.losses)), side="right")
        return rewards[np.minimum(after, len(rewards) - 1)]

    def rated_rewards(self) -> Observed:
        """The rewards of the episodes that ended after updates, at the rate of the last one before each."""
        pairs = [(n - 1, reward) for n, reward in zip(self.ended, self.rewards, strict=True) if n]
        rates = np.array([self.ramp.at(update) for update, _ in pairs])
        return Observed(rates, np.array([reward for _, reward in pairs], float))

    def normalised_rewards(self, window: int) -> np.ndarray:
        """[E]: each minus the mean of the last `window` up to it, over their standard deviation; 0 where that is 0."""
        found = np.zeros(len(self.rewards))
        for i, reward in enumerate(self.rewards):
            recent = np.array(self.rewards[max(0, i + 1 - window) : i + 1])
            spread = recent.std()
            found[i] = (reward - recent.mean()) / spread if spread > 0 else 0.0
        return found
