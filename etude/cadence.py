"""When a run evaluates and saves."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

from etude import checks
from etude.config.other_libraries import explain
from etude.errors import ConfigError


@dataclass(frozen=True)
class Cadence:
    """When a run evaluates and saves, in environment steps."""

    evaluate_every: int | None = None  # None: only when asked
    evaluate_episodes: int = 10
    target: float | None = None  # stop when the mean return of an evaluation reaches this
    save_every: int | None = None  # None: only at the end

    def __post_init__(self) -> None:
        checks.declared(self)
        for name in ("evaluate_every", "evaluate_episodes", "save_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} = {value}; expected a whole number of at least 1.")
        if self.target is not None and self.evaluate_every is None:
            raise ConfigError(f"target = {self.target} is reached by an evaluation: give evaluate_every, too.")

    @classmethod
    def of(cls, given: dict[str, Any]) -> Self:
        """From the keyword arguments of `train`; ConfigError for those that there are not."""
        known = [field.name for field in fields(cls)]
        if unknown := given.keys() - set(known):
            raise ConfigError(explain("train", unknown, ["steps", "report", *known]))
        return cls(**given)

    def evaluates(self, before: int, now: int) -> bool:
        """Whether an evaluation is due between two steps."""
        return _crossed(before, now, self.evaluate_every)

    def saves(self, before: int, now: int) -> bool:
        """Whether a checkpoint is due between two steps."""
        return _crossed(before, now, self.save_every)


def _crossed(before: int, now: int, every: int | None) -> bool:
    return every is not None and before // every != now // every
