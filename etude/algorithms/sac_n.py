"""SAC-N: soft actor-critic on recorded data with N critics, whose minimum is low where the data says nothing.

An, Moon, Kim & Song 2021, Uncertainty-based offline reinforcement learning with diversified Q-ensemble,
arXiv:2110.01548, section 3. The agent is `SAC`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from etude.algorithms.temperature import check_temperature
from etude.base import checks
from etude.config import OfflineConfig
from etude.networks import Mlp, Spec


@dataclass(frozen=True)
class SACNConfig(OfflineConfig):
    """Hyperparameters of SAC-N, besides those of every offline algorithm."""

    network: Spec = Mlp((256, 256, 256))  # actor and critic networks
    n_critics: int = 10  # the N: the narrower the data, the more (the paper: 10 to 500)
    tau: float = 0.005  # Polyak rate of the target critics, applied after every gradient step
    temperature: float = 1.0  # entropy temperature alpha (its initial value if learned)
    learn_temperature: bool = True  # learn alpha so that the policy's entropy approaches target_entropy
    target_entropy: float | None = None  # target entropy in nats; None: minus the action dimension
    random_shift: int = 0  # shift images randomly by up to so many pixels in every batch (DrQ); 0: off
    n_target_critics: ClassVar[None] = None  # the target is the minimum of all critics
    policy_delay: ClassVar[int] = 1
    gsde_features: ClassVar[int] = 0  # nothing is explored

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "tau")
        check_temperature(self)
        checks.not_negative(self, "random_shift")
        checks.counts(self, "n_critics")
