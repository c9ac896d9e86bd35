"""Several agents in one environment: a PettingZoo parallel environment as one environment with joint observations.

An observation is a Dict of

- `agents`: a Tuple of what each agent observes, in the order of `possible_agents`. A Tuple and not a Dict by name, as
  trees visit the keys of a Dict in sorted order; the names are in `Team.names`.
- `terminated`, `truncated`: MultiBinary, for each agent whether it has ended, and how. So the observation *after* a
  step tells which agents the step ended, and the one *before* it which agents still played; also where several steps
  make one transition, and in every replay and rollout, without a field of their own.

An agent that ends before the others keeps its last observation; its reward is 0 from then on, and its actions are not
read. An agent's action mask is read as a key of its own observation, not from `infos`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np

from etude.base.errors import SpaceError
from etude.base.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple, describe
from etude.envs.adapter import as_flag
from etude.envs.rewards import MultiAgentReward

RewardDone = Callable[[np.ndarray, np.ndarray], tuple[Any, Any]]  # rewards, terminated [agents] -> one reward, one done


@runtime_checkable
class ParallelEnvironment(Protocol):
    """What is used of `pettingzoo.ParallelEnv`."""

    possible_agents: list[Any]

    def observation_space(self, agent: Any) -> Space: ...

    def action_space(self, agent: Any) -> Space: ...

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]: ...

    def step(self, actions: dict[Any, Any]) -> tuple[dict, dict, dict, dict, dict]: ...

    def render(self) -> Any: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Team:
    """The agents of one environment, in the order of its `possible_agents`."""

    names: tuple[Any, ...]
    observations: tuple[Space, ...]
    actions: tuple[Any, ...]  # all Discrete, or all Box

    @classmethod
    def of(cls, env: ParallelEnvironment) -> Team:
        """Raises SpaceError where there is no agent, or their actions cannot be joined."""
        names = tuple(env.possible_agents)
        team = cls(names, tuple(map(env.observation_space, names)), tuple(map(env.action_space, names)))
        if not names:
            raise SpaceError(f"{env} has no possible_agents; expected the name of at least one agent.")
        kinds = {type(space) for space in team.actions}
        if kinds not in ({Discrete}, {Box}):
            each = ", ".join(f"{name}: {describe(space)}" for name, space in zip(names, team.actions, strict=True))
            raise SpaceError(
                f"The actions of all agents are kept in one array, so they must all be Discrete or all be Box; got "
                f"{each}. Wrap the environment so that its agents have actions of one kind."
            )
        return team

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


class JointEnvironment(gym.Env):
    """A parallel environment as one Gymnasium environment, but for its reward, which is a MultiAgentReward.

    An episode ends when the last agent has ended: terminated if all that still played at its last step terminated, else
    truncated. `reward_done`, if given, is called at every step with the rewards of all agents and whether each has
    terminated so far. The reward that it returns is what the episode is scored by, in place of the sum over agents; its
    done ends the episode as terminated, for all agents that still play.
    """

    def __init__(self, env: ParallelEnvironment, reward_done: RewardDone | None = None):
        self.env, self.team = env, Team.of(env)
        self.observation_space, self.action_space = self.team.observation_space, self.team.action_space
        self.metadata = getattr(env, "metadata", {})
        self.render_mode = getattr(env, "render_mode", None)
        self._score = _sum if reward_done is None else _Scored(reward_done)
        n = len(self.team.names)
        self._seen: list[Any] = [None] * n
        self._terminated, self._truncated = np.zeros(n, bool), np.zeros(n, bool)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode with every agent in it."""
        result = self.env.reset(seed=seed, options=options)
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], dict):
            raise TypeError(f"reset returned {_kind(result)}; expected (observations, infos), dicts by agent")
        self._terminated[:], self._truncated[:] = False, False
        self._seen = [_of_agent(result[0], name, "observation") for name in self.team.names]
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step of the agents that still play."""
        playing = np.flatnonzero(~(self._terminated | self._truncated)).tolist()
        names, acts = self.team.names, self.team.split(action)
        result = self.env.step({names[i]: acts[i] for i in playing})
        if not isinstance(result, tuple) or len(result) != 5 or not all(isinstance(part, dict) for part in result):
            expected = "(observations, rewards, terminations, truncations, infos), dicts by agent"
            raise TypeError(f"step returned {_kind(result)}; expected {expected}")
        observations, rewards, terminations, truncations, _ = result
        each = np.zeros(len(names), np.float32)
        for i in playing:
            each[i] = _of_agent(rewards, names[i], "reward")
            self._terminated[i] = _flag_of(terminations, names[i], "termination")
            self._truncated[i] = _flag_of(truncations, names[i], "truncation")
            self._take(i, observations)
        score, done = self._score(each, self._terminated)
        if done:
            self._terminated[playing], self._truncated[playing] = True, False
        ended = bool((self._terminated | self._truncated).all())
        terminated = ended and bool(self._terminated[playing].all())
        return self._observe(), MultiAgentReward(each, score), terminated, ended and not terminated, {}

    def render(self) -> Any:
        """What the environment renders, in the `render_mode` that it was made with."""
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _take(self, i: int, observations: dict[Any, Any]) -> None:
        name = self.team.names[i]
        if not (self._terminated[i] or self._truncated[i]):
            self._seen[i] = _of_agent(observations, name, "observation")
        else:  # the last one, which the environment may leave out, and must not change
            self._seen[i] = copy.deepcopy(observations.get(name, self._seen[i]))

    def _observe(self) -> dict[str, Any]:
        flags = {"terminated": self._terminated.astype(np.int8), "truncated": self._truncated.astype(np.int8)}
        return {"agents": tuple(self._seen), **flags}


def _flag_of(values: dict[Any, Any], name: Any, what: str) -> bool:
    return as_flag(f"the {what} of agent {name!r}", _of_agent(values, name, what))


def _sum(rewards: np.ndarray, terminated: np.ndarray) -> tuple[float, bool]:
    return float(rewards.sum(dtype=np.float64)), False


class _Scored:
    """Calls the user's function, and checks what it returns."""

    def __init__(self, reward_done: RewardDone):
        self._reward_done = reward_done

    def __call__(self, rewards: np.ndarray, terminated: np.ndarray) -> tuple[float, bool]:
        result = self._reward_done(rewards.copy(), terminated.copy())
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise TypeError(f"the reward_done function returned {_kind(result)}; expected (reward, done)")
        reward, done = np.asarray(result[0]), np.asarray(result[1])
        if reward.shape != () or done.shape != ():
            raise ValueError(
                f"the reward_done function returned a reward of shape {reward.shape} and a done of shape {done.shape}; "
                "expected one number and one bool for all agents, such as r.sum(), d.all()"
            )
        return float(reward), bool(done)


def _of_agent(values: dict[Any, Any], name: Any, what: str) -> Any:
    try:
        return values[name]
    except KeyError:
        got = sorted(map(str, values))
        raise LookupError(f"there is no {what} for agent {name!r}, which still plays; got those of {got}") from None


def _kind(value: Any) -> str:
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"
