"""Optimizers as data. Engines read these. The learning rate is not here: it is a field of the
algorithm's config, because it may change while a run goes on."""

from __future__ import annotations

from dataclasses import dataclass

from etude.base import checks
from etude.base.errors import ConfigError


@dataclass(frozen=True)
class Adam:
    """Kingma & Ba 2015, arXiv:1412.6980, Algorithm 1: `w -= rate * m / (1 - b1**t) / (sqrt(v / (1 - b2**t)) +
    epsilon)`.

    The same on every engine. (Keras' own Adam adds epsilon before the bias correction, torch's after it; for
    epsilon = 1e-5 and early steps the two differ by tens of per cent.)
    """

    beta1: float = 0.9  # decay of the running mean of gradients
    beta2: float = 0.999  # decay of the running mean of their squares
    epsilon: float = 1e-8  # added to the root of that mean

    def __post_init__(self) -> None:
        checks.fractions(self, "beta1", "beta2")
        checks.positive(self, "epsilon")
        if max(self.beta1, self.beta2) == 1:
            raise ConfigError(f"Adam: beta1 = {self.beta1}, beta2 = {self.beta2}; expected numbers below 1.")
