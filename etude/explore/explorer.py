"""What explorers are made from: their bases, log probabilities of the actions of those that know them, and explorers
around another one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

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
class Around(ExplorerBase):
    """An explorer that draws and keeps what the explorer `inner` does."""

    inner: Explorer

    @property
    def state_size(self) -> int:
        """Of the explorer that it is around."""
        return self.inner.state_size

    def of(self, columns: np.ndarray) -> Self:
        """For the environments with these numbers."""
        return replace(self, inner=self.inner.of(columns))

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        """The random numbers for `steps` actions of one environment: [steps, k] float32."""
        return self.inner.draw(rng, steps, action_space)

    def with_log_prob(self) -> Self:
        return replace(self, inner=with_log_prob(self.inner))


class WithLogProb(Around):
    """The explorer `inner`, whose actions it leaves as they are, with their log probabilities as the extra `log_prob`
    [N] float32: what off-policy estimators need of recorded data."""

    def with_log_prob(self) -> Self:
        return self

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


NO_STATE = np.empty((1, 0))  # the state that a single call passes to a stateless explorer


class Alike(ExplorerBase):
    """An explorer that treats all environments alike."""

    def of(self, columns: np.ndarray) -> Self:
        """Itself."""
        return self


class StatelessExplorer(Alike):
    """An explorer that treats all environments alike and keeps no state from step to step."""

    state_size: int = 0


@dataclass(frozen=True)
class AtStep(Around):
    """The explorer `inner` as it explores at environment step `now` of the run, for episodes outside of training: its
    schedules stand still."""

    now: int

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        return self.inner(output, noise, self.now, state)

    def distribution(self, output: Any, step: int) -> Any:
        """The distribution of its actions, at step `now`."""
        return distribution_of(self.inner, output, self.now)


@dataclass(frozen=True)
class ByEnvironment(Around):
    """For actors with different weights in each environment, as those of evolution strategies: their `act` returns a
    function of the environments' numbers in the run, a tuple [N], whose result the explorer `inner` turns into actions.
    """

    columns: tuple[int, ...] = ()

    def of(self, columns: np.ndarray) -> Self:
        """For the environments with these numbers."""
        return replace(super().of(columns), columns=tuple(columns.tolist()))

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        columns = self.columns[: len(noise)]  # of the first ones only, where it is called for fewer
        return self.inner(output(columns), noise, step, state)


@dataclass(frozen=True)
class PerMember(Around):
    """Explores each of `members` runs, of `environments` environments each, as `inner` explores one: schedules and
    environments count from 0 in each. The environments of a run follow those of the run before."""

    members: int
    environments: int

    def of(self, columns: np.ndarray) -> Self:
        """For the environments with these numbers."""
        return super().of(columns % self.environments)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        """Actions for N environments; see `protocols.Explorer`. step: environment steps of all runs."""
        return self.inner(output, noise, step // self.members, state)
