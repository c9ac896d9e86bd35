"""PettingZoo parallel environments for agents of one's own: one Gymnasium environment with a tuple of observations.

An observation is a Dict of

- `agents`: a Tuple of what each agent observes, in the order of `possible_agents`. A Tuple and not a Dict by name, as
  trees visit the keys of a Dict in sorted order; the names are in `MultiAgentSpaces.names`.
- `terminated`, `truncated`: MultiBinary, for each agent whether it has ended, and how. So the observation *after* a
  step says which agents the step ended, and the one *before* it which agents were still alive; also for transitions
  of several steps, and in every replay and rollout, without a field of their own.

An agent that ends before the others keeps its last observation; its reward is 0 from then on, and its actions are not
read. An agent's action mask is read as a key of its own observation, not from `infos`.

Runs have another layout (`multi_agent.joint`), which marks an end only at its step.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from etude.base.errors import SpaceError
from etude.base.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple, describe
from etude.envs.multi_agent import AgentsStep, ParallelEnvironment, ParallelStepper, kind_of
from etude.envs.rewards import MultiAgentReward
from etude.multi_agent.joint import TERMINATED

RewardDone = Callable[[np.ndarray, np.ndarray], tuple[Any, Any]]  # rewards, terminated [agents] -> one reward, one done


@dataclass(frozen=True)
class MultiAgentSpaces:
    """The agents of one environment, in the order of its `possible_agents`."""

    names: tuple[Any, ...]
    observations: tuple[Space, ...]
    actions: tuple[Any, ...]  # all Discrete, or all Box

    @classmethod
    def of(cls, env: ParallelEnvironment) -> MultiAgentSpaces:
        """Raises SpaceError where there is no agent, or their actions cannot be joined."""
        names = tuple(env.possible_agents)
        spaces = cls(names, tuple(map(env.observation_space, names)), tuple(map(env.action_space, names)))
        if not names:
            raise SpaceError(f"{env} has no possible_agents; expected the name of at least one agent.")
        kinds = {type(space) for space in spaces.actions}
        if kinds not in ({Discrete}, {Box}):
            each = ", ".join(f"{name}: {describe(space)}" for name, space in zip(names, spaces.actions, strict=True))
            raise SpaceError(
                f"The actions of all agents are kept in one array, so they must all be Discrete or all be Box; got "
                f"{each}. Wrap the environment so that its agents have actions of one kind."
            )
        return spaces

    @property
    def observation_space(self) -> Dict:
        """What the agents observe, and which of them have ended."""
        n = len(self.names)
        return Dict({"agents": Tuple(self.observations), "terminated": MultiBinary(n), "truncated": MultiBinary(n)})

    @property
    def action_space(self) -> Space:
        """MultiDiscrete where the agents are Discrete; for Box actions one flat Box, agent after agent."""
        if isinstance(self.actions[0], Discrete):
            return MultiDiscrete([int(a.n) for a in self.actions], start=[int(a.start) for a in self.actions])
        dtype = np.result_type(*(space.dtype for space in self.actions))
        low, high = (np.concatenate([getattr(a, end).ravel() for a in self.actions]) for end in ("low", "high"))
        return Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type)

    def split(self, action: np.ndarray) -> list[Any]:
        """One action of `action_space` as the agents' own."""
        if isinstance(self.actions[0], Discrete):
            return [int(number) for number in action]
        ends = np.cumsum([int(np.prod(space.shape)) for space in self.actions])
        parts = np.split(action, ends[:-1])
        return [_cast(part, space) for part, space in zip(parts, self.actions, strict=True)]


def _cast(action: np.ndarray, space: Box) -> np.ndarray:
    whole = np.rint(action) if space.dtype.kind != "f" else action
    return whole.astype(space.dtype).reshape(space.shape)


class ParallelAgentsEnvironment(gym.Env):
    """A parallel environment as one Gymnasium environment, except for its reward, which is a MultiAgentReward.

    An episode ends when the last agent has ended: terminated if all agents alive at its last step terminated, else
    truncated. `reward_done`, if given, is called at every step with the rewards of all agents and whether each has
    terminated so far. The reward that it returns counts in the return of the episode, in place of the sum over agents;
    its done terminates the episode for all agents that are still alive.
    """

    def __init__(self, env: ParallelEnvironment, reward_done: RewardDone | None = None):
        self.env, self.agents = env, MultiAgentSpaces.of(env)
        self.observation_space, self.action_space = self.agents.observation_space, self.agents.action_space
        self.metadata = getattr(env, "metadata", {})
        self.render_mode = getattr(env, "render_mode", None)
        self._stepper = ParallelStepper(env)
        self._names = self._stepper.names
        self._score = _sum if reward_done is None else _CheckedRewardDone(reward_done)
        n = len(self._names)
        self._seen: list[Any] = [None] * n
        self._terminated, self._truncated = np.zeros(n, bool), np.zeros(n, bool)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode with every agent in it."""
        begun = self._stepper.reset(seed, options)
        self._terminated[:], self._truncated[:] = False, False
        self._seen = [_observation_of(begun, name) for name in self._names]
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step of the agents that are still alive."""
        alive = np.flatnonzero(~(self._terminated | self._truncated)).tolist()
        actions = self.agents.split(action)
        step = self._stepper.step({self._names[i]: actions[i] for i in alive})
        each = np.zeros(len(self._names), np.float32)
        for i in alive:
            name = self._names[i]
            each[i] = step.rewards[name]
            if name not in step.ended:
                self._seen[i] = step.observations[name]
                continue
            self._terminated[i] = step.ended[name] == TERMINATED
            self._truncated[i] = not self._terminated[i]
            # The last one, which the environment may leave out, and must not change.
            self._seen[i] = copy.deepcopy(step.observations.get(name, self._seen[i]))
        score, done = self._score(each, self._terminated)
        if done:
            self._terminated[alive], self._truncated[alive] = True, False
        ended = bool((self._terminated | self._truncated).all())
        terminated = ended and bool(self._terminated[alive].all())
        return self._observe(), MultiAgentReward(each, score), terminated, ended and not terminated, {}

    def render(self) -> Any:
        """What the environment renders, in the `render_mode` that it was made with."""
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _observe(self) -> dict[str, Any]:
        flags = {"terminated": self._terminated.astype(np.int8), "truncated": self._truncated.astype(np.int8)}
        return {"agents": tuple(self._seen), **flags}


def _observation_of(begun: AgentsStep, name: str) -> Any:
    if name not in begun.observations:
        seen = sorted(begun.observations)
        raise LookupError(f"there is no observation for agent {name!r}, which still plays; got those of {seen}")
    return begun.observations[name]


def _sum(rewards: np.ndarray, terminated: np.ndarray) -> tuple[float, bool]:
    return float(rewards.sum(dtype=np.float64)), False


class _CheckedRewardDone:
    """Calls the user's function, and checks what it returns."""

    def __init__(self, reward_done: RewardDone):
        self._reward_done = reward_done

    def __call__(self, rewards: np.ndarray, terminated: np.ndarray) -> tuple[float, bool]:
        result = self._reward_done(rewards.copy(), terminated.copy())
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise TypeError(f"the reward_done function returned {kind_of(result)}; expected (reward, done)")
        reward, done = np.asarray(result[0]), np.asarray(result[1])
        if reward.shape != () or done.shape != ():
            raise ValueError(
                f"the reward_done function returned a reward of shape {reward.shape} and a done of shape {done.shape}; "
                "expected one number and one bool for all agents, such as r.sum(), d.all()"
            )
        return float(reward), bool(done)
