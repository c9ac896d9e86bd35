"""Explorers made of others: one for each environment, or one for each agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from etude.base import trees
from etude.base.data import Choice
from etude.base.errors import ConfigError
from etude.base.spaces import Box, MultiDiscrete, Space
from etude.base.spaces import describe as describe_space
from etude.explore.explorer import ExplorerBase, with_log_prob
from etude.explore.outputs import describe
from etude.multi_agent.joint import join_actions, joined_actions
from etude.protocols import Explorer


@dataclass(frozen=True)
class Each(ExplorerBase):
    """One explorer for each environment: environment c of the run takes number c modulo their count.

    All must draw as many random numbers and have states of one size; ConfigError where they differ.
    """

    explorers: tuple[Any, ...]  # of Explorer; any sequence may be given

    def __post_init__(self) -> None:
        object.__setattr__(self, "explorers", tuple(self.explorers))
        if not self.explorers:
            raise ConfigError("Each needs at least one explorer; got none.")
        _ = self.state_size

    @property
    def state_size(self) -> int:
        return _one_width([explorer.state_size for explorer in self.explorers], self.explorers, "remember")

    def of(self, columns: np.ndarray) -> Explorer:
        """The explorer of these environments, if it is one for all of them; else one that deals their rows out."""
        chosen = np.asarray(columns) % len(self.explorers)
        parts = []
        for number in np.unique(chosen).tolist():
            rows = np.flatnonzero(chosen == number)
            parts.append((rows, self.explorers[number].of(np.asarray(columns)[rows])))
        return parts[0][1] if len(parts) == 1 else _Dealt(self, tuple(parts))  # type: ignore[return-value]

    def with_log_prob(self) -> Each:
        """With the extras of its explorers; itself where they return different ones."""
        extras = {each.probability_extras if isinstance(each, ExplorerBase) else () for each in self.explorers}
        return Each(tuple(map(with_log_prob, self.explorers))) if len(extras) == 1 else self

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        """The numbers of the first; a rollout asks `of` for the explorer of each environment and lets that one draw."""
        widths = [explorer.draw(np.random.default_rng(0), 1, action_space).shape[1] for explorer in self.explorers]
        _one_width(widths, self.explorers, "draw")
        return self.explorers[0].draw(rng, steps, action_space)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        """For environments 0 to N - 1."""
        return self.of(np.arange(len(noise)))(output, noise, step, state)


@dataclass(frozen=True)
class _Dealt:
    """`Each`, for some environments that have different explorers."""

    each: Each
    parts: tuple[tuple[np.ndarray, Explorer], ...]  # the rows of an explorer, in ascending order

    @property
    def state_size(self) -> int:
        return self.each.state_size

    def of(self, columns: np.ndarray) -> Explorer:
        return self.each.of(columns)

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        return self.each.draw(rng, steps, action_space)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        """For all of the environments, or the first of them."""
        n, all_rows, choices = len(noise), [], []
        for rows, explorer in self.parts:
            rows = rows[rows < n]
            if len(rows):
                some = state[rows]
                all_rows.append(rows)
                choices.append(explorer(trees.rows(output, rows), noise[rows], step, some))
                state[rows] = some
        _check_alike(choices, "Each")
        order = np.argsort(np.concatenate(all_rows))
        extras = {name: np.concatenate([c.extras[name] for c in choices])[order] for name in choices[0].extras}
        return Choice(np.concatenate([choice.action for choice in choices])[order], extras)


@dataclass(frozen=True)
class ByAgent:
    """One explorer for each of several agents, which act at once. `output` is a tuple of what `act` returns for each.

    The joint action is that of `joint`: [N, agents] int64 where all agents have Discrete actions; theirs one after the
    other, [N, sum of A] float32, where some have Box ones. Extras [N] of the agents become [N, agents].

    explorers: one for each agent, or one for all. spaces: the action space of each agent.
    """

    explorers: Explorer | Sequence[Explorer]
    spaces: Sequence[Space]
    state_size: int = field(init=False, compare=False, repr=False)
    _joined_space: Any = field(init=False, compare=False, repr=False)  # of the actions of all agents
    _noise: tuple[slice, ...] = field(init=False, compare=False, repr=False)  # the part of each agent
    _states: tuple[slice, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        spaces = tuple(self.spaces)
        explorers: Any = tuple(self.explorers) if isinstance(self.explorers, Sequence) else (self.explorers,)
        if len(explorers) == 1:
            explorers *= len(spaces)
        if len(explorers) != len(spaces) or not spaces:
            raise ConfigError(
                f"ByAgent got {len(explorers)} explorers for {len(spaces)} agents. Give one for each agent, or one "
                "alone for all of them."
            )
        drawn = [e.draw(np.random.default_rng(0), 1, s) for e, s in zip(explorers, spaces, strict=True)]
        noise, states = _slices([one.shape[1] for one in drawn]), _slices([e.state_size for e in explorers])
        made = {
            "explorers": explorers,
            "spaces": spaces,
            "_joined_space": joined_actions(spaces),
            "_noise": noise,
            "_states": states,
            "state_size": states[-1].stop,
        }
        for name, value in made.items():
            object.__setattr__(self, name, value)

    def of(self, columns: np.ndarray) -> ByAgent:
        """With what each agent's explorer is for these environments."""
        return ByAgent(tuple(explorer.of(columns) for explorer in self._explorers), self.spaces)

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        """Step by step and agent by agent, so that chunks of any length give the same numbers."""
        self._check_space(action_space)
        noise = np.empty((steps, self._noise[-1].stop), np.float32)
        for row in noise:
            for explorer, space, part in zip(self._explorers, self.spaces, self._noise, strict=True):
                row[part] = explorer.draw(rng, 1, space)[0]
        return noise

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        if type(output) is not tuple or len(output) != len(self.spaces):
            given = f"a tuple of {len(output)}" if type(output) is tuple else describe(output)
            raise ConfigError(
                f"ByAgent expects a tuple with the output for each of {len(self.spaces)} agents; the agent "
                f"returned {given}. Return one output for each, in their order."
            )
        choices = [
            explorer(one, noise[:, numbers], step, state[:, kept])
            for explorer, one, numbers, kept in zip(self._explorers, output, self._noise, self._states, strict=True)
        ]
        _check_alike(choices, "ByAgent", rows=True)
        extras = {name: np.stack([choice.extras[name] for choice in choices], 1) for name in choices[0].extras}
        return Choice(self._joined([choice.action for choice in choices]), extras)

    @property
    def _explorers(self) -> tuple[Explorer, ...]:
        return self.explorers  # type: ignore[return-value]

    def _joined(self, actions: list[np.ndarray]) -> np.ndarray:
        n = len(actions[0])
        for i, (action, space) in enumerate(zip(actions, self.spaces, strict=True)):
            shape, kinds = (n, *(space.shape or ())), "f" if isinstance(space, Box) else "iu"
            if action.shape != shape or action.dtype.kind not in kinds:
                raise ConfigError(
                    f"ByAgent: {type(self._explorers[i]).__name__} made {action.dtype} actions {list(action.shape)} "
                    f"for agent {i}, whose actions are {describe_space(space)}: expected {list(shape)}. Give that "
                    "agent an explorer for such actions, or a network with as many outputs."
                )
        return join_actions(actions, self.spaces)

    def _check_space(self, action_space: Space) -> None:
        wanted = self._joined_space
        if type(action_space) is not type(wanted) or (
            action_space.nvec.tolist() != wanted.nvec.tolist()  # type: ignore[attr-defined]
            if isinstance(wanted, MultiDiscrete)
            else action_space.shape != wanted.shape
        ):
            raise ConfigError(
                f"ByAgent is for agents with {', '.join(map(describe_space, self.spaces))}; the environment takes "
                f"{describe_space(action_space)}. Give ByAgent the action spaces of its agents."
            )


def _slices(widths: list[int]) -> tuple[slice, ...]:
    ends = np.cumsum(widths).tolist()
    return tuple(slice(end - width, end) for end, width in zip(ends, widths, strict=True))


def _one_width(widths: list[int], explorers: Sequence[Explorer], what: str) -> int:
    if len(set(widths)) > 1:
        found = ", ".join(f"{type(e).__name__} {width}" for e, width in zip(explorers, widths, strict=True))
        raise ConfigError(
            f"Each: the explorers of all environments must {what} as many numbers for a step; here {found}. Use "
            "explorers of one class with different parameters."
        )
    return widths[0]


def _check_alike(choices: list[Choice], who: str, rows: bool = False) -> None:
    """Choices can be put in one array; rows: each has its own shape, but their extras are alike."""
    kinds = {(*(() if rows else (c.action.dtype, c.action.shape[1:])), *sorted(c.extras)) for c in choices}
    if len(kinds) > 1:
        found = ", ".join(f"{c.action.dtype} {list(c.action.shape)} with {sorted(c.extras)}" for c in choices)
        raise ConfigError(
            f"{who}: the explorers must make actions of one kind, with the same extras; here {found}. Use explorers of "
            "one class with different parameters."
        )
