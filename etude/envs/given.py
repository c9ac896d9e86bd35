"""Environments from what a user's agent holds: an environment, a Gymnasium id, `module:callable`, a callable, or a list
of these."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from etude.base.errors import ConfigError, SpaceError
from etude.base.spaces import Spaces, describe
from etude.envs.actions import Canonical, Units
from etude.envs.adapter import AdaptedEnvironment
from etude.envs.adopted import EXPECTED, Adopted, Environment, Instance, Lent, check_kind
from etude.envs.make import make_any, make_rendering, rendering
from etude.envs.parallel import RewardDone, Team
from etude.envs.registry import EnvironmentSpec, name_of, resolve
from etude.envs.vector import LoopEnvironments


@dataclass(frozen=True)
class Described:
    """What is to be known of environments before any is stepped."""

    name: str
    spaces: Spaces  # as the agent sees them
    team: Team | None  # where there are several agents
    notes: tuple[str, ...]  # what a user should be told once


@dataclass(frozen=True)
class GivenEnvironments:
    """`make_environments(columns) -> Environments` for what a user gave. Travels by cloudpickle.

    Column c takes entry c modulo their number. An instance is used itself for its own column, unless `copies` were
    asked for, and is then never closed; every other column gets a copy of it.

    units: of Box actions, `OwnUnits` or `Canonical`. reward_done: see `JointEnvironment`.
    """

    entries: tuple[EnvironmentSpec | Instance, ...]
    run_seed: int
    units: Units = Canonical
    reward_done: RewardDone | None = None
    lent: frozenset[int] = field(default_factory=frozenset)  # the columns that use an instance itself

    @classmethod
    def of(
        cls, given: Any, run_seed: int, units: Units = Canonical, reward_done: RewardDone | None = None
    ) -> GivenEnvironments:
        """Raises ConfigError for what neither is an environment nor could make one."""
        several = isinstance(given, list | tuple)
        if several and not given:
            raise ConfigError(f"The list of environments is empty; expected {EXPECTED}.")
        entries = tuple(_entry(one) for one in (given if several else [given]))
        first = {id(entry.env): i for i, entry in reversed(list(enumerate(entries))) if isinstance(entry, Instance)}
        return cls(entries, run_seed, units, reward_done, frozenset(first.values()))

    def copies(self) -> GivenEnvironments:
        """The same, with a copy of an instance also where it would be used itself: for playing beside training."""
        return replace(self, lent=frozenset())

    def __call__(self, columns: list[int] | np.ndarray) -> LoopEnvironments:
        """The environments with these numbers in the run."""
        return self._together([self._adopt(int(column)) for column in columns], columns)

    @property
    def name(self) -> str:
        """A short name for messages."""
        return _entry_name(self.entries[0])

    def describe(self) -> Described:
        """Look at one environment of each entry. Raises SpaceError where their spaces differ."""
        different = [i for i, entry in enumerate(self.entries) if not any(_same(entry, e) for e in self.entries[:i])]
        seen = []
        for i in different:
            adopted = self._adopt(i)
            environments = self._together([adopted], [i])
            seen.append(Described(_entry_name(self.entries[i]), environments.spaces, adopted.team, adopted.notes))
            environments.close()
        first = seen[0]
        for other in seen[1:]:
            if other.spaces != first.spaces:
                raise SpaceError(
                    f"All environments of one agent must have the same spaces; {first.name} has "
                    f"{_told(first.spaces)}, {other.name} has {_told(other.spaces)}."
                )
        return replace(first, notes=tuple(dict.fromkeys(text for one in seen for text in one.notes)))

    def single(self, render_mode: str | None = None) -> AdaptedEnvironment:
        """One environment to look at, beside those that are stepped.

        Raises ConfigError where it cannot be made with this `render_mode`.
        """
        entry = self.entries[0]
        env = _unused(entry) if render_mode is None else _rendering(entry, render_mode)
        adopted = Adopted(env, self.name, self.reward_done)
        return AdaptedEnvironment(adopted.env, self.name, self.units, adopted.rewards)

    def _together(self, adopted: list[Adopted], columns: list[int] | np.ndarray) -> LoopEnvironments:
        made = iter([one.env for one in adopted])
        rewards = adopted[0].rewards
        return LoopEnvironments(made.__next__, np.asarray(columns), self.run_seed, self.name, self.units, rewards)

    def _adopt(self, column: int) -> Adopted:
        entry = self.entries[column % len(self.entries)]
        itself = column in self.lent
        env = entry.env if itself and isinstance(entry, Instance) else _unused(entry)
        adopted = Adopted(env, _entry_name(entry), self.reward_done)
        if itself:
            adopted.env = Lent(adopted.env)
        return adopted


def _entry(given: Any) -> EnvironmentSpec | Instance:
    """One entry; what it makes is looked at where it is made."""
    if isinstance(given, str | type) or not isinstance(given, Environment) and callable(given):
        return given
    check_kind(given, f"{given!r}"[:80])
    return Instance(given)


def _unused(entry: EnvironmentSpec | Instance) -> Any:
    return entry.copied() if isinstance(entry, Instance) else make_any(resolve(entry), {})


def _rendering(entry: EnvironmentSpec | Instance, render_mode: str) -> Any:
    """One that renders in this mode."""
    if not isinstance(entry, Instance):
        return make_rendering(resolve(entry), render_mode)
    return rendering(entry.copied(), entry.name, render_mode)


def _entry_name(entry: EnvironmentSpec | Instance) -> str:
    return entry.name if isinstance(entry, Instance) else name_of(entry)


def _same(a: EnvironmentSpec | Instance, b: EnvironmentSpec | Instance) -> bool:
    return a.env is b.env if isinstance(a, Instance) and isinstance(b, Instance) else a == b


def _told(spaces: Spaces) -> str:
    return f"{describe(spaces.observation)} and {describe(spaces.action)}"
