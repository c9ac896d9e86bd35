"""What is checked of an agent's output before an action is made of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.base import trees
from etude.base.errors import ConfigError, EnvironmentFault, NumericalError
from etude.losses.distributions import Categorical, Conditional, MultiCategorical, NumbersAndChoices
from etude.losses.masks import MaskedValues, allowed_only


def is_finite(values: np.ndarray) -> bool:
    """Whether no value is NaN or infinite, in one product; may say no where values are merely enormous."""
    flat = values.ravel()
    return bool(flat.dot(flat) < np.inf)


def describe(output: Any) -> str:
    """An output in a few words, for messages."""
    return f"an array of shape {output.shape}" if isinstance(output, np.ndarray) else f"a {type(output).__name__}"


def check_values(output: Any, explorer: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Action values [N, n], minus infinity where an action is forbidden, and which may be chosen, [N, n] bool; None
    where all may.

    Raises ConfigError for anything but values [N, n], plain or with their mask, NumericalError for NaN and infinity,
    EnvironmentFault where a mask forbids every action. In plain values minus infinity forbids an action.
    """
    values = output.values if isinstance(output, MaskedValues) else output
    if not isinstance(values, np.ndarray) or values.ndim != 2:
        raise ConfigError(
            f"{explorer} chooses by action values [environments, n]; the agent returned {describe(values)}. "
            "For a distribution use Sample or Greedy."
        )
    if isinstance(output, MaskedValues):
        check_masked(values, output.allowed)
        return allowed_only(output), output.allowed
    return values, None if is_finite(values) else _not_minus_infinity(values)


def check_distribution(output: Any, explorer: str) -> Any:
    """A finite distribution, with some action that is allowed; raises ConfigError for anything else, and what
    `check_values` raises."""
    if not isinstance(output, tuple) or type(output) is tuple:
        raise ConfigError(
            f"{explorer} needs a distribution of etude.losses.distributions, such as Categorical(logits), "
            f"Gaussian(mean, log_std) or Deterministic(action); the agent returned {describe(output)}."
        )
    if isinstance(output, NumbersAndChoices):
        check_distribution(output.numbers, explorer)
        check_distribution(output.choices, explorer)
        return output
    if isinstance(output, Categorical | MultiCategorical | Conditional):
        for part in (output,) if isinstance(output, Categorical) else output.parts():
            if part.masked:
                check_masked(part.logits, part.allowed)
            elif not is_finite(part.logits):
                _not_minus_infinity(part.logits)
        return output
    for leaf in trees.leaves(output):
        if not is_finite(leaf):
            check_numbers(leaf)
    return output


def check_masked(values: np.ndarray, allowed: np.ndarray) -> None:
    """Raise NumericalError where a value or logit [N, ..., n] is NaN or infinite, EnvironmentFault where a row of the
    mask [N, ..., n] allows no action."""
    check_action(values)
    if not (some := allowed.any(-1).reshape(len(values), -1).all(1)).all():
        raise EnvironmentFault(
            f"Environment {np.argmin(some)} of {len(values)} allows no action: its action mask is zero everywhere. "
            "A mask needs at least one 1, also in the last observation of an episode."
        )


def check_action(action: np.ndarray) -> None:
    """Raise NumericalError where a number of the output [N, ...] is NaN or infinite."""
    if not is_finite(action):
        check_numbers(action)
        check_numbers(-action)


def check_numbers(output: np.ndarray) -> None:
    """Raise NumericalError where a number of the output [N, ...] is NaN or infinite; minus infinity passes."""
    _refuse(output, ~(output < np.inf).reshape(len(output), -1).all(1))


def _not_minus_infinity(values: np.ndarray) -> np.ndarray:
    """[N, n] bool. Raises NumericalError for NaN, infinity, and rows of nothing but minus infinity."""
    check_numbers(values)
    free = values > -np.inf
    _refuse(values, ~free.any(-1).reshape(len(values), -1).all(1))
    return free


def _refuse(output: np.ndarray, bad: Any) -> None:
    """bad: [N] bool, the environments whose output cannot be used."""
    if bad.any():
        row = int(np.argmax(bad))
        raise NumericalError(
            f"The agent's output for environment {row} of {len(output)} is NaN or infinite: {output[row]}. Either the "
            "weights have diverged (lower the learning rate, or bound gradients: max_gradient_norm in a run) or an "
            "observation is not finite."
        )
