"""Policies as distributions: named tuples of arrays, so that every framework takes them for trees.

The last axis of the parameters belongs to the action; all others are batch axes, `[B]` for short. Randomness is an
argument: standard normal numbers for continuous actions, uniform ones in [0, 1) for choices, one per number of the
action. Choices carry the action mask beside their logits: what it forbids has probability 0 and is never sampled.
"""

from typing import Protocol

from etude.losses.distributions.choices import (
    FORBIDDEN_LOG,
    UNMASKED,
    Bernoullis,
    Categorical,
    Conditional,
    MultiCategorical,
    of_choices,
)
from etude.losses.distributions.continuous import (
    Beta,
    Deterministic,
    Gaussian,
    Mixture,
    NumbersAndChoices,
    StateDependentGaussian,
    TanhGaussian,
    state_dependent,
)
from etude.ops import Array


class Distribution(Protocol):
    """What agents and explorers need of a distribution over actions, a named tuple of arrays [B, ...].

    Losses with an entropy bonus call `entropy()` [B] too, APPO `kl(other)` [B].
    """

    def sample(self, noise: Array) -> Array:
        """One action [B, ...] per row of noise."""

    def sample_with_log_prob(self, noise: Array) -> tuple[Array, Array]:
        """One action per row of noise, and its log probability (density) [B]."""

    def log_prob(self, action: Array) -> Array:
        """The log probability (density) [B] of actions."""

    def mode(self) -> Array:
        """The action that is taken where nothing is explored."""


__all__ = [
    "FORBIDDEN_LOG", "UNMASKED", "Bernoullis", "Beta", "Categorical", "Conditional", "Deterministic", "Distribution",
    "Gaussian", "Mixture", "MultiCategorical", "NumbersAndChoices", "StateDependentGaussian", "TanhGaussian",
    "of_choices", "state_dependent",
]  # fmt: skip
