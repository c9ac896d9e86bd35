"""Exploration where several policies act in one environment, some of which may be functions that learn nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np

from etude.base import trees
from etude.base.data import Choice
from etude.base.errors import EnvironmentFault, EtudeError
from etude.base.spaces import ACTION_MASK, Box, Discrete, MultiDiscrete, Space, describe, zeros
from etude.explore.explorer import StatelessExplorer
from etude.multi_agent.joint import ACTING, AGENTS, STATUS, AgentSubset, join_actions
from etude.protocols import Explorer

_STEPS = 2**24  # float32 numbers in [0, 1) are multiples of 1 / _STEPS


@dataclass(frozen=True)
class ByPolicy:
    """One explorer for each of several policies. `output` is a dict of what each policy's `act` returns.

    Extras of a policy are named `policy.name`. subsets: the agents of each policy. action_space: of all agents.
    """

    explorers: Mapping[str, Explorer]
    subsets: Mapping[str, AgentSubset] = field(compare=False, repr=False)
    action_space: Space = field(compare=False, repr=False)
    _noise: dict[str, slice] = field(init=False, compare=False, repr=False)  # the part of each policy
    _states: dict[str, slice] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(0)
        drawn = {name: each.draw(rng, 1, self._actions(name)).shape[1] for name, each in self.explorers.items()}
        object.__setattr__(self, "_noise", _slices(drawn))
        object.__setattr__(self, "_states", _slices({name: each.state_size for name, each in self.explorers.items()}))

    @property
    def state_size(self) -> int:
        return max(part.stop for part in self._states.values())

    def of(self, columns: np.ndarray) -> ByPolicy:
        """With what each policy's explorer is for these environments."""
        return replace(self, explorers={name: each.of(columns) for name, each in self.explorers.items()})

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        """Step by step and policy by policy, so that chunks of any length give the same numbers."""
        noise = np.empty((steps, max(part.stop for part in self._noise.values())), np.float32)
        for row in noise:
            for name, explorer in self.explorers.items():
                row[self._noise[name]] = explorer.draw(rng, 1, self._actions(name))[0]
        return noise

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        action: Any = zeros(self.action_space, len(noise))
        extras: dict[str, np.ndarray] = {}
        for name, explorer in self.explorers.items():
            choice = explorer(output[name], noise[:, self._noise[name]], step, state[:, self._states[name]])
            self.subsets[name].put_action(action, choice.action)
            extras |= {f"{name}.{key}": value for key, value in choice.extras.items()}
        return Choice(action, extras)

    def _actions(self, policy: str) -> Space:
        return self.subsets[policy].spaces.action


@dataclass(frozen=True)
class Heuristic(StatelessExplorer):
    """A policy that learns nothing. `output` is what the agents of the policy observe.

    choose: `choose(observation, rng) -> action` for one agent that acts now: its observation and its action as agents
        see them, Discrete actions counted from 0 and bounded Box actions in [-1, 1]. A pure function of both arguments:
        runs are repeated and resumed bit for bit. rng: a NumPy generator of this agent and step alone.
    Raises EnvironmentFault where it raises, or returns what is no action of the agent.
    """

    policy: str
    choose: Callable[[Any, np.random.Generator], Any]
    subset: AgentSubset = field(compare=False, repr=False)

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        return rng.random((steps, 2), np.float32)

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        acting, seeds = output[STATUS] == ACTING, (noise * _STEPS).astype(np.int64)
        actions = []
        for i, (agent, spaces) in enumerate(self.subset.agents.items()):
            own = zeros(spaces.action, len(noise))
            for row in np.flatnonzero(acting[:, i]).tolist():
                seen = trees.map(lambda leaf, row=row: np.array(leaf[row]), output[AGENTS][agent])
                own[row] = self._chosen(agent, spaces.action, seen, np.random.default_rng([*seeds[row].tolist(), i]))
            actions.append(own)
        return Choice(join_actions(actions, [spaces.action for spaces in self.subset.agents.values()]), {})

    def _chosen(self, agent: str, space: Space, observation: Any, rng: np.random.Generator) -> np.ndarray:
        mask = observation[ACTION_MASK].copy() if isinstance(observation, dict) and ACTION_MASK in observation else None
        try:
            action = np.asarray(self.choose(observation, rng))
        except EtudeError:
            raise
        except Exception as error:
            raise EnvironmentFault(
                f"The heuristic of policy {self.policy!r} raised {type(error).__name__} for agent {agent!r}: {error}."
            ) from error
        if not _is_action(space, action) or mask is not None and not _is_allowed(space, action, mask):
            raise EnvironmentFault(
                f"The heuristic of policy {self.policy!r} returned {str(action)[:80]} for agent {agent!r}; expected "
                f"an allowed action of {describe(space)}{' and the action mask' if mask is not None else ''}."
            )
        return action


