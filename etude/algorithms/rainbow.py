"""Rainbow: C51 with five further parts, all of which are settings.

Hessel et al. 2018, Rainbow: combining improvements in deep reinforcement learning, arXiv:1710.02298.
"""

from __future__ import annotations

from dataclasses import dataclass

from etude.algorithms.c51 import C51Config
from etude.base.schedules import Linear
from etude.networks import Mlp, Spec


@dataclass(frozen=True)
class RainbowConfig(C51Config):
    """The six parts of Rainbow, of which the distributions of returns (Bellemare et al. 2017) are C51 itself."""

    double: bool = True  # double estimation: van Hasselt et al. 2016
    priority_exponent: float = 0.5  # prioritised replay, by the cross-entropy: Schaul et al. 2016
    importance_exponent: float | Linear = Linear(0.4, 1.0)
    n_step: int = 3  # multi-step targets: Sutton 1988
    network: Spec = Mlp((64, 64), dueling=True, noisy=0.5)  # dueling: Wang et al. 2016; noisy: Fortunato et al. 2018
    epsilon: float | Linear = 0.0  # the noise in the layers explores
