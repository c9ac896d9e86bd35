"""Log probabilities of the actions of explorers that know them, for recorded data and for estimators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.base.data import LOG_PROB, Choice
from etude.base.errors import ConfigError
from etude.base.spaces import Space
from etude.protocols import Explorer


class ExplorerBase:
    """The base of etude's explorers. One that knows the probabilities of its actions overrides `distribution`."""

    @property
    def probability_extras(self) -> tuple[str, ...]:
        """The names of what `recorded_extras` returns; none where some actions have no log probability, or density."""
        known = type(self).distribution is not ExplorerBase.distribution
        return (LOG_PROB,) if known else ()

    def distribution(self, output: Any, step: int) -> Any:
        """The distribution of its actions for `output` of `act`, at environment step `step` of the run. ConfigError
        where their probabilities have no closed form."""
        raise unknown(self)

    def recorded_extras(self, output: Any, action: np.ndarray, step: int) -> dict[str, np.ndarray]:
        """What estimators need of the actions [N, ...] that it chose for `output` at `step`: `log_prob` [N] float32."""
        return {LOG_PROB: np.asarray(self.distribution(output, step).log_prob(action), np.float32)}

    def with_log_prob(self) -> Any:
        """The same explorer with these extras; itself where it knows none."""
        return WithLogProb(self) if self.probability_extras else self  # type: ignore[arg-type]


@dataclass(frozen=True)
class WithLogProb(ExplorerBase):
    """The explorer `inner`, whose actions it leaves as they are, with their log probabilities as the extra `log_prob`
    [N] float32: what off-policy estimators need of recorded data."""

    inner: Explorer

    @property
    def state_size(self) -> int:
        return self.inner.state_size

    def with_log_prob(self) -> WithLogProb:
        return self

    def of(self, columns: np.ndarray) -> WithLogProb:
        """For the environments with these numbers."""
        return WithLogProb(self.inner.of(columns))

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        return self.inner.draw(rng, steps, action_space)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        choice = self.inner(output, noise, step, state)
        if LOG_PROB in choice.extras:
            return choice
        known = self.inner if isinstance(self.inner, ExplorerBase) else self
        return Choice(choice.action, {**choice.extras, **known.recorded_extras(output, choice.action, step)})

    def distribution(self, output: Any, step: int) -> Any:
        """The distribution of its actions."""
        return distribution_of(self.inner, output, step)


def with_log_prob(explorer: Explorer) -> Explorer:
    """The explorer with the extra `log_prob`, where the probabilities of its actions are known; else itself. Your own
    explorers stay as they are."""
    return explorer.with_log_prob() if isinstance(explorer, ExplorerBase) else explorer


def distribution_of(explorer: Any, output: Any, step: int) -> Any:
    """The distribution of an explorer's actions for `output` of `act`, by its method `distribution(output, step)`.

    Raises ConfigError where it has none.
    """
    own = getattr(explorer, "distribution", None)
    if own is None:
        raise unknown(explorer)
    return own(output, step)


def unknown(explorer: Any) -> ConfigError:
    """The error where the probabilities of an explorer's actions are not known."""
    return ConfigError(
        f"{type(explorer).__name__} does not know the probabilities of its actions. Off-policy estimation needs a "
        "target such as Sample, EpsilonGreedy, Boltzmann or GaussianNoise: give explorer= (--explorer)."
    )
