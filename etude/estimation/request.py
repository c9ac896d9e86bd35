"""What to estimate, and from which data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from etude.base.errors import ConfigError
from etude.base.other_libraries import explain
from etude.estimation.estimators import check_confidence, chosen
from etude.estimation.fqe import FQEConfig


@dataclass(frozen=True)
class EstimateRequest:
    """What `etude.estimate` estimates.

    data: recorded episodes: the path of a file, a `Dataset` of `etude.offline`, or canonical episodes. None takes those
        that the run learns from, where it learns from recorded data alone.
    methods: names of `estimation.METHODS`, and "simulation", which plays episodes of the run's environment.
    confidence: of the intervals.
    gamma: the discount factor; None: the run's.
    explore: estimate the policy that explores as in training, at the run's present step; else the best actions.
    explorer: estimate the policy of this explorer on the agent's output instead, such as `etude.explore.Boltzmann(1)`.
    softened: estimate the best actions softened: of Discrete actions, a random one with this probability; of Box
        actions, Gaussian noise with this standard deviation (actions are in [-1, 1]).
    model: what "dm", "dr" and "wdr" take values from: an `FQEConfig`; or an object with `q(observation, action)` and
        `v(observation)`, the values [M] of recorded steps under the target, in NumPy. None: `FQEConfig()`. "fqe" is the
        direct method with values of FQE.
    episodes: of the simulation.
    seed: of FQE and simulation; None: the run's.
    """

    data: Any = None
    methods: str | Iterable[str] = ("wis",)
    confidence: float = 0.95
    gamma: float | None = None
    explore: bool = False
    explorer: Any = None
    softened: float | None = None
    model: Any = None
    episodes: int = 100
    seed: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "methods", chosen(self.methods))
        check_confidence(self.confidence)
        if self.gamma is not None and not 0 <= self.gamma <= 1:
            raise ConfigError(f"gamma = {self.gamma!r}; expected a number from 0 to 1, or None for the run's.")
        given = [name for name in ("explore", "explorer", "softened") if getattr(self, name) not in (None, False)]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} each say which policy is estimated. Give one of them.")
        if self.softened is not None and not self.softened > 0:
            raise ConfigError(f"softened = {self.softened!r}; expected a positive number, such as 0.1.")
        if self.episodes < 1:
            raise ConfigError(f"episodes = {self.episodes!r}; expected a whole number of at least 1.")
        if self.model is not None and not isinstance(self.model, FQEConfig):
            missing = [name for name in ("q", "v") if not callable(getattr(self.model, name, None))]
            if missing:
                raise ConfigError(
                    f"model = {self.model!r} has no {' and no '.join(missing)}. Expected an FQEConfig, or an object "
                    "with q(observation, action) and v(observation)."
                )

    @classmethod
    def of(cls, given: Any) -> EstimateRequest:
        """From a dict of arguments, as `train(estimate=)` takes them; ConfigError for other names."""
        if isinstance(given, EstimateRequest):
            return given
        if given is not None and not isinstance(given, dict):
            raise ConfigError(f"estimate = {given!r}; expected a dict of arguments of etude.estimate, such as data.")
        known = [field.name for field in fields(cls)]
        if unknown := [name for name in given or () if name not in known]:
            raise ConfigError(explain("estimate", unknown, known))
        return cls(**(given or {}))
