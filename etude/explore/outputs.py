"""What is checked of an agent's output before an action is made of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude import trees
from etude.errors import ConfigError, EnvironmentFault, NumericalError
from etude.losses.distributions import Categorical, MultiCategorical

MASKED = -1e8  # values and logits up to here belong to actions that a mask forbids
_PLAIN = 1e16  # MASKED squared: a sum of squares below it says in one product that nothing is masked and nothing NaN


def is_plain(values: np.ndarray) -> bool:
    """Whether no value is NaN or masked; may say no where values are merely enormous."""
    flat = values.ravel()
    return bool(flat.dot(flat) < _PLAIN)


def describe(output: Any) -> str:
    """An output in a few words, for messages."""
    return f"an array of shape {output.shape}" if isinstance(output, np.ndarray) else f"a {type(output).__name__}"


def check_values(values: Any, explorer: str) -> np.ndarray:
    """Action values [N, n]; raises ConfigError for anything else."""
    if not isinstance(values, np.ndarray) or values.ndim != 2:
        raise ConfigError(
            f"{explorer} chooses by action values [environments, n]; the agent's act returned {describe(values)}. "
            "For a distribution use Sample or Greedy."
        )
    return values


def check_distribution(output: Any, explorer: str) -> Any:
    """A finite distribution, with some action that is allowed; raises ConfigError for anything else."""
    if not isinstance(output, tuple) or type(output) is tuple:
        raise ConfigError(
            f"{explorer} needs a distribution of etude.losses.distributions, such as Categorical(logits), "
            f"Gaussian(mean, log_std) or Deterministic(action); the agent's act returned {describe(output)}."
        )
    for leaf in trees.leaves(output):
        if not is_plain(leaf):
            check = allowed if isinstance(output, Categorical | MultiCategorical) else check_numbers
            check(leaf)
    return output


def allowed(values: np.ndarray) -> np.ndarray:
    """Which of the values or logits [N, n] belong to actions that may be chosen, [N, n] bool.

    Raises NumericalError for NaN and infinity, EnvironmentFault where every action is masked.
    """
    check_numbers(values)
    free = values > MASKED
    blocked = np.flatnonzero(~free.any(-1))
    if blocked.size:
        raise EnvironmentFault(
            f"Environment {blocked[0]} of {len(values)} allows no action: its action mask is zero everywhere. "
            "A mask needs at least one 1, also in the last observation of an episode."
        )
    return free


def check_action(action: np.ndarray) -> None:
    """Raise NumericalError where a continuous action [N, ...] is NaN or infinite."""
    if not is_plain(action):
        check_numbers(action)
        check_numbers(-action)


def check_numbers(output: Any) -> None:
    """Raise NumericalError where an array of the output is NaN or infinite; minus infinity passes, as a mask."""
    for leaf in trees.leaves(output):
        bad = np.argwhere(~(leaf < np.inf))
        if bad.size:
            row = bad[0][0]
            raise NumericalError(
                f"The agent's output for environment {row} of {len(leaf)} is NaN or infinite: {leaf[row]}. Either the "
                "weights have diverged (lower the learning rate, or clip gradients) or an observation is not finite."
            )
