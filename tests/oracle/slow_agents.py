"""Learning of several agents from replayed transitions, as the papers say it, in loops over agents and turns.

Whether an agent acts, and what it earns, is read from the script; an agent's transition goes from its turn to its next
one, and gamma counts its own turns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scripted_worlds import TRUNCATED, Script, label, state_of, told
from slow_replay import Row, SlowReplay, plain, rows_of
from watched import GradientStep

OUT = -1  # the action of an agent that did not act


class Transition(NamedTuple):
    """What one agent learns from one row."""

    active: bool  # whether it acted, and what followed is known
    reward: float
    discount: float
    time: int  # of its next observation


class SlowAgents(SlowReplay):
    """The rows of a run of several agents. turns: whether they act one at a time."""

    def __init__(
        self, config: Any, environments: int, script: Sequence[Script], space: Any, agents: int, turns: bool = False
    ):
        self.agents, self.turns = agents, turns
        self.earned: dict[tuple[int, int], float] = {}  # the discounted returns of (column, agent)
        self.waiting: set[tuple[int, int]] = set()  # whose turn brings more until the next one
        self.histories: list[list[float]] = [[] for _ in range(agents)]
        super().__init__(config, environments, script, space)

    def key(self, observation: Any) -> tuple[int, int]:
        return moment(observation)

    def names(self) -> list[str]:
        return [f"agent_{i}" for i in range(self.agents)]

    def acts(self, script: Script, time: int, agent: int) -> bool:
        """Whether an agent acts at this time."""
        if time >= script.length:
            return False
        return script.order[time % len(script.order)] == agent if self.turns else script.acts(time, agent)

    def ends(self, script: Script, time: int, agent: int) -> str | None:
        """How an agent ends with the step from this time; None: it goes on, or is not there."""
        if self.turns:
            return script.how if time + 1 == script.length else None
        return script.end(time, agent) if script.acts(time, agent) else None

    def at(self, row: Row) -> tuple[Script, int]:
        """The script of a row's episode, and its time."""
        seed, time = row.key
        return self.script[seed % len(self.script)], time

    def check_world(self, row: Row) -> None:
        script, time = self.at(row)
        assert moment(row.following) == (row.key[0], time + 1)
        assert (row.terminated or row.truncated) == (time + 1 == script.length)
        for agent, name in enumerate(self.names()):
            before, after = (label(plain(seen["agents"][name])) for seen in (row.observation, row.following))
            assert before.illegal == after.illegal == 0, f"{name} took an action that its mask forbids"
            if self.acts(script, time, agent):
                assert before.time == time
                executed = self.own_action(row, agent)
                np.testing.assert_allclose(after.action, told(self.space, executed), rtol=1e-5, atol=1e-6)

    def own_action(self, row: Row, agent: int) -> Any:
        """What an agent did."""
        each = np.reshape(row.action, (self.agents, -1))[agent]
        return each[0] if hasattr(self.space, "n") else each

    def _returned(self, row: Row) -> None:
        """The discounted return of each agent over its own turns."""
        script, time = self.at(row)
        for agent in range(self.agents):
            place, earned = (row.place[1], agent), script.reward(time, agent)
            if self.acts(script, time, agent):
                self.earned[place] = self.config.gamma * self.earned.get(place, 0.0)
                self.waiting.add(place)
            if place in self.waiting:
                self.earned[place] += np.sign(earned) if self.config.clip_reward else earned
            over = self.ends(script, time, agent) is not None
            if place in self.waiting and (over or self.acts(script, time + 1, agent)):
                self.histories[agent].append(self.earned[place])
                self.waiting.remove(place)
            if over:
                self.earned[place] = 0.0

    def factor_of(self, agent: int) -> float:
        """What the rewards of an agent are multiplied by: those of all agents of its policy count."""
        if not self.config.normalize_reward:
            return 1.0
        history = [earned for other in self.sharing(agent) for earned in self.histories[other]]
        return 1.0 / math.sqrt((np.var(history) if history else 1.0) + 1e-8)

    def sharing(self, agent: int) -> list[int]:
        """The agents of the policy of this one."""
        return [agent]

    def transition(self, row: Row, agent: int) -> Transition:
        """The transition of an agent from a row, over up to n of its turns."""
        script, time = self.at(row)
        nothing = Transition(False, 0.0, 0.0, time + 1)
        if not self.acts(script, time, agent):
            return nothing
        turns, reward, gamma = 0, 0.0, self.config.gamma
        column = self.columns[row.place]
        for last in column[row.number :]:
            now = self.at(last)[1]
            if self.acts(script, now, agent):
                if turns == self.config.n_step:
                    return Transition(True, reward, gamma**turns, now)
                turns += 1
            earned = np.sign(script.reward(now, agent)) if self.config.clip_reward else script.reward(now, agent)
            reward += gamma ** (turns - 1) * earned
            how = self.ends(script, now, agent)
            if how is not None:
                return Transition(True, reward, gamma**turns if how == TRUNCATED else 0.0, now + 1)
            if last is column[-1] and self.acts(script, now + 1, agent):
                return Transition(True, reward, gamma**turns, now + 1)
        return nothing

    def sampled(self, call: GradientStep, rows: dict[tuple[int, int], Row]) -> list[Row]:
        return [rows[moment(observation)] for observation in rows_of(call.observation)]


