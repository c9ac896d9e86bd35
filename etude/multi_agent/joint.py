"""Several agents as one: their observations are a tree by agent name, their actions one array.

An observation is {"agents": {name: what that agent observes}, "status": [agents]}, and "state": the environment's
global state, where a critic reads it. All arrays with an axis of agents are in the order of their names, as trees visit
them. Actions stand one after the other in one array: [..., agents]
integers where every agent has Discrete actions (a MultiDiscrete one takes several places), else float32 numbers, in
which whole ones are exact.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from etude import ops
from etude.base.data import SAMPLED_ACTION, EpisodeEnd, Steps
from etude.base.spaces import Box, Dict, Discrete, Hybrid, MultiDiscrete, Space, Spaces, choices
from etude.base.trees import Tree

AGENTS, STATUS, STATE = "agents", "status", "state"
ACTIVE = "active"  # the extra of a batch [B, agents]: 1 where there is something to learn for an agent, else 0
WAITING, ACTING, TERMINATED, TRUNCATED = 0, 1, 2, 3  # not its turn, or not there; to act now; ended, and how


def joined_spaces(agents: dict[str, Spaces], turns: bool = False, state: Space | None = None) -> Spaces:
    """The spaces of all agents together. state: of the global state; None: observations do not hold it."""
    agents = {name: agents[name] for name in sorted(agents)}
    seen = Dict({name: own.observation for name, own in agents.items()})
    extra = {} if state is None else {STATE: state}
    observation = Dict({AGENTS: seen, STATUS: status_space(len(agents)), **extra})
    return Spaces(observation, joined_actions([own.action for own in agents.values()]), agents, turns)


def state_space(spaces: Spaces) -> Space | None:
    """The space of the global state in joined observations; None where they do not hold it."""
    observation = spaces.observation
    return observation.spaces.get(STATE) if isinstance(observation, Dict) else None


def status_space(agents: int) -> MultiDiscrete:
    """The space of what each agent is about: WAITING, ACTING, TERMINATED or TRUNCATED."""
    return MultiDiscrete([4] * agents, dtype=np.int8)  # type: ignore[arg-type]


def joined_actions(spaces: Sequence[Space]) -> Any:
    """The space of one array with the actions of agents that have these."""
    if not any(isinstance(space, Box) for space in spaces):
        return MultiDiscrete([n for space in spaces for n in choices(space)])
    bounds = [_bounds(space) for space in spaces]
    low, high = (np.concatenate(ends).astype(np.float32) for ends in zip(*bounds, strict=True))
    return Box(low, high, dtype=np.float32)


def _bounds(space: Any) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and the highest numbers [width] of an action; choices have none."""
    anything, numbers = np.full(len(choices(space)), np.inf), space.numbers if isinstance(space, Hybrid) else space
    if not isinstance(numbers, Box):
        return -anything, anything
    return np.append(numbers.low, -anything), np.append(numbers.high, anything)


def split_actions(agents: dict[str, Spaces], action: Any) -> dict[str, Any]:
    """Joined actions [..., all places] of any framework, as each agent's own: [...], or [..., its places]."""
    found = {}
    for name, place in places(agents).items():
        own = agents[name].action
        part = action[..., place.start] if isinstance(own, Discrete) else action[..., place]
        found[name] = part if isinstance(own, Box) else ops.cast(part, "int32")
    return found


def places(agents: dict[str, Spaces]) -> dict[str, slice]:
    """Where each agent's own actions are in joined ones."""
    ends = accumulate(width(own.action) for own in agents.values())
    return {name: slice(end - width(own.action), end) for (name, own), end in zip(agents.items(), ends, strict=True)}


def join_actions(actions: Sequence[np.ndarray], spaces: Sequence[Space]) -> np.ndarray:
    """The agents' actions [N, ...] as one array [N, all places]."""
    flat = [np.reshape(action, (len(action), -1)) for action in actions]
    kind = np.float32 if any(isinstance(space, Box) for space in spaces) else np.int64
    return np.concatenate([part.astype(kind, copy=False) for part in flat], 1)


def width(action: Space) -> int:
    """How many places an agent's action takes."""
    return math.prod(action.shape or ())


