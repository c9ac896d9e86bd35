"""Environments of the tests."""

from __future__ import annotations

import sys
from types import ModuleType

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode


class Counter(gym.Env):
    """Observes (environment, episode, t). Episodes of 3 to 6 steps, truncated where their number is odd."""

    observation_space = Box(-1, 1e6, (3,), np.float32)
    action_space = Discrete(2)

    def __init__(self, number: int = 0):
        self.number, self.episode, self.t = number, -1, 0

    def _observe(self) -> np.ndarray:
        return np.array([self.number, self.episode, self.t], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._observe(), {}

    def step(self, action):
        self.t += 1
        ended = self.t >= 3 + (self.episode + self.number) % 4
        odd = self.episode % 2 == 1
        return self._observe(), float(self.t), ended and not odd, ended and odd, {}


class Counters:
    """Makes Counters that are numbered in the order of their making."""

    def __init__(self):
        self.made = 0

    def __call__(self) -> Counter:
        self.made += 1
        return Counter(self.made - 1)


class Pool:
    """What envpool.make_gymnasium makes, over Counters: seeds are given here, what a reset by mask returns is of those
    that it reset, and what ended is reset, without a reward, by the next step. `made` has the seed of each."""

    made: list = []

    def __init__(self, task, num_envs, seed, **options):
        self.envs = [Counter(i) for i in range(num_envs)]
        self.observation_space, self.action_space = Counter.observation_space, Counter.action_space
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.ended = np.zeros(num_envs, bool)
        self.made.append(seed)

    def reset(self, env_id=None, *, seed=None, options=None):
        assert seed is None, "EnvPool ignores it"
        mask = (options or {}).get("reset_mask", np.ones(len(self.envs), bool))
        self.ended &= ~mask
        return np.stack([self.envs[i].reset()[0] for i in np.flatnonzero(mask)]), {}

    def step(self, actions):
        rows = [
            (*env.reset()[:1], 0.0, False, False) if ended else env.step(action)[:4]
            for env, ended, action in zip(self.envs, self.ended, actions, strict=True)
        ]
        seen, reward, terminated, truncated = map(np.array, zip(*rows, strict=True))
        self.ended = terminated | truncated
        return seen, reward, terminated, truncated, {"elapsed_step": np.zeros(len(rows))}

    def close(self):
        self.envs = []


def envpool(monkeypatch):
    """A module envpool with the one task Counter-v0, whose pools are returned by `Pool`."""
    module = ModuleType("envpool")
    module.make_gymnasium, module.list_all_envs = Pool, lambda: ["Counter-v0"]
    monkeypatch.setitem(sys.modules, "envpool", module)
    monkeypatch.setattr(Pool, "made", [])


class Scripted(gym.Env):
    """Returns what a test tells it to: `resets` and `steps` are functions of the number of the call."""

    def __init__(self, observation_space=None, action_space=None, reset=None, step=None):
        self.observation_space = observation_space or Box(-10, 10, (2,), np.float32)
        self.action_space = action_space or Discrete(2)
        self._on_reset = reset or (lambda seed: (np.zeros(2, np.float32), {}))
        self._on_step = step or (lambda t: (np.zeros(2, np.float32), 0.0, False, False, {}))
        self.actions: list = []
        self.t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._on_reset(seed)

    def step(self, action):
        self.actions.append(action)
        self.t += 1
        return self._on_step(self.t)


def always(*values):
    """A script that gives the same five values at every step."""
    return lambda t: values


class Old:
    """In the style of old Gym: no base class, a bare observation, one `done`. Observes (seed, t); ends at `length`."""

    observation_space = Box(-1, 2.0**31, (2,), np.float64)
    action_space = Discrete(2)

    def __init__(self, length=3, limited=False):
        self.length, self.limited, self.given, self.t, self.closed = length, limited, -1, 0, False

    def seed(self, seed):
        self.given = seed

    def reset(self):
        self.t = 0
        return np.array([self.given, 0.0])

    def step(self, action):
        self.t += 1
        done = self.t >= self.length
        info = {"TimeLimit.truncated": True} if done and self.limited else {}
        return np.array([self.given, self.t], np.float64), 1.0, done, info

    def close(self):
        self.closed = True


class Relay:
    """A parallel environment by its methods alone. Agent i observes (seed, i, t) and earns 10**i a step.

    ends: for each agent the step at which it ends, and how: {"b": (2, "terminated"), "a": (4, "truncated")}. Names in
    an order that is not sorted. It checks that it is asked to step the agents that still play, and no others.
    """

    def __init__(self, ends=None, actions=None):
        self.ends = {"b": (3, "terminated"), "a": (3, "terminated")} if ends is None else ends
        self.possible_agents = list(self.ends)
        self._actions = actions or {name: Discrete(2 + i) for i, name in enumerate(self.possible_agents)}
        self.agents, self.given, self.t, self.seen = [], -1, 0, []

    def observation_space(self, agent):
        return Box(-1, 2.0**31, (3,), np.float64)

    def action_space(self, agent):
        return self._actions[agent]

    def reset(self, seed=None, options=None):
        self.agents, self.given, self.t = list(self.possible_agents), -1 if seed is None else seed, 0
        return self._observe(self.agents), {name: {} for name in self.agents}

    def step(self, actions):
        assert list(actions) == self.agents, (actions, self.agents)
        self.seen.append(actions)
        self.t += 1
        playing, rewards = self.agents, {name: 10.0 ** self.possible_agents.index(name) for name in self.agents}
        flags = [{name: self.ends[name] == (self.t, how) for name in playing} for how in ("terminated", "truncated")]
        self.agents = [name for name in playing if self.ends[name][0] > self.t]
        return self._observe(playing), rewards, *flags, {name: {} for name in playing}

    def render(self):
        return None

    def close(self):
        pass

    def _observe(self, names):
        return {name: np.array([self.given, self.possible_agents.index(name), self.t], np.float64) for name in names}
