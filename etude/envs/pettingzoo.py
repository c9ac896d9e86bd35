"""PettingZoo's environments, parallel ones and those whose agents take turns, stepped in one way."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np

from etude.base.spaces import Space
from etude.envs.results import as_flag
from etude.envs.rewards import TEXTS
from etude.multi_agent import joint

Named = dict[str, Any]  # by agent


@runtime_checkable
class ParallelEnvironment(Protocol):
    """The part of `pettingzoo.ParallelEnv` that etude calls."""

    possible_agents: list[Any]

    def observation_space(self, agent: Any) -> Space: ...

    def action_space(self, agent: Any) -> Space: ...

    def reset(self, seed: int | None = None, options: Named | None = None) -> tuple[Named, Named]: ...

    def step(self, actions: dict[Any, Any]) -> tuple[Named, Named, Named, Named, Named]: ...

    def render(self) -> Any: ...

    def close(self) -> None: ...


class AgentsStep(NamedTuple):
    """Where the agents are after a reset or a step."""

    acting: tuple[str, ...]  # who acts next
    observations: Named  # what there is to see anew
    infos: Named
    rewards: Named  # of those that earned something
    ended: dict[str, int]  # who ended with this step: joint.TERMINATED or joint.TRUNCATED
    there: tuple[str, ...] = ()  # who is in the environment's `agents`, also if not to act next
    score: float | None = None  # what the episode's return counts for the step; None: the sum of the rewards


class Stepper(Protocol):
    """How one kind of environment is reset and stepped."""

    own: dict[str, Any]  # by the name of each agent that may ever play, what the environment calls it
    turns: bool

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> AgentsStep: ...

    def step(self, actions: Named) -> AgentsStep:
        """`actions` are those of `acting`."""


class ParallelStepper:
    """A parallel environment: an agent acts where there is an observation of it, and waits where there is none and it
    is in `agents`."""

    turns = False

    def __init__(self, env: ParallelEnvironment):
        self.own: dict[str, Any] = _own_names(env)
        self._env = env

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> AgentsStep:
        result = self._env.reset(seed=seed, options=options)
        if not isinstance(result, tuple) or len(result) != 2 or not _dicts(result):
            raise TypeError(f"reset returned {kind_of(result)}; expected (observations, infos), dicts by agent")
        observations = self._seen(result[0])
        return AgentsStep(tuple(observations), observations, self._infos(result[1]), {}, {}, self._there())

    def step(self, actions: Named) -> AgentsStep:
        before = self._there()
        # In the order of possible_agents: environments may count on it.
        result = self._env.step({own: actions[name] for name, own in self.own.items() if name in actions})
        if not isinstance(result, tuple) or len(result) != 5 or not _dicts(result):
            expected = "(observations, rewards, terminations, truncations, infos), dicts by agent"
            raise TypeError(f"step returned {kind_of(result)}; expected {expected}")
        rewards, terminations, truncations = (self._named(part) for part in result[1:4])
        observations, infos, there = self._seen(result[0]), self._infos(result[4]), self._there()
        ended, earned = {}, {}
        for name in actions:
            how = _how(name, value_of(terminations, name, "termination"), value_of(truncations, name, "truncation"))
            if how:
                ended[name] = how
            elif name not in there:
                value_of(observations, name, "observation")
            earned[name] = _number(value_of(rewards, name, "reward"))
        for name in {*before, *observations} - actions.keys():
            how = _how(name, terminations.get(name, False), truncations.get(name, False))
            if how:
                ended[name] = how
            if name in before and name in rewards:
                earned[name] = _number(rewards[name])
        acting = tuple(name for name in observations if name not in ended)
        return AgentsStep(acting, observations, infos, earned, ended, there)

    def _there(self) -> tuple[str, ...]:
        return tuple(self._named(dict.fromkeys(getattr(self._env, "agents", ()))))

    def _seen(self, observations: dict[Any, Any]) -> Named:
        found = self._named(observations)
        if len(found) < len(observations):
            unknown = next(own for own in observations if own not in self.own.values())
            raise ValueError(
                f"there is an observation of agent {unknown!r}; expected agents of possible_agents: "
                f"{', '.join(self.own)}. List all agents that may ever play"
            )
        return found

    def _infos(self, infos: Any) -> Named:
        return {name: info or {} for name, info in self._named(infos or {}).items()}

    def _named(self, values: dict[Any, Any]) -> Named:
        return {name: values[own] for name, own in self.own.items() if own in values}


class TurnStepper:
    """An environment of PettingZoo's agent-environment cycle: one agent acts at a time, and an agent's reward comes at
    its next turn, for all that happened since its last one."""

    turns = True

    def __init__(self, env: Any):
        self.own: dict[str, Any] = _own_names(env)
        self._env = env

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> AgentsStep:
        self._env.reset(seed=seed, options=options)
        return self._next()

    def step(self, actions: Named) -> AgentsStep:
        for action in actions.values():  # one, or none where the reset left no agent
            self._env.step(action)
        return self._next()

    def _next(self) -> AgentsStep:
        """Up to the next turn in which something is to be chosen; those that ended leave with what they earned."""
        env = self._env
        acting: tuple[str, ...] = ()
        observations, rewards, ended = {}, {}, {}
        while env.agents and not acting:
            own = env.agent_selection
            name = str(own)
            _, reward, terminated, truncated, _ = env.last(observe=False)
            rewards[name] = _number(reward)
            how = _how(name, terminated, truncated)
            if how:
                ended[name], observations[name] = how, env.observe(own)
                env.step(None)
            else:
                acting = (name,)
        for own in env.agents:
            observations[str(own)] = env.observe(own)
        infos = {str(own): env.infos.get(own) or {} for own in env.agents}
        return AgentsStep(acting, observations, infos, rewards, ended)


def takes_turns(env: Any) -> bool:
    """Whether it is an environment of PettingZoo's agent-environment cycle."""
    return any(base.__name__ == "AECEnv" for base in type(env).__mro__)


