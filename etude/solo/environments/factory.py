"""Environments from an agent's `env`: an environment, a Gymnasium id, `module:callable`, a callable, or a list of
these."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from etude.base.errors import ConfigError, SpaceError
from etude.base.spaces import Spaces, describe
from etude.envs.actions import ActionScaling, NormalisedActions
from etude.envs.adapter import AdaptedEnvironment
from etude.envs.make import make_any, make_rendering, rendering
from etude.envs.registry import EnvironmentSpec, name_of, resolve
from etude.envs.vector import LoopEnvironments
from etude.solo.environments.multi_agent import MultiAgentSpaces, RewardDone
from etude.solo.environments.wrapped import (
    EXPECTED,
    Environment,
    EnvironmentInstance,
    KeptOpen,
    WrappedEnvironment,
    check_kind,
)


@dataclass(frozen=True)
class EnvironmentDescription:
    """What is known of environments before any is stepped."""

    name: str
    spaces: Spaces  # as the agent sees them
    agents: MultiAgentSpaces | None  # where there are several agents
    notes: tuple[str, ...]  # to warn the user of, once


@dataclass(frozen=True)
class UserEnvironments:
    """`make_environments(columns) -> Environments` for an agent's `env`. Sent to workers by cloudpickle.

    Environment c of the run is made from entry c modulo their number. An instance is used itself for its own
    environment, unless `copies` were asked for, and is then never closed; every other environment gets a copy of it.

    scaling: of Box actions, `RawActions` or `NormalisedActions`. reward_done: see `AllAgentsStepper`.
    """

    entries: tuple[EnvironmentSpec | EnvironmentInstance, ...]
    run_seed: int
    scaling: ActionScaling = NormalisedActions
    reward_done: RewardDone | None = None
    in_place: frozenset[int] = field(default_factory=frozenset)  # the environments that are an instance itself

    @classmethod
    def of(
        cls, env: Any, run_seed: int, scaling: ActionScaling = NormalisedActions, reward_done: RewardDone | None = None
    ) -> UserEnvironments:
        """Raises ConfigError for what neither is an environment nor could make one."""
        several = isinstance(env, list | tuple)
        if several and not env:
            raise ConfigError(f"The list of environments is empty; expected {EXPECTED}.")
        entries = tuple(_entry(one) for one in (env if several else [env]))
        numbered = reversed(list(enumerate(entries)))
        first = {id(entry.env): i for i, entry in numbered if isinstance(entry, EnvironmentInstance)}
        return cls(entries, run_seed, scaling, reward_done, frozenset(first.values()))

    def copies(self) -> UserEnvironments:
        """The same, with copies of all instances: for episodes beside training."""
        return replace(self, in_place=frozenset())

    def __call__(self, columns: list[int] | np.ndarray) -> LoopEnvironments:
        """The environments with these numbers in the run."""
        return self._vectorised([self._wrap(int(column)) for column in columns], columns)

    @property
    def name(self) -> str:
        """A short name for messages."""
        return _entry_name(self.entries[0])

    def describe(self) -> EnvironmentDescription:
        """Look at one environment of each entry. Raises SpaceError where their spaces differ."""
        different = [i for i, entry in enumerate(self.entries) if not any(_same(entry, e) for e in self.entries[:i])]
        seen = []
        for i in different:
            wrapped = self._wrap(i)
            environments = self._vectorised([wrapped], [i])
            name = _entry_name(self.entries[i])
            seen.append(EnvironmentDescription(name, environments.spaces, wrapped.agents, wrapped.notes))
            environments.close()
        first = seen[0]
        for other in seen[1:]:
            if other.spaces != first.spaces:
                raise SpaceError(
                    f"All environments of one agent must have the same spaces; {first.name} has "
                    f"{_spaces_text(first.spaces)}, {other.name} has {_spaces_text(other.spaces)}."
                )
        return replace(first, notes=tuple(dict.fromkeys(text for one in seen for text in one.notes)))

    def single(self, render_mode: str | None = None) -> AdaptedEnvironment:
        """One environment apart from those of the run.

        Raises ConfigError where it cannot be made with this `render_mode`.
        """
        entry = self.entries[0]
        env = _make(entry) if render_mode is None else _make_rendering(entry, render_mode)
        wrapped = WrappedEnvironment(env, self.name, self.reward_done, self.scaling)
        return AdaptedEnvironment(wrapped.env, self.name, self.scaling, wrapped.rewards)

    def _vectorised(self, wrapped: list[WrappedEnvironment], columns: list[int] | np.ndarray) -> LoopEnvironments:
        made = iter([one.env for one in wrapped])
        rewards = wrapped[0].rewards
        return LoopEnvironments(made.__next__, np.asarray(columns), self.run_seed, self.name, self.scaling, rewards)

    def _wrap(self, column: int) -> WrappedEnvironment:
        entry = self.entries[column % len(self.entries)]
        in_place = column in self.in_place
        env = entry.env if in_place and isinstance(entry, EnvironmentInstance) else _make(entry)
        wrapped = WrappedEnvironment(env, _entry_name(entry), self.reward_done, self.scaling)
        if in_place:
            wrapped.env = KeptOpen(wrapped.env)
        return wrapped


def _entry(env: Any) -> EnvironmentSpec | EnvironmentInstance:
    """One entry; what a callable makes is checked where it is called."""
    if isinstance(env, str | type) or not isinstance(env, Environment) and callable(env):
        return env
    check_kind(env, f"{env!r}"[:80])
    return EnvironmentInstance(env)


def _make(entry: EnvironmentSpec | EnvironmentInstance) -> Any:
    return entry.copied() if isinstance(entry, EnvironmentInstance) else make_any(resolve(entry), {})


def _make_rendering(entry: EnvironmentSpec | EnvironmentInstance, render_mode: str) -> Any:
    if not isinstance(entry, EnvironmentInstance):
        return make_rendering(resolve(entry), render_mode)
    return rendering(entry.copied(), entry.name, render_mode)


def _entry_name(entry: EnvironmentSpec | EnvironmentInstance) -> str:
    return entry.name if isinstance(entry, EnvironmentInstance) else name_of(entry)


def _same(a: EnvironmentSpec | EnvironmentInstance, b: EnvironmentSpec | EnvironmentInstance) -> bool:
    if isinstance(a, EnvironmentInstance) and isinstance(b, EnvironmentInstance):
        return a.env is b.env
    return a == b


def _spaces_text(spaces: Spaces) -> str:
    return f"{describe(spaces.observation)} and {describe(spaces.action)}"
