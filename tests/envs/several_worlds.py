"""Environments with several agents whose values are known. Duck-typed: PettingZoo's classes are not needed at once."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
from pettingzoo import AECEnv, ParallelEnv

from etude.base import trees

SIGN = Box(-1, 1, (1,), np.float32)


class Meeting(ParallelEnv):
    """One step. Both agents see the same side, -1 or 1, and earn 1 together where both act as it asks, else 0.

    Discrete: the side, counted from 0. Box: the reward falls with the squared distances from 0.5 and -0.5 times the
    side.
    """

    metadata = {"name": "meeting"}
    possible_agents = ["ann", "bob"]

    def __init__(self, continuous=False):
        self.continuous = continuous

    def observation_space(self, agent):
        return SIGN

    def action_space(self, agent):
        return Box(-1, 1, (1,), np.float32) if self.continuous else Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self.side = 1.0 if np.random.default_rng(seed).random() < 0.5 else -1.0
        return self._of(np.array([self.side], np.float32)), self._of({})

    def step(self, actions):
        ann, bob = actions["ann"], actions["bob"]
        if self.continuous:
            reward = 1.0 - float((ann[0] - 0.5 * self.side) ** 2 + (bob[0] + 0.5 * self.side) ** 2)
        else:
            reward = float(ann == bob == (self.side > 0))
        self.agents = []
        return self._of(np.array([self.side], np.float32)), self._of(reward), self._of(True), self._of(False), {}

    def _of(self, value):
        return dict.fromkeys(self.possible_agents, value)


class Coming(ParallelEnv):
    """Nine steps; nobody sees the time. `early` earns 1 in each of its two steps and terminates; `late` earns 1 until
    the clock stops the episode; `joins` comes after three steps and earns 2 until then.

    Their values: 1 / (1 - gamma / 2), 1 / (1 - gamma), 2 / (1 - gamma).
    """

    metadata = {"name": "coming"}
    possible_agents = ["late", "early", "joins"]
    values = staticmethod(lambda gamma: [1 / (1 - gamma / 2), 2 / (1 - gamma), 1 / (1 - gamma)])  # by name

    def observation_space(self, agent):
        return Box(0, 1, (1 if agent == "early" else 2,), np.float32)

    def action_space(self, agent):
        return Discrete(3 if agent == "joins" else 2)

    def reset(self, seed=None, options=None):
        self.time, self.agents = 0, ["late", "early"]
        return self._see(self.agents), {name: {} for name in self.agents}

    def step(self, actions):
        assert sorted(actions) == sorted(self.agents), (actions, self.agents)
        self.time += 1
        playing, over = self.agents, self.time == 9
        rewards = {name: 2.0 if name == "joins" else 1.0 for name in playing}
        terminated = {name: name == "early" and self.time == 2 for name in playing}
        self.agents = [] if over else [name for name in playing if not terminated[name]]
        if self.time == 3:
            self.agents = [*self.agents, "joins"]
        seen = self._see({*playing, *self.agents})
        return seen, rewards, terminated, dict.fromkeys(playing, over), {name: {} for name in seen}

    def _see(self, names):
        return {name: np.ones(self.observation_space(name).shape, np.float32) for name in names}


class Leaving(ParallelEnv):
    """`stays` plays for 60 steps, `leaves` for the first `steps` of them, none for 0; each earns the action it takes.
    Observations are the time since the episode began, plus 100 for `leaves`."""

    metadata = {"name": "leaving"}
    possible_agents = ["stays", "leaves"]

    def __init__(self, steps=2, truncated=False):
        self.steps, self.truncated = steps, truncated

    def observation_space(self, agent):
        return Box(0, 200, (1,), np.float32)

    def action_space(self, agent):
        return Discrete(2)

    def reset(self, seed=None, options=None):
        self.time, self.agents = 0, ["stays", "leaves"] if self.steps else ["stays"]
        return self._see(), {name: {} for name in self.agents}

    def step(self, actions):
        assert sorted(actions) == sorted(self.agents), (actions, self.agents)
        self.time += 1
        rewards = {name: float(action) for name, action in actions.items()}
        gone = {name: name == "leaves" and self.time == self.steps for name in self.agents}
        over, seen = dict.fromkeys(self.agents, self.time == 60), self._see()
        self.agents = [] if self.time == 60 else [name for name in self.agents if not gone[name]]
        ended = {name: gone[name] or over[name] for name in gone}
        terminated = {name: ended[name] and not self.truncated for name in gone}
        truncated = {name: ended[name] and self.truncated for name in gone}
        return seen, rewards, terminated, truncated, {name: {} for name in seen}

    def _see(self):
        return {name: np.float32([self.time + 100 * (name == "leaves")]) for name in self.agents}


class Counting(AECEnv):
    """Two agents take eight turns, one after the other. A turn earns its agent 1 at once, and the other 0.5; so a turn
    is worth 1.5 up to the next one. The clock stops the episode; nobody sees the time.

    The value of `first` is 1.5 / (1 - gamma); `second` lacks the last 0.5: 1.375 / (1 - gamma).
    """

    metadata = {"name": "counting"}
    possible_agents = ["first", "second"]
    values = staticmethod(lambda gamma: [1.5 / (1 - gamma), 1.375 / (1 - gamma)])

    def observation_space(self, agent):
        return Box(0, 1, (2,), np.float32)

    def action_space(self, agent):
        return Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.time, self.agent_selection = list(self.possible_agents), 0, "first"
        self.rewards, self._cumulative_rewards = dict.fromkeys(self.agents, 0.0), dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos = {name: {} for name in self.agents}

    def observe(self, agent):
        return np.array([1.0, 0.5], np.float32)

    def step(self, action):
        name = self.agent_selection
        if self.truncations[name]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[name] = 0.0
        other = "second" if name == "first" else "first"
        self.rewards = {name: 1.0, other: 0.5}
        self._accumulate_rewards()
        self.time += 1
        if self.time == 8:
            self.truncations = dict.fromkeys(self.agents, True)
        self.agent_selection = other


class Mixed(ParallelEnv):
    """One step. `arm` sees a place and earns 1 minus the squared distance of its move from half of it; `switch` sees
    which of three choices is allowed, by a mask in the infos or in its observation, and earns 1 for it and 0 for
    others, which it must never take."""

    metadata = {"name": "mixed"}
    possible_agents = ["switch", "arm"]

    def __init__(self, mask_in_infos=False):
        self.mask_in_infos = mask_in_infos

    def observation_space(self, agent):
        if agent == "arm":
            return SIGN
        number = Discrete(3, start=1)
        return number if self.mask_in_infos else Dict({"observation": number, "action_mask": MultiBinary(3)})

    def action_space(self, agent):
        return Box(-2, 2, (2,), np.float32) if agent == "arm" else Discrete(3, start=5)

    def reset(self, seed=None, options=None):
        rng = np.random.default_rng(seed)
        self.agents, self.place, self.allowed = list(self.possible_agents), rng.uniform(-1, 1), int(rng.integers(3))
        return self._see()

    def step(self, actions):
        assert actions["switch"] == 5 + self.allowed, actions
        assert self.action_space("arm").contains(actions["arm"]), actions
        reward = 1.0 - float(((actions["arm"] - self.place / 2) ** 2).sum())
        self.agents = []
        seen, infos = self._see()
        names = self.possible_agents
        rewards = {"arm": reward, "switch": 1.0}
        return seen, rewards, dict.fromkeys(names, True), dict.fromkeys(names, False), infos

    def _see(self):
        mask = (np.arange(3) == self.allowed).astype(np.int8)
        arm, number = np.array([self.place], np.float32), 1 + self.allowed
        if self.mask_in_infos:
            return {"arm": arm, "switch": number}, {"arm": {}, "switch": {"action_mask": mask}}
        return {"arm": arm, "switch": {"observation": number, "action_mask": mask}}, {"arm": {}, "switch": {}}


class Duel(ParallelEnv):
    """Five steps of matching pennies: where both do the same, `even` wins 1 from `odd`, else 2 the other way round."""

    metadata = {"name": "duel"}
    possible_agents = ["odd", "even"]

    def observation_space(self, agent):
        return SIGN

    def action_space(self, agent):
        return Discrete(2)

    def reset(self, seed=None, options=None):
        self.time, self.agents, self.rng = 0, list(self.possible_agents), np.random.default_rng(seed)
        return self._see(), dict.fromkeys(self.agents, {})

    def step(self, actions):
        self.time += 1
        won = 1.0 if actions["even"] == actions["odd"] else -2.0
        playing, over = self.agents, self.time == 5
        self.agents = [] if over else playing
        flags, nobody = dict.fromkeys(playing, over), dict.fromkeys(playing, False)
        return self._see(), {"odd": -won, "even": won}, flags, nobody, dict.fromkeys(playing, {})

    def _see(self):
        return {name: self.rng.uniform(-1, 1, 1).astype(np.float32) for name in self.possible_agents}


class Dominant(ParallelEnv):
    """Eight rounds in which `left` wins its own action less that of `right`, and `right` the other way round: 1 is the
    better action whatever the other one does."""

    metadata = {"name": "dominant"}
    possible_agents = ["left", "right"]

    def observation_space(self, agent):
        return Box(0, 1, (1,), np.float32)

    def action_space(self, agent):
        return Discrete(2)

    def reset(self, seed=None, options=None):
        self.time, self.agents = 0, list(self.possible_agents)
        return self._of(np.ones(1, np.float32)), self._of({})

    def step(self, actions):
        self.time += 1
        won, over = float(actions["left"]) - float(actions["right"]), self.time == 8
        self.agents = [] if over else self.agents
        return self._of(np.ones(1, np.float32)), {"left": won, "right": -won}, self._of(over), self._of(False), {}

    def _of(self, value):
        return dict.fromkeys(self.possible_agents, value)


class Hidden(ParallelEnv):
    """Nobody sees the side, 0 or 1, which only `state()` holds beside the time. Both agents earn the side in each of
    `length` steps, after which time is out: discounted without end, a side of 1 is worth 1 / (1 - gamma).

    timed: whether the state holds the time; else 0 in its place. ann_leaves_early: `ann` is truncated a step before
    `bob`. wrong: what `state()` returns from the 30th step on.
    """

    metadata = {"name": "hidden"}
    possible_agents = ["ann", "bob"]
    state_space = Box(-1, 100, (2,), np.float32)

    def __init__(self, length=3, timed=True, ann_leaves_early=False, wrong=None):
        self.length, self.timed, self.ann_leaves_early = length, timed, ann_leaves_early
        self.wrong, self.steps = wrong, 0

    def observation_space(self, agent):
        return SIGN

    def action_space(self, agent):
        return Discrete(2)

    def reset(self, seed=None, options=None):
        self.time, self.agents = 0, list(self.possible_agents)
        self.side = float(np.random.default_rng(seed).integers(2))
        return self._of(np.zeros(1, np.float32)), self._of({})

    def step(self, actions):
        self.time, self.steps = self.time + 1, self.steps + 1
        playing = self.agents
        ends = {"ann": self.length - self.ann_leaves_early, "bob": self.length}
        over = {name: self.time >= ends[name] for name in playing}
        self.agents = [name for name in playing if not over[name]]
        seen, rewards = (dict.fromkeys(playing, value) for value in (np.zeros(1, np.float32), self.side))
        return seen, rewards, dict.fromkeys(playing, False), over, dict.fromkeys(playing, {})

    def state(self):
        if self.wrong is not None and self.steps >= 30:
            return self.wrong
        return np.array([self.side, self.time * self.timed], np.float32)

    def _of(self, value):
        return dict.fromkeys(self.possible_agents, value)


class Doors:
    """Masks of three doors at some time steps, and a file with a byte for each move, 1 where it was illegal. shown: the
    times at which there is a mask; None: every one."""

    def __init__(self, moves=None, shown=None):
        self.moves, self.shown, self.open = moves, shown, {}

    def info(self, rng, name, time):
        """The info of an agent, which remembers its open doors: all where there is no mask."""
        self.open[name] = np.ones(3, np.int8)
        if self.shown is not None and time not in self.shown:
            return {}
        self.open[name] = (np.arange(3) == rng.integers(3)).astype(np.int8)
        return {"action_mask": self.open[name].copy()}

    def move(self, name, action):
        if self.moves is not None:
            with open(self.moves, "ab") as file:
                file.write(bytes([not self.open[name][action]]))


class DoorsAlone(gym.Env):
    """One agent before three doors, for ten steps."""

    observation_space, action_space = SIGN, Discrete(3)

    def __init__(self, moves=None, shown=None):
        self.doors = Doors(moves, shown)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._see()

    def step(self, action):
        self.doors.move("", action)
        self.time += 1
        seen, info = self._see()
        return seen, 1.0, False, self.time == 10, info

    def _see(self):
        return np.float32([self.time / 10]), self.doors.info(self.np_random, "", self.time)


class DoorsByMethod(DoorsAlone):
    """The same, with its masks in `action_masks()`, as sb3-contrib asks for them."""

    def _see(self):
        seen, self.held = super()._see()
        return seen, {}

    def action_masks(self):
        return self.held["action_mask"]


class DoorsTogether(ParallelEnv):
    """Several agents before three doors, for ten steps, each from its first step to before its last one: `teams` are
    {name: (first, last)} of the first episode, the next one, and so on in turn. who: those whose infos hold masks."""

    metadata = {"name": "doors_together"}

    def __init__(self, teams, who, moves=None, shown=None):
        self.teams, self.who, self.doors = teams, who, Doors(moves, shown)
        self.possible_agents = sorted({name for team in teams for name in team})

    def observation_space(self, agent):
        return SIGN

    def action_space(self, agent):
        return Discrete(3)

    def reset(self, seed=None, options=None):
        self.time, self.rng = 0, np.random.default_rng(seed)
        self.team = self.teams[int(self.rng.integers(len(self.teams)))]
        self.agents = self._present()
        return self._see(self.agents)

    def step(self, actions):
        assert sorted(actions) == sorted(self.agents)
        for name, action in actions.items():
            self.doors.move(name, action)
        self.time += 1
        playing, over = self.agents, self.time == 10
        gone = {name: over or self.time == self.team[name][1] for name in playing}
        self.agents = [] if over else self._present()
        seen, infos = self._see(dict.fromkeys([*playing, *self.agents]))
        return seen, dict.fromkeys(playing, 1.0), dict.fromkeys(playing, False), gone, infos

    def _present(self):
        return [name for name, (first, last) in self.team.items() if first <= self.time < last]

    def _see(self, names):
        infos = {}
        for name in names:
            masked = self.doors.info(self.rng, name, self.time)
            if name in self.who:
                infos[name] = masked
            else:
                self.doors.open[name] = np.ones(3, np.int8)
        return {name: np.float32([self.time / 10]) for name in names}, infos


class DoorsInTurns(AECEnv):
    """Three agents before three doors, one after the other, for ten turns; only who is to act gets a mask, in its
    info, and others have no info at all."""

    metadata = {"name": "doors_in_turns"}
    possible_agents = ["a", "b", "c"]

    def __init__(self, moves=None, shown=None):
        self.doors = Doors(moves, shown)

    def observation_space(self, agent):
        return SIGN

    def action_space(self, agent):
        return Discrete(3)

    def reset(self, seed=None, options=None):
        self.agents, self.time, self.rng = list(self.possible_agents), 0, np.random.default_rng(seed)
        self.rewards, self._cumulative_rewards = dict.fromkeys(self.agents, 0.0), dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self._next()

    def observe(self, agent):
        return np.float32([self.time / 10])

    def step(self, action):
        name = self.agent_selection
        if self.terminations[name]:
            self._was_dead_step(action)
            return
        self.doors.move(name, action)
        self._cumulative_rewards[name] = 0.0
        self.rewards = {**dict.fromkeys(self.agents, 0.0), name: 1.0}
        self._accumulate_rewards()
        self.time += 1
        if self.time == 10:
            self.terminations = dict.fromkeys(self.agents, True)
        self._next()

    def _next(self):
        self.agent_selection = self.possible_agents[self.time % 3]
        self.infos = {self.agent_selection: self.doors.info(self.rng, self.agent_selection, self.time)}
        self.infos |= {name: {} for name in self.agents if self.terminations[name]}


class Pausing(ParallelEnv):
    """Twelve steps, in which both agents are shown at these `times` alone, 0 being the reset. Each earns the action
    that it takes, or the first number of it, when it is seen next, and terminates at the end. silent: the last step
    shows and flags nobody."""

    metadata = {"name": "pausing"}
    possible_agents = ["ann", "bob"]

    def __init__(self, times=(3, 4, 8), space=None, silent=False):
        self.times, self.space, self.silent = frozenset(times), space or Discrete(2), silent

    def observation_space(self, agent):
        return SIGN

    def action_space(self, agent):
        return self.space

    def reset(self, seed=None, options=None):
        self.time, self.agents, self.due = 0, list(self.possible_agents), {}
        seen = self._of(np.ones(1, np.float32)) if 0 in self.times else {}
        return seen, dict.fromkeys(seen, {})

    def step(self, actions):
        assert list(actions) == (self.possible_agents if self.time in self.times else []), (actions, self.time)
        self.due |= {name: float(np.ravel(trees.leaves(action)[0])[0]) for name, action in actions.items()}
        self.time += 1
        over = self.time == 12
        shown = self.time in self.times or over and not self.silent
        rewards = {name: self.due.pop(name, 0.0) if shown else 0.0 for name in self.possible_agents}
        flags = self._of(over), self._of(False)
        if not shown and not actions:
            flags = {}, {}
        self.agents = [] if over else self.agents
        return self._of(np.ones(1, np.float32)) if shown else {}, rewards, *flags, self._of({})

    def _of(self, value):
        return dict.fromkeys(self.possible_agents, value)