def _is_action(space: Space, action: np.ndarray) -> bool:
    if action.shape != tuple(space.shape or ()):
        return False
    if isinstance(space, Box):
        return action.dtype.kind in "fiu" and bool(np.isfinite(action).all())
    most = space.n if isinstance(space, Discrete) else space.nvec if isinstance(space, MultiDiscrete) else 2
    return action.dtype.kind in "iub" and bool(((action >= 0) & (action < most)).all())


def _is_allowed(space: Space, action: np.ndarray, mask: np.ndarray) -> bool:
    """Whether a mask, one flag for each choice of each element, allows the chosen ones."""
    starts = [0, *accumulate(space.nvec.tolist())][:-1] if isinstance(space, MultiDiscrete) else [0]
    return bool(mask[np.asarray(starts) + np.reshape(action, -1)].all())


def _slices(widths: Mapping[str, int]) -> dict[str, slice]:
    ends = accumulate(widths.values())
    return {name: slice(end - width, end) for (name, width), end in zip(widths.items(), ends, strict=True)}


COPY = "copy"  # the extra with the number of the copy that acted: [N] float32


@dataclass(frozen=True)
class SampledOpponent:
    """Draws the copy that an environment plays its episode against, by the chances in `output` (`LeagueOutput`), and
    lets `inner` choose among what that copy returns. The number of the copy is the extra `copy`.

    newest: take the newest copy instead, for evaluations.
    """

    inner: Explorer
    newest: bool = False

    @property
    def state_size(self) -> int:
        return 1 + self.inner.state_size  # the number of the copy, and what the inner explorer keeps

    def of(self, columns: np.ndarray) -> SampledOpponent:
        return replace(self, inner=self.inner.of(columns))

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        """Step by step, so that chunks of any length give the same numbers."""
        drawn = [np.append(rng.random(1, np.float32), self.inner.draw(rng, 1, action_space)[0]) for _ in range(steps)]
        return np.stack(drawn) if drawn else self.draw(np.random.default_rng(0), 1, action_space)[:0]

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        numbers, sums = output.numbers, np.cumsum(output.chances, dtype=np.float64)
        fresh = ~np.isin(state[:, 0], numbers)  # NaN where an episode begins
        slots = np.searchsorted(sums, noise[fresh, 0] * sums[-1], side="right").clip(max=len(numbers) - 1)
        state[fresh, 0] = numbers.max() if self.newest else numbers[slots]
        playing = np.argmax(state[:, :1] == numbers, 1)
        parts = [np.flatnonzero(playing == slot) for slot in np.unique(playing)]
        choices = []
        for rows in parts:
            remembered = state[rows, 1:]
            choices.append(self.inner(output.act(int(playing[rows[0]]), rows), noise[rows, 1:], step, remembered))
            state[rows, 1:] = remembered
        order = np.argsort(np.concatenate(parts))
        extras = {name: np.concatenate([c.extras[name] for c in choices])[order] for name in choices[0].extras}
        action = np.concatenate([choice.action for choice in choices])[order]
        return Choice(action, {**extras, COPY: state[:, 0].astype(np.float32)})
