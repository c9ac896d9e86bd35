"""Explorers made of others: one for each environment or for each agent, with an epsilon or a noise of its own for each
actor, and of several policies that act in one environment, some of which may be functions that learn nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, ClassVar, Self

import numpy as np

from etude.base import checks, trees
from etude.base.data import Choice
from etude.base.errors import ConfigError, EnvironmentFault, EtudeError
from etude.base.schedules import Linear, at
from etude.base.spaces import ACTION_MASK, Box, Discrete, MultiDiscrete, Space, zeros
from etude.base.spaces import describe as describe_space
from etude.explore.explorer import (
    Around,
    ExplorerBase,
    StatelessExplorer,
    check_distribution,
    check_values,
    describe,
    with_log_prob,
)
from etude.explore.noise import ClippedNoise, UniformBox, noise_distribution, noisy
from etude.explore.values import epsilon_greedy, epsilon_greedy_distribution
from etude.losses.distributions import Categorical, Gaussian
from etude.multi_agent.joint import ACTING, AGENTS, STATUS, AgentSubset, join_actions, joined_actions
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
        return _in_order(choices, all_rows)


def _in_order(choices: list[Choice], rows: list[np.ndarray]) -> Choice:
    """Choices for some rows each, as one for all of them in their order."""
    order = np.argsort(np.concatenate(rows))
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
        actions = [choice.action for choice in choices]
        n = len(actions[0])
        for i, (action, space) in enumerate(zip(actions, self.spaces, strict=True)):
            shape, kinds = (n, *(space.shape or ())), "f" if isinstance(space, Box) else "iu"
            if action.shape != shape or action.dtype.kind not in kinds:
                raise ConfigError(
                    f"ByAgent: {type(self._explorers[i]).__name__} made {action.dtype} actions {list(action.shape)} "
                    f"for agent {i}, whose actions are {describe_space(space)}: expected {list(shape)}. Give that "
                    "agent an explorer for such actions, or a network with as many outputs."
                )
        return Choice(join_actions(actions, self.spaces), extras)

    @property
    def _explorers(self) -> tuple[Explorer, ...]:
        return self.explorers  # type: ignore[return-value]


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


class _PerActor(ExplorerBase):
    """A parameter x from 0 to 1 is x ** (1 + alpha * i / (N - 1)) in environment i of N.

    Horgan et al. 2018, arXiv:1803.00933, section 4.1. environments: N, all environments of the run.
    columns: the environments that it acts for; None: all.
    """

    alpha: float
    environments: int
    columns: tuple[int, ...] | None
    state_size: ClassVar[int] = 0

    def __post_init__(self) -> None:
        checks.not_negative(self, "alpha")
        checks.counts(self, "environments")
        columns = np.arange(self.environments) if self.columns is None else np.array(self.columns, np.int64)
        object.__setattr__(self, "_powers", 1.0 + self.alpha * columns / max(1, self.environments - 1))

    def of(self, columns: np.ndarray) -> Self:
        """For these environments."""
        return replace(self, columns=tuple(np.asarray(columns).tolist()))  # type: ignore[type-var]

    def per_actor(self, number: float, count: int) -> np.ndarray:
        """The parameter [count] of the first of the environments that it acts for."""
        return number ** self._powers[:count]  # type: ignore[attr-defined]


@dataclass(frozen=True)
class PerActorEpsilonGreedy(_PerActor):
    """Environment i of N takes a random action with probability epsilon ** (1 + alpha * i / (N - 1)), else the best:
    see `_PerActor`. total: environment steps of the run, for a schedule."""

    uniform_numbers = 2
    epsilon: float | Linear
    alpha: float
    environments: int
    total: int = 0
    columns: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "epsilon")

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        """For all of the environments that it is for, or the first of them."""
        values, free = check_values(output, "PerActorEpsilonGreedy")
        epsilon = self.per_actor(at(self.epsilon, step, self.total), len(noise))
        return Choice(epsilon_greedy(values, free, noise, epsilon), {})

    def distribution(self, output: Any, step: int) -> Categorical:
        values, free = check_values(output, "PerActorEpsilonGreedy")
        epsilon = self.per_actor(at(self.epsilon, step, self.total), len(values))
        return epsilon_greedy_distribution(values, free, epsilon)


@dataclass(frozen=True)
class PerActorGaussianNoise(ClippedNoise, _PerActor):
    """`GaussianNoise` whose deviation is std ** (1 + alpha * i / (N - 1)) in environment i of N: see `_PerActor`.

    std: from 0 to 1, for actions in [-1, 1]. total, random_steps: as in `GaussianNoise`.
    """

    std: float | Linear
    alpha: float
    environments: int
    total: int = 0
    random_steps: int = 0
    columns: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "std")
        checks.not_negative(self, "random_steps")

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        """For all of the environments that it is for, or the first of them."""
        action = check_distribution(output, "PerActorGaussianNoise").mode()
        return noisy(action, self._deviation(step, len(noise)), noise, step < self.random_steps)

    def distribution(self, output: Any, step: int) -> Gaussian | UniformBox:
        """Before actions are clipped."""
        action = check_distribution(output, "PerActorGaussianNoise").mode()
        return noise_distribution(action, self._deviation(step, len(action)), step < self.random_steps)

    def _deviation(self, step: int, count: int) -> np.ndarray:
        """[count, 1] float32."""
        return self.per_actor(at(self.std, step, self.total), count).astype(np.float32)[:, None]


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
        object.__setattr__(self, "_noise", dict(zip(drawn, _slices(list(drawn.values())), strict=True)))
        states = _slices([each.state_size for each in self.explorers.values()])
        object.__setattr__(self, "_states", dict(zip(self.explorers, states, strict=True)))

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

    uniform_numbers = 2
    policy: str
    choose: Callable[[Any, np.random.Generator], Any]
    subset: AgentSubset = field(compare=False, repr=False)

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
                f"an allowed action of {describe_space(space)}{' and the action mask' if mask is not None else ''}."
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


COPY = "copy"  # the extra with the number of the copy that acted: [N] float32


@dataclass(frozen=True)
class SampledOpponent(Around):
    """Draws the copy that an environment plays its episode against, by the chances in `output` (`LeagueOutput`), and
    lets `inner` choose among what that copy returns. The number of the copy is the extra `copy`.

    newest: take the newest copy instead, for evaluations.
    """

    newest: bool = False

    @property
    def state_size(self) -> int:
        return 1 + self.inner.state_size  # the number of the copy, and what the inner explorer keeps

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
        action, extras = _in_order(choices, parts)
        return Choice(action, {**extras, COPY: state[:, 0].astype(np.float32)})
