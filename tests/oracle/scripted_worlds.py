"""Environments that do what a script says, and whose observations tell where they are and what was done.

An episode follows the script that its seed chooses. What is observed tells the seed of the episode, the time, the
agent, the illegal moves so far and the action that was executed last. So whoever sees an observation, in a replay, in a
batch or in a file, knows what came before it and what has to follow, without asking the library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import gymnasium as gym
import numpy as np
from pettingzoo import AECEnv, ParallelEnv

SCALE = 2.0**-16  # observations stay small, and every whole number in them exact
NUMBERS = 5  # of an observation, before the action
TERMINATED, TRUNCATED = "terminated", "truncated"


@dataclass(frozen=True)
class Presence:
    """When one of several agents is there: it acts at the times joins, ..., leaves - 1. joins None: never."""

    joins: int | None = 0
    leaves: int = 10**6  # later than the episode's end: it stays until then
    how: str = TERMINATED  # how it ends where it leaves before the others


@dataclass(frozen=True)
class Script:
    """One episode: `length` steps, how it ends, and what each step brings.

    rewards: of the step that begins at each time, and so on from the first. masks: the actions that are legal at each
    time, and so on from the first; None: all are, and no mask is shown. presence: of each agent, of several.
    order: the agents that act at each time where they take turns, and so on from the first.
    """

    length: int
    how: str = TERMINATED
    rewards: tuple[float, ...] = (1.0,)
    masks: tuple[tuple[bool, ...] | None, ...] = (None,)
    presence: tuple[Presence, ...] = ()
    order: tuple[int, ...] = ()

    def reward(self, time: int, agent: int = 0) -> float:
        """The reward of an agent for the step that begins at this time."""
        return self.rewards[(time + 3 * agent) % len(self.rewards)]

    def mask(self, time: int, agent: int = 0) -> tuple[bool, ...] | None:
        """What is legal for an agent at this time; None: everything, and no mask is shown."""
        return self.masks[(time + agent) % len(self.masks)]

    def acts(self, time: int, agent: int) -> bool:
        """Whether an agent acts at this time, where all act at once."""
        own = self.presence[agent]
        return own.joins is not None and own.joins <= time < min(own.leaves, self.length)

    def end(self, time: int, agent: int) -> str | None:
        """How an agent that acts at this time ends with that step; None: it goes on."""
        own = self.presence[agent]
        if own.leaves == time + 1:
            return own.how
        return self.how if time + 1 == self.length else None


class Label(NamedTuple):
    """What an observation tells."""

    seed: int  # of the episode
    time: int
    agent: int
    illegal: int  # moves of this agent so far that its mask did not allow
    action: tuple[float, ...]  # what it executed last; -1 where there is nothing yet


def label(observation: np.ndarray) -> Label:
    """What one observation [5 + A] tells."""
    high, low, time, agent, illegal = (round(float(x) / SCALE) for x in observation[:NUMBERS])
    return Label(high << 16 | low, time, agent, illegal, tuple(float(x) for x in observation[NUMBERS:]))


def observation_of(seed: int, time: int, agent: int, illegal: int, action: Sequence[float]) -> np.ndarray:
    """The observation that tells this."""
    numbers = np.array([seed >> 16, seed & 0xFFFF, time, agent, illegal], np.float32) * SCALE
    return np.concatenate([numbers, np.asarray(action, np.float32)])


def state_of(seed: int, time: int) -> np.ndarray:
    """The global state of a world of several agents."""
    return np.array([seed >> 16, seed & 0xFFFF, time], np.float32) * SCALE


def told(space: gym.Space, action: object) -> list[float]:
    """How observations tell an action: numbers of a Box as they are, the index of a Discrete one scaled down."""
    if isinstance(space, gym.spaces.Discrete):
        return [float(np.float32(int(action) * SCALE))]
    return np.asarray(action, np.float32).reshape(-1).tolist()


def untold(space: gym.Space) -> list[float]:
    """What observations tell before there was an action."""
    return [-1.0] * (1 if isinstance(space, gym.spaces.Discrete) else int(np.prod(space.shape)))


def index_of(action: Sequence[float]) -> int:
    """The index of the Discrete action that an observation tells."""
    return round(action[0] / SCALE)


def observation_space(action: gym.Space) -> gym.spaces.Box:
    """The space of observations where actions are these."""
    return gym.spaces.Box(-10.0, 10.0, (NUMBERS + len(untold(action)),), np.float32)


@dataclass
class _Agent:
    """What one agent saw and did in an episode."""

    illegal: int = 0
    action: list[float] = field(default_factory=list)


class ScriptedWorld(gym.Env):
    """One agent. Masks are in the infos of the times whose script shows one."""

    def __init__(self, scripts: Sequence[Script], action_space: gym.Space):
        self.scripts, self.action_space = tuple(scripts), action_space
        self.observation_space = observation_space(action_space)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.time = int(seed or 0), 0
        self.script = self.scripts[self.seed % len(self.scripts)]
        self.agent = _Agent(action=untold(self.action_space))
        return self._observation(), self._info()

    def step(self, action):
        mask = self.script.mask(self.time)
        self.agent.illegal += mask is not None and not mask[int(action)]
        self.agent.action = told(self.action_space, action)
        reward = self.script.reward(self.time)
        self.time += 1
        over = self.time == self.script.length
        ends = {how: over and self.script.how in (how, "both") for how in (TERMINATED, TRUNCATED)}
        return self._observation(), reward, ends[TERMINATED], ends[TRUNCATED], self._info()

    def _observation(self):
        return observation_of(self.seed, self.time, 0, self.agent.illegal, self.agent.action)

    def _info(self):
        mask = self.script.mask(self.time)
        return {} if mask is None else {"action_mask": np.array(mask, np.int8)}


class ScriptedGoals(ScriptedWorld):
    """One agent with goals, whole numbers from 0 to 2: in half of the episodes what is achieved stays the same.
    An episode also ends where its own goal is achieved."""

    def __init__(self, scripts: Sequence[Script], action_space: gym.Space):
        super().__init__(scripts, action_space)
        goal = gym.spaces.Box(-1.0, 3.0, (1,), np.float32)
        seen = {"observation": self.observation_space, "achieved_goal": goal, "desired_goal": goal}
        self.observation_space = gym.spaces.Dict(seen)

    def step(self, action):
        observation, _, terminated, truncated, info = super().step(action)
        goals = observation["achieved_goal"], observation["desired_goal"]
        terminated = terminated or bool(self.compute_terminated(*goals, {}))
        return observation, float(self.compute_reward(*goals, {})), terminated, truncated, info

    def compute_reward(self, achieved, desired, info):
        return -np.abs(achieved - desired).sum(-1)

    def compute_terminated(self, achieved, desired, info):
        return (achieved == desired).all(-1)

    def _observation(self):
        achieved, desired = (self.seed // 3 + self.time * (self.seed // 9 % 2)) % 3, self.seed % 3
        goals = {"achieved_goal": np.array([achieved], np.float32), "desired_goal": np.array([desired], np.float32)}
        return {"observation": super()._observation(), **goals}


class _Several:
    """What worlds of several agents have in common: agents "agent_0", "agent_1", ..., all with the same spaces."""

    metadata: dict = {"name": "scripted", "render_modes": []}
    render_mode = None

    def __init__(self, scripts: Sequence[Script], action_space: gym.Space, count: int):
        self.scripts, self.own_actions = tuple(scripts), action_space
        self.possible_agents = [f"agent_{i}" for i in range(count)]
        self.agents: list[str] = []
        self.observation_spaces = dict.fromkeys(self.possible_agents, observation_space(action_space))
        self.action_spaces = dict.fromkeys(self.possible_agents, action_space)

    def observation_space(self, agent):
        return self.observation_spaces[agent]

    def action_space(self, agent):
        return self.action_spaces[agent]

    def begin(self, seed) -> None:
        self.seed, self.time = int(seed or 0), 0
        self.script = self.scripts[self.seed % len(self.scripts)]
        self.did = {name: _Agent(action=untold(self.own_actions)) for name in self.possible_agents}

    def do(self, name: str, action) -> None:
        mask = self.script.mask(self.time, number(name))
        self.did[name].illegal += mask is not None and not mask[int(action)]
        self.did[name].action = told(self.own_actions, action)

    def observation(self, name: str) -> np.ndarray:
        return observation_of(self.seed, self.time, number(name), self.did[name].illegal, self.did[name].action)

    def info(self, name: str) -> dict:
        mask = self.script.mask(self.time, number(name))
        return {} if mask is None else {"action_mask": np.array(mask, np.int8)}

    def state(self) -> np.ndarray:
        return state_of(self.seed, self.time)

    def render(self) -> None:
        return None

    def close(self) -> None:
        pass


class ScriptedAgents(_Several, ParallelEnv):
    """Several agents that act at once, as in PettingZoo's parallel environments, and come and go as scripts say."""

    def reset(self, seed=None, options=None):
        self.begin(seed)
        self.agents = [name for name in self.possible_agents if self.script.acts(0, number(name))]
        return self._seen(self.agents)

    def step(self, actions):
        assert set(actions) == set(self.agents), (set(actions), self.agents)
        for name, action in actions.items():
            self.do(name, action)
        before = self.agents
        rewards = {name: self.script.reward(self.time, number(name)) for name in before}
        ends: dict = {name: self.script.end(self.time, number(name)) for name in before}
        self.time += 1
        self.agents = [name for name in self.possible_agents if self.script.acts(self.time, number(name))]
        seen = self._seen([name for name in self.possible_agents if name in before or name in self.agents])
        rewards, ends = dict.fromkeys(seen[0], 0.0) | rewards, dict.fromkeys(seen[0]) | ends
        terminated = {name: how in (TERMINATED, "both") for name, how in ends.items()}
        truncated = {name: how in (TRUNCATED, "both") for name, how in ends.items()}
        return seen[0], rewards, terminated, truncated, seen[1]

    def _seen(self, names):
        return {name: self.observation(name) for name in names}, {name: self.info(name) for name in names}


