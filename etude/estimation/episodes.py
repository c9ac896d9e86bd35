"""Recorded episodes as arrays [E, T], filled up with zeros after their ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from etude.base.data import LOG_PROB, Episode
from etude.base.errors import DataError
from etude.base.spaces import Box, Space

LARGEST_LOG = 300.0  # of a weight: the square of a larger one may be no float64
ROUNDING = 1e-3  # how far above 0 the log of a probability may be that was rounded


class EpisodeTable(NamedTuple):
    """What estimators read, [E, T]; see `importance`."""

    reward: np.ndarray
    log_ratio: np.ndarray
    q: np.ndarray
    v: np.ndarray

    @property
    def log_weight(self) -> np.ndarray:
        """[E] of the whole episodes."""
        return self.log_ratio.sum(1)


def filled(lengths: np.ndarray, values: np.ndarray) -> np.ndarray:
    """[E, T] float64 from the values of all steps, one episode after the other: [sum of lengths]."""
    table = np.zeros((len(lengths), lengths.max()))
    table[np.arange(lengths.max()) < lengths[:, None]] = values
    return table


def rewards_of(episodes: Sequence[Episode]) -> np.ndarray:
    """The rewards of all steps [sum of L]. DataError for one that is not finite."""
    for i, episode in enumerate(episodes):
        if not np.isfinite(episode.reward).all():
            step = int(np.argmin(np.isfinite(episode.reward)))
            raise DataError(
                f"Episode {i}: the reward of step {step} is {episode.reward[step]}; expected a finite number. Record "
                "the data again, or leave this episode out."
            )
    return np.concatenate([episode.reward for episode in episodes]).astype(np.float64)


def behaviour_of(episodes: Sequence[Episode], actions: Space, methods: str) -> np.ndarray:
    """The recorded log probabilities of all actions [sum of L]. methods: those that need them, for errors.

    Raises DataError where there are none, and for what no log probability can be.
    """
    for i, episode in enumerate(episodes):
        if LOG_PROB not in episode.extras:
            raise DataError(
                f"{methods} divide by the probabilities with which the recorded actions were taken, and episode {i} of "
                f"the data has no {LOG_PROB!r}; it has {sorted(episode.extras) or 'no extras'}. Record it with an "
                "explorer whose probabilities are known, such as EpsilonGreedy, GaussianNoise of a standard deviation "
                "above 0, or a sampled policy: etude.record(env, episodes, run=run, explore=True). Best actions alone, "
                "and noise that is correlated in time, have none. Or estimate by fqe or dm, which need none."
            )
        log_prob = np.asarray(episode.extras[LOG_PROB])
        if log_prob.shape != (len(episode.reward),):
            raise DataError(
                f"Episode {i}: {LOG_PROB!r} has the shape {list(log_prob.shape)}; expected one number for each of its "
                f"{len(episode.reward)} steps."
            )
        bad = ~np.isfinite(log_prob)
        if not isinstance(actions, Box):
            bad |= log_prob > ROUNDING
        if bad.any():
            step = int(np.argmax(bad))
            raise DataError(
                f"Episode {i}: the {LOG_PROB!r} of step {step} is {log_prob[step]}; expected the natural log of the "
                "probability of the action that was taken, a finite number"
                + ("." if isinstance(actions, Box) else " of at most 0.")
            )
    return np.concatenate([episode.extras[LOG_PROB] for episode in episodes]).astype(np.float64)


def check_weights(log_ratio: np.ndarray) -> None:
    """Raise DataError where weights are too large to compute with."""
    largest = np.cumsum(log_ratio, 1).max()
    if largest > LARGEST_LOG:
        raise DataError(
            f"An episode's importance weight is e^{largest:.0f}: the target is too far from the behaviour to reweight "
            "its episodes. Estimate by fqe, or record episodes with a policy that is closer to the target."
        )