def has_several(env: Any) -> bool:
    """Whether it is one of PettingZoo's, of either kind."""
    return takes_turns(env) or (isinstance(env, ParallelEnvironment) and not isinstance(env, gym.Env))


def _how(name: str, terminated: Any, truncated: Any) -> int:
    """How an agent ended; 0 where it goes on."""
    if as_flag(f"the termination of agent {name!r}", terminated):
        return joint.TERMINATED
    return joint.TRUNCATED if as_flag(f"the truncation of agent {name!r}", truncated) else 0


def value_of(values: Named, name: str, what: str) -> Any:
    """What a dict by agent holds for one that plays. LookupError where it holds nothing."""
    if name not in values:
        raise LookupError(f"there is no {what} for agent {name!r}, which still plays; got those of {sorted(values)}")
    return values[name]


def _dicts(parts: tuple[Any, ...]) -> bool:
    """Whether they are dicts; the last, infos, may be None."""
    return all(isinstance(part, dict) for part in (*parts[:-1], parts[-1] or {}))


def _number(reward: Any) -> Any:
    """A reward, also where it is an array of one number. TypeError for a text."""
    if type(reward) in TEXTS:
        raise TypeError(f"a reward is {reward[:80]!r}, a {type(reward).__name__}; expected one number: float(reward)")
    return float(reward[0]) if isinstance(reward, np.ndarray) and reward.shape == (1,) else reward


def _own_names(env: Any) -> dict[str, Any]:
    """The names of all agents that may ever play, and what the environment itself calls them. Of one in turns that does
    not say: those of its first reset."""
    if (names := getattr(env, "possible_agents", None)) is None:
        env.reset()
        names = env.agents
    return {str(name): name for name in names}


def kind_of(value: Any) -> str:
    """The kind of a returned value, for messages."""
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"