class ScriptedTurns(_Several, AECEnv):
    """Several agents that take turns in the order of the script, as in PettingZoo's agent-environment cycle. All end
    together; only whose turn it is gets a mask."""

    def __init__(self, scripts: Sequence[Script], action_space: gym.Space, count: int):
        AECEnv.__init__(self)
        _Several.__init__(self, scripts, action_space, count)

    def reset(self, seed=None, options=None):
        self.begin(seed)
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self._select()

    def step(self, action):
        name = self.agent_selection
        if self.terminations[name] or self.truncations[name]:
            self._was_dead_step(action)
            return
        self.do(name, action)
        self._cumulative_rewards[name] = 0.0
        self.rewards = {other: self.script.reward(self.time, number(other)) for other in self.agents}
        self.time += 1
        if self.time == self.script.length:
            self.terminations = dict.fromkeys(self.agents, self.script.how in (TERMINATED, "both"))
            self.truncations = dict.fromkeys(self.agents, self.script.how in (TRUNCATED, "both"))
        self._select()
        self._accumulate_rewards()

    def observe(self, agent):
        return self.observation(agent)

    def _select(self) -> None:
        self.agent_selection = self.possible_agents[self.script.order[self.time % len(self.script.order)]]
        self.infos = {name: self.info(name) if name == self.agent_selection else {} for name in self.agents}


def number(name: str) -> int:
    """The number of an agent by its name."""
    return int(name.rpartition("_")[2])