class AgentSubset:
    """Some of several agents: their part of joined observations, actions and steps, laid out as that of all agents is.

    spaces: of all agents. names: of these agents, in the order of all. state: whether their observations hold the
    global state, where those of all agents do.
    """

    def __init__(self, spaces: Spaces, names: Sequence[str], state: bool = False):
        assert spaces.agents is not None
        order, where = list(spaces.agents), places(spaces.agents)
        own_state = state_space(spaces) if state else None
        self.spaces: Spaces = joined_spaces({name: spaces.agents[name] for name in names}, spaces.turns, own_state)
        self._kept = () if own_state is None else (STATE,)
        self.agents: dict[str, Spaces] = self.spaces.agents or {}
        self._index = np.array([order.index(name) for name in self.agents])
        self._columns = np.concatenate([np.arange(where[name].start, where[name].stop) for name in self.agents])

    def observation(self, observation: Tree) -> Tree:
        """Their part of joined observations [..., agents]."""
        seen = {name: observation[AGENTS][name] for name in self.agents}
        kept = {name: observation[name] for name in self._kept}
        return {AGENTS: seen, STATUS: observation[STATUS][..., self._index], **kept}

    def put_action(self, joined: np.ndarray, action: np.ndarray) -> None:
        """Write their actions [N, their places] into those of all agents [N, all places]."""
        joined[:, self._columns] = action

    def steps(self, steps: Steps, policy: str) -> Steps:
        """Their part of collected steps. Of the extras, those of this policy: `policy.name`."""
        start, kind = f"{policy}.", self.spaces.action.dtype
        extras = {name.removeprefix(start): x for name, x in steps.extras.items() if name.startswith(start)}
        if SAMPLED_ACTION in steps.extras:  # of all policies
            extras[SAMPLED_ACTION] = steps.extras[SAMPLED_ACTION][..., self._columns]
        return dataclasses.replace(
            steps, observation=self.observation(steps.observation),
            action=steps.action[..., self._columns].astype(kind, copy=False), reward=steps.reward[..., self._index],
            next_observation=self.observation(steps.next_observation),
            final_observation=self.observation(steps.final_observation), extras=extras,
            episodes=tuple(self._own(end) for end in steps.episodes),
        )  # fmt: skip

    def _own(self, end: EpisodeEnd) -> EpisodeEnd:
        """What they earned in an episode."""
        earned = {name: total for name, total in (end.total_by_agent or {}).items() if name in self.agents}
        return end._replace(total=float(sum(earned.values())), total_by_agent=earned)


def present(observation: Tree) -> Any:
    """Which agents act, 1 or 0: [..., agents] float32."""
    return ops.cast(observation[STATUS] == ACTING, "float32")


def present_for(observation: Tree, agent: int) -> Any:
    """Which agents are there where the value of this one is asked for, 1 or 0: [..., agents] float32. Those that act;
    and for an agent whose time ran out with this observation, all whose time ran out with it: they would go on."""
    cut = observation[STATUS] == TRUNCATED
    return ops.cast((observation[STATUS] == ACTING) | (cut & cut[..., agent : agent + 1]), "float32")


def ended(status: Any) -> Any:
    """Where agents have terminated or were truncated."""
    return (status == TERMINATED) | (status == TRUNCATED)


def without_earlier_ends(observation: Tree, before: np.ndarray) -> Tree:
    """Observations in which agents that had ended `before` [..., agents] are absent: WAITING."""
    status = observation[STATUS]
    return {**observation, STATUS: np.where(before & ended(status), WAITING, status).astype(status.dtype)}


class Turns(NamedTuple):
    """Of collected steps, [T, N, agents] bool."""

    acting: np.ndarray  # the agent acts
    complete: np.ndarray  # what its last action earned is known: it acts next, or its part of the episode is over
    over: np.ndarray  # its part of the episode is over: it ended, or the episode did


def turns(steps: Steps) -> Turns:
    """The turns of each agent in collected steps."""
    status = steps.observation[STATUS]
    following = np.concatenate([status[1:], steps.next_observation[STATUS][None]])
    ended = (steps.terminated | steps.truncated)[..., None]
    over = ended | (following == TERMINATED) | (following == TRUNCATED)
    return Turns(status == ACTING, over | (following == ACTING), over)


def acting_rows(agents: Iterable[str], observation: Tree) -> dict[tuple[str, str], np.ndarray]:
    """Where each agent acts, [...] bool, by the place of what it observes in joined observations."""
    acting = observation[STATUS] == ACTING
    return {(AGENTS, name): acting[..., i] for i, name in enumerate(agents)}
