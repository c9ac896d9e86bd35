"""A learning rate that grows geometrically from update to update, what training with it reported, and which rate these
curves suggest.

The criterion is that of Smith 2017, arXiv:1506.01186: the rate at which the smoothed curve improves fastest, before it
breaks. Losses of reinforcement learning move with their targets, so that changes count only above their noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from etude.base.errors import ConfigError
from etude.solo.callbacks import EndTraining

Metric = Literal["reward", "loss"]

FEWEST = 8  # values of a curve that says anything
SHARE = 0.1  # of the values that one smoothed value is a mean over
BROKEN = 4.0  # times the noise, or the improvement before, that a loss has risen by where it diverges
IMPROVED = 6.0  # times the noise of a smoothed value that counts as an improvement
MARGIN = 10.0  # of a suggestion below the rate at which the loss diverges


class LRSuggestion(NamedTuple):
    """A learning rate, or None, and why. metric: of the curve that it was read from; None without one."""

    rate: float | None
    reason: str
    metric: Metric | None = None


class RateCurve(NamedTuple):
    """A curve, smaller is better, as a suggestion reads it.

    broken: the first place from which on it is out of bounds; None where it stays. steepest: the place of the fastest
    improvement before that; None where it does not improve.
    """

    broken: int | None
    steepest: int | None


def smoothed(values: np.ndarray) -> np.ndarray:
    """[n] running means over SHARE of the curve, centred, over fewer values at its ends."""
    half = max(1, round(len(values) * SHARE / 2))
    ends = np.clip(np.arange(len(values))[:, None] + [-half, half + 1], 0, len(values))
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return (sums[ends[:, 1]] - sums[ends[:, 0]]) / (ends[:, 1] - ends[:, 0])


def read_curve(values: np.ndarray) -> RateCurve:
    """Where a curve [n] breaks, and where it improves fastest before. The first value that is not finite breaks it."""
    finite = np.isfinite(values)
    end = len(values) if finite.all() else int(np.argmin(finite))
    if end < FEWEST:
        return RateCurve(end if end < len(values) else None, None)
    curve = smoothed(values[:end])
    noise = 1.4826 * float(np.median(np.abs(np.diff(values[:end])))) / np.sqrt(2)
    lowest = np.minimum.accumulate(curve)
    allowed = BROKEN * np.maximum(noise, curve[0] - lowest)
    out = curve - lowest > np.maximum(allowed, 1e-6 * np.abs(curve[0]))
    broken = int(np.argmax(out)) if out.any() else end if end < len(values) else None
    best = int(np.argmin(curve[:broken]))
    width = max(3, round(end * SHARE))
    if best < 2 or curve[: best + 1].max() - curve[best] <= IMPROVED * noise / np.sqrt(width):
        return RateCurve(broken, None)
    return RateCurve(broken, int(np.argmin(np.gradient(curve[: best + 1]))))


class Observed(NamedTuple):
    """What was observed at learning rates that grow: both [n], of updates or of episodes."""

    rates: np.ndarray
    values: np.ndarray


def suggest(losses: Observed, rewards: Observed) -> LRSuggestion:
    """From losses of updates and rewards of episodes. The rewards count where they improve, else the losses; a loss
    that diverges bounds both. A loss that is not finite is NaN."""
    loss, reward = read_curve(losses.values), read_curve(-rewards.values)
    bound, where = None, ""
    if loss.broken is not None:
        diverged = float(losses.rates[loss.broken])
        bound, where = diverged / MARGIN, f"the loss diverges at {diverged:.2g}"
    metric: Metric
    if reward.steepest is not None:
        metric, rate = "reward", float(rewards.rates[reward.steepest])
    elif loss.steepest is not None:
        metric, rate = "loss", float(losses.rates[loss.steepest])
    elif bound is not None:
        return LRSuggestion(bound, f"{where}, and no curve improves before: a tenth of that.")
    else:
        return LRSuggestion(None, _flat(len(losses.rates)))
    reason = f"the smoothed {metric} improves fastest at {rate:.2g}"
    if bound is not None and bound < rate:
        return LRSuggestion(bound, f"{reason}, but {where}: a tenth of that.", metric)
    return LRSuggestion(rate, f"{reason}{f'; {where}' if where else ''}.", metric)


def _flat(updates: int) -> str:
    if updates < FEWEST:
        return f"only {updates} updates were made, and a curve needs {FEWEST}: give more episodes, or a larger N."
    return (
        "neither reward nor loss changes by more than its noise. Raise end_lr, or N, so that more episodes are played "
        "at each rate."
    )


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