class SlowCritics(SlowAgents):
    """Lowe et al. 2017: critics that read what all agents observe and do, and who is there."""

    def check_batch(self, call: GradientStep, batch: list[Row]) -> None:
        for b, row in enumerate(batch):
            script, time = self.at(row)
            here = [self.acts(script, time, agent) for agent in range(self.agents)]
            for agent, name in enumerate(self.names()):
                own = self.transition(row, agent)
                assert call.extras["active"][b, agent] == own.active
                if not own.active:
                    continue
                reward = own.reward * self.factor_of(agent)
                assert math.isclose(call.reward[b, agent], reward, rel_tol=1e-4, abs_tol=1e-5)
                assert math.isclose(call.discount[b, agent], own.discount, rel_tol=1e-5)
                seen = label(plain(call.next_observation["agents"][name])[b])
                assert (seen.time, seen.agent) == (own.time, agent)
                if self.config.normalize_observation:
                    expected = self.normalised_for(name, plain(row.observation["agents"][name]))
                    found = plain(call.more["normalised"]["agents"][name])[b]
                    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)
                if "critics" in call.more:
                    self._check_critic(call.more["critics"][name], b, row, agent, here)

    def _check_critic(self, critic: Any, b: int, row: Row, agent: int, here: list[bool]) -> None:
        """Present is who acts; an agent whose time ran out with the last step is bootstrapped from as if it went on."""
        script, time = self.at(row)
        seen, actions, there = (part[b] if not isinstance(part, dict) else None for part in critic["state"])
        if self.config.critic_reads == "state":
            np.testing.assert_allclose(seen, self.normalised_state(row), rtol=2e-3, atol=2e-3)
        assert there.tolist() == [float(acts) for acts in here]
        taken = actions.reshape(self.agents, -1)
        for other in range(self.agents):
            did = self.own_action(row, other)
            expected = np.eye(taken.shape[1])[did] if hasattr(self.space, "n") else did
            np.testing.assert_array_equal(taken[other], expected if here[other] else np.zeros(taken.shape[1]))
        if self.config.n_step == 1:
            cut = [self.ends(script, time, other) == TRUNCATED for other in range(self.agents)]
            follows = [
                self.acts(script, time + 1, other) or (cut[other] and cut[agent]) for other in range(self.agents)
            ]
            assert critic["next_state"][2][b].tolist() == [float(acts) for acts in follows]

    def normalised_for(self, name: str, observation: np.ndarray) -> np.ndarray:
        """An observation by the moments of those that the agent acted on."""
        agent = int(name.rpartition("_")[2])
        seen = [
            plain(x["agents"][name])
            for x in self.seen
            if self.acts(self.script[moment(x)[0] % len(self.script)], moment(x)[1], agent)
        ]
        if not seen:
            return np.clip(observation, -10, 10)
        own = np.array(seen, np.float64)
        return np.clip((observation - own.mean(0)) / np.sqrt(own.var(0) + 1e-8), -10, 10)

    def normalised_state(self, row: Row) -> np.ndarray:
        """The global state by the moments of all that were collected before the newest ones."""
        state, seen = state_of(*row.key), np.array([state_of(*moment(x)) for x in self.seen], np.float64)
        if not self.config.normalize_observation or not len(seen):
            return state
        return np.clip((state - seen.mean(0)) / np.sqrt(seen.var(0) + 1e-8), -10, 10)


class SlowShared(SlowAgents):
    """Agents that share one policy: its batch holds the rows of one agent below those of another."""

    def sharing(self, agent: int) -> list[int]:
        return list(range(self.agents))

    def sampled(self, call: GradientStep, rows: dict[tuple[int, int], Row]) -> list[Row]:
        each = rows_of(call.observation)
        size = len(each) // self.agents
        found = []
        for b in range(size):
            labels = [label(plain(each[agent * size + b])) for agent in range(self.agents)]
            newest = max(labels, key=lambda own: own.time if own.seed else -1)
            found.append(rows[newest.seed, newest.time])
        return found

    def check_batch(self, call: GradientStep, batch: list[Row]) -> None:
        each = [(agent, row) for agent in range(self.agents) for row in batch]
        expected = [self.transition(row, agent) for agent, row in each]
        share = sum(own.active for own in expected) / len(expected)
        for i, ((agent, row), own) in enumerate(zip(each, expected, strict=True)):
            assert math.isclose(call.weight[i], own.active / max(share, 1e-8), rel_tol=1e-5)
            if own.active:
                before, after = (label(plain(rows_of(seen)[i])) for seen in (call.observation, call.next_observation))
                assert (before.agent, before.time) == (agent, self.at(row)[1])
                assert (after.agent, after.time) == (agent, own.time)
                assert call.action[i] == row.action[agent]
                reward = own.reward * self.factor_of(agent)
                assert math.isclose(call.reward[i], reward, rel_tol=1e-4, abs_tol=1e-5)
                assert math.isclose(call.discount[i], own.discount, rel_tol=1e-5)


def moment(observation: Any) -> tuple[int, int]:
    """The episode and the time that the observations of all agents tell: those of the newest."""
    labels = [label(plain(own)) for own in observation["agents"].values()]
    newest = max(labels, key=lambda own: own.time if own.seed else -1)
    return newest.seed, newest.time
