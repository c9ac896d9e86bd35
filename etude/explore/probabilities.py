"""Explorers over policies that are probabilities or logits [N, n] in plain arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from etude import ops
from etude.base import checks
from etude.base.data import Choice
from etude.base.errors import ConfigError
from etude.base.spaces import Discrete, Space
from etude.explore.explorer import Adjustable, StatelessExplorer, check_finite, check_values
from etude.explore.values import best_perturbed, epsilon_greedy, gumbel
from etude.losses.distributions import Categorical

_TOLERANCE = 1e-3  # how far from 1 a row of probabilities may sum: float16 networks reach this


@dataclass
class SoftmaxPolicy(Adjustable, StatelessExplorer):
    """Actions with the probabilities [N, n] that the agent gives: the softmax is the end of its network.

    Raises ConfigError where a row has a negative entry or does not sum to 1 (within 1e-3; the rest is divided out),
    NumericalError for NaN.
    """

    uniform_numbers = 1

    def distribution(self, output: Any, step: int) -> Categorical:
        probabilities, _ = check_values(output, "SoftmaxPolicy")
        total = probabilities.sum(1, np.float64)
        if not (probabilities.min() >= 0 and np.abs(total - 1).max() <= _TOLERANCE):
            bad = (probabilities < 0).any(1) | (np.abs(total - 1) > _TOLERANCE)
            row = int(np.flatnonzero(bad)[0])
            raise ConfigError(
                f"SoftmaxPolicy needs probabilities; row {row} of {len(total)} sums to {total[row]:.6g}, its least "
                f"entry is {probabilities[row].min():.6g}. Expected entries of at least 0 that sum to 1. End the "
                "network in a softmax; for action values or logits use BoltzmannQPolicy."
            )
        with np.errstate(divide="ignore"):  # a probability of 0 is a logit of minus infinity: never chosen
            return Categorical(np.log(probabilities))

    def select_action(self, nb_actions: int, probs: np.ndarray) -> int:
        """The action for the probabilities [nb_actions] of one state."""
        if np.shape(probs) != (nb_actions,):
            raise ConfigError(
                f"SoftmaxPolicy.select_action: probs has shape {np.shape(probs)}; expected ({nb_actions},), a "
                f"probability for each of nb_actions = {nb_actions} actions."
            )
        return self._select(probs)


@dataclass
class GumbelSoftmaxPolicy(Adjustable, StatelessExplorer):
    """One-hot samples [N, n] float32 of logits [N, n]. Jang et al. 2017, arXiv:1611.01144.

    temperature: of `gumbel_softmax_sample`; small ones make its rows nearly one-hot. One-hot samples, and so what is
    done in a run, do not depend on it: their chances are softmax(logits).
    eps: the chance of a random action in `onehot_from_logits`.

    The methods take logits [n] or [..., n] and return arrays of that shape. Minus infinity is never chosen.
    """

    temperature: float = 1.0
    eps: float = 0.01

    def check(self) -> None:
        check_finite(self, "temperature", "eps")
        checks.positive(self, "temperature")
        checks.fractions(self, "eps")

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        n = int(action_space.n) if isinstance(action_space, Discrete) else math.prod(action_space.shape or ())
        return rng.random((steps, n), np.float32)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        self.check()
        logits, _ = check_values(output, "GumbelSoftmaxPolicy")
        return Choice(_one_hot(best_perturbed(logits, noise, 1.0), logits.shape[1]), {})

    def onehot_from_logits(self, logits: np.ndarray) -> np.ndarray:
        """One-hot float32: the best action, or with probability `eps` a random one, for each row by itself."""
        self.check()
        rows, shape = _rows(logits)
        noise = self.rng.random((len(rows), 2), np.float32)
        return _one_hot(
            epsilon_greedy(*check_values(rows, "GumbelSoftmaxPolicy"), noise, self.eps), rows.shape[1]
        ).reshape(shape)

    def sample_gumbel(self, shape: tuple[int, ...] | int, eps: float = 1e-20) -> np.ndarray:
        """Standard Gumbel numbers, float64. eps: uniform numbers below it are taken for it, so that no logarithm is
        infinite."""
        if not 0 < eps < 1:
            raise ConfigError(f"sample_gumbel: eps = {eps!r}; expected a small number above 0.")
        return gumbel(np.maximum(self.rng.random(shape), eps))

    def gumbel_softmax_sample(self, logits: np.ndarray) -> np.ndarray:
        """softmax((logits + Gumbel noise) / temperature): rows of probabilities."""
        self.check()
        rows, shape = _rows(logits)
        perturbed = check_values(rows, "GumbelSoftmaxPolicy")[0] + self.sample_gumbel(rows.shape)
        return ops.softmax(perturbed / self.temperature).reshape(shape)

    def gumbel_softmax(self, logits: np.ndarray) -> np.ndarray:
        """One-hot float32: the largest entry of `gumbel_softmax_sample`, a sample of softmax(logits)."""
        rows, shape = _rows(self.gumbel_softmax_sample(logits))
        return _one_hot(rows.argmax(1), rows.shape[1]).reshape(shape)


def _rows(logits: Any) -> tuple[np.ndarray, tuple[int, ...]]:
    """Logits [..., n] as [rows, n], and their shape."""
    logits = np.asarray(logits)
    if logits.ndim == 0 or not logits.shape[-1]:
        raise ConfigError(f"GumbelSoftmaxPolicy takes logits [n] or [..., n]; got an array of shape {logits.shape}.")
    logits = logits.astype(np.result_type(logits, np.float32), copy=False)
    return logits.reshape(-1, logits.shape[-1]), logits.shape


def _one_hot(action: np.ndarray, n: int) -> np.ndarray:
    return (action[:, None] == np.arange(n)).astype(np.float32)
