"""What scripts make of the actions that agents take, one agent and one step after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scripted_worlds import Script, observation_of, told, untold


@dataclass
class Act:
    """What one agent did at one step."""

    seen: np.ndarray  # what the world showed it
    allowed: np.ndarray
    sample: Any  # of the policy, which the environment is given within its bounds
    log_prob: float


@dataclass
class Moment:
    """One step of one environment. All by agent.

    shown: what each agent saw last before the step, if anything. rewards: what came with the step. ends: how agents
    ended with it. after: what each agent has seen last after the step. acts_next: who acts then; nobody where the
    episode is over.
    """

    environment: int
    number: int  # of the environment's steps
    time: int  # of the episode
    shown: dict[int, np.ndarray]
    acts: dict[int, Act] = field(default_factory=dict)
    rewards: dict[int, float] = field(default_factory=dict)
    ends: dict[int, str] = field(default_factory=dict)
    after: dict[int, np.ndarray] = field(default_factory=dict)
    acts_next: set[int] = field(default_factory=set)
    seed: int = -1  # of the episode
    earned: dict[int, float] = field(default_factory=dict)  # since the episode began, with this step

    @property
    def over(self) -> bool:
        return not self.acts_next


NOBODY = Moment(-1, -1, -1, {})  # a step at which none of the agents acts that learn


class World:
    """What scripts make of the actions that were taken in one environment. turns: agents act one after the other."""

    def __init__(self, scripts: tuple[Script, ...], action_space: Any, agents: int | None, turns: bool):
        self.scripts, self.space, self.alone, self.turns = scripts, action_space, agents is None, turns
        self.agents = range(agents or 1)
        self.moments: list[Moment] = []
        self.seed: int | None = None

    def begin(self, seed: int) -> None:
        self.seed, self.time = seed, 0
        self.script = self.scripts[seed % len(self.scripts)]
        self.illegal, self.action = dict.fromkeys(self.agents, 0), dict.fromkeys(self.agents, untold(self.space))
        self.owed = dict.fromkeys(self.agents, 0.0)  # where agents take turns: what comes at their next one
        self.earned = dict.fromkeys(self.agents, 0.0)
        self.last: dict[int, np.ndarray] = {}
        self.gone: set[int] = set()
        self.look()

    def look(self) -> None:
        """What agents see now stays what they saw last."""
        for agent in self.agents:
            if agent not in self.gone and (self.turns or self.alone or self.acts(agent) or agent in self.last):
                self.last[agent] = observation_of(self.seed, self.time, agent, self.illegal[agent], self.action[agent])

    def acts(self, agent: int) -> bool:
        """Whether an agent acts now."""
        if self.time >= self.script.length:
            return False
        if self.alone:
            return True
        if self.turns:
            return self.script.order[self.time % len(self.script.order)] == agent
        return self.script.acts(self.time, agent)

    def step(self, environment: int, seed: int, actions: Mapping[int, Any], log_probs: Mapping[int, float]) -> Moment:
        """Take the actions of those that act now; `actions` may hold more, which nobody reads."""
        if self.seed != seed:
            assert self.seed is None or self.moments[-1].over, "an episode began before the one before it had ended"
            self.begin(seed)
        acting = [agent for agent in self.agents if self.acts(agent)]
        moment = Moment(environment, len(self.moments), self.time, dict(self.last), seed=seed)
        for agent in acting:
            mask = self.script.mask(self.time, agent)
            count = int(getattr(self.space, "n", 1))
            allowed = np.ones(count, bool) if mask is None else np.array(mask)
            moment.acts[agent] = Act(self.last[agent], allowed, actions[agent], log_probs[agent])
            if mask is not None:
                assert allowed[int(actions[agent])], f"agent {agent} made an illegal move"
            executed = np.clip(actions[agent], -1, 1) if mask is None and count == 1 else actions[agent]
            self.action[agent] = told(self.space, executed)
        if self.turns:
            self.owed |= dict.fromkeys(acting, 0.0)
            for agent in self.agents:
                self.owed[agent] += self.script.reward(self.time, agent)
        else:
            moment.rewards = {agent: self.script.reward(self.time, agent) for agent in acting}
        over = self.time + 1 == self.script.length
        for agent in self.agents if self.turns else acting:
            how = self.script.how if over else None
            if not self.turns and not self.alone:
                how = self.script.end(self.time, agent)
            if how is not None:
                moment.ends[agent] = how
        self.time += 1
        self.look()
        self.gone |= set(moment.ends)
        moment.acts_next = {agent for agent in self.agents if self.acts(agent)}
        if self.turns:
            moment.rewards = {agent: self.owed[agent] for agent in self.agents if agent in moment.acts_next or over}
        for agent, reward in moment.rewards.items():
            self.earned[agent] += reward
        moment.after, moment.earned = dict(self.last), dict(self.earned)
        self.moments.append(moment)
        return moment
