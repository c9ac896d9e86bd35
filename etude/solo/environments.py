"""Environments of agents of one's own: an environment, a Gymnasium id, `module:callable`, a callable, or a list of
these, behind Gymnasium's interface.

The style of old Gym is any of: `reset` returns a bare observation or takes no seed; `step` returns four values, with
one `done`; the spaces are of the gym package. Elsewhere such an environment is refused with what to mend.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import cloudpickle
import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from etude.base.errors import ConfigError, SpaceError
from etude.base.forks import dumps
from etude.base.spaces import Box, Dict, Discrete, MultiBinary, Space, Spaces, Tuple, describe
from etude.envs.actions import Actions, MultiAgentRewards, RawActions, Rewards
from etude.envs.adapter import AdaptedEnvironment
from etude.envs.faults import as_flag, explain_reset
from etude.envs.make import make_any, make_rendering, rendering
from etude.envs.multi_agent import (
    AgentsStep,
    JoinedAgents,
    Named,
    ParallelEnvironment,
    ParallelStepper,
    kind_of,
    refuse_nobody,
    takes_turns,
    value_of,
)
from etude.envs.registry import EnvironmentSpec, name_of, resolve, takes
from etude.envs.vector import LoopEnvironments
from etude.multi_agent.joint import AGENTS, TERMINATED, TRUNCATED


@runtime_checkable
class _Steppable(Protocol):
    """What every single-agent environment has, of whatever package."""

    observation_space: Any
    action_space: Any

    def reset(self) -> Any: ...

    def step(self, action: Any) -> Any: ...


def reasons(env: _Steppable) -> list[str]:
    """What of an environment is in the old style; [] where it can be used as it is. Resets it once."""
    found = []
    if not isinstance(env, gym.Env):
        found.append("it is no gymnasium.Env")
    if not (isinstance(env.observation_space, gym.Space) and isinstance(env.action_space, gym.Space)):
        found.append("its spaces are not Gymnasium's")
    if not takes(env.reset, "seed"):
        found.append("reset takes no seed")
    try:
        bare = explain_reset(env.reset()) is not None
    except Exception:  # shows again, with its place, when the first episode begins
        bare = False
    return [*found, "reset returns a bare observation"] if bare else found


class OldGymEnvironment(gym.Env[Any, Any]):
    """An environment in the old style, behind the interface of Gymnasium.

    `done` means terminated, unless `info["TimeLimit.truncated"]` is true: then it means truncated.
    A seed goes to `reset` where it takes one, else to the method `seed`; without either, episodes do not repeat.
    """

    def __init__(self, env: Any, name: str):
        """Raises SpaceError for spaces other than Gymnasium's and plain Box and Discrete ones of the gym package."""
        self.env = env
        self.observation_space: Space = _as_space(env.observation_space, f"The observation space of {name}")
        self.action_space: Space = _as_space(env.action_space, f"The action space of {name}")
        self.metadata: dict[str, Any] = getattr(env, "metadata", None) or {}
        takes_seed, seed = takes(env.reset, "seed"), getattr(env, "seed", None)
        self.seeded: bool = takes_seed or callable(seed)
        self._reset: Callable[[int | None], Any] = lambda seed: env.reset()
        if takes_seed:
            self._reset = lambda seed: env.reset(seed=seed)
        elif callable(seed):
            self._reset = lambda number: (None if number is None else env.seed(number), env.reset())[1]
        self._render: Callable[[], Any] = getattr(env, "render", lambda: None)
        self.render_mode = getattr(env, "render_mode", None)
        if takes(self._render, "mode"):
            self._render, self.render_mode = lambda: env.render(mode="rgb_array"), "rgb_array"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """(observation, info)."""
        result = self._reset(seed)
        return result if explain_reset(result) is None else (result, {})

    def step(self, action: Any) -> Any:
        """Five values; what is neither four nor five is returned as it is, to be explained by the caller."""
        result = self.env.step(action)
        if not isinstance(result, tuple) or len(result) != 4 or not isinstance(result[3], dict):
            return result
        observation, reward, done, info = result
        ended = as_flag("done", done)
        truncated = ended and bool(info.get("TimeLimit.truncated", False))
        return observation, reward, ended and not truncated, truncated, info

    def render(self) -> Any:
        """What the environment renders."""
        return self._render()

    def close(self) -> None:
        getattr(self.env, "close", lambda: None)()


def _as_space(space: Any, what: str = "The space") -> Space:
    """A space of Gymnasium; plain Box and Discrete ones of other packages are rebuilt."""
    if isinstance(space, gym.Space):
        return space
    if all(hasattr(space, part) for part in ("low", "high", "shape", "dtype")):
        dtype = np.dtype(space.dtype)
        return Box(np.asarray(space.low, dtype), np.asarray(space.high, dtype), tuple(space.shape), dtype.type)
    if isinstance(getattr(space, "n", None), int | np.integer):
        return Discrete(int(space.n), start=int(getattr(space, "start", 0)))
    raise SpaceError(
        f"{what} is a {type(space).__module__}.{type(space).__qualname__}; expected a gymnasium.spaces.Space, or a Box "
        "or Discrete of the old gym package. Declare it with gymnasium.spaces."
    )


RewardDone = Callable[[np.ndarray, np.ndarray], tuple[Any, Any]]  # rewards, terminated [agents] -> one reward, one done


AgentActions = dict[Any, Any]  # by agent, in the order of `possible_agents`: action spaces, all Discrete or all Box


class ParallelAgentsEnvironment(JoinedAgents):
    """A parallel environment as agents of one's own see it. reward_done: see `_AllAgentsStepper`. Raises SpaceError
    where there is no agent, or their actions cannot be joined."""

    def __init__(self, env: ParallelEnvironment, reward_done: RewardDone | None = None):
        own = tuple(env.possible_agents)
        refuse_nobody(env, own)
        self.agents: AgentActions = {agent: env.action_space(agent) for agent in own}
        spaces, names = self.agents.values(), tuple(map(str, own))
        if {type(space) for space in spaces} not in ({Discrete}, {Box}):
            each = ", ".join(f"{name}: {describe(space)}" for name, space in zip(names, spaces, strict=True))
            raise SpaceError(
                f"The actions of all agents are kept in one array, so they must all be Discrete or all be Box; got "
                f"{each}. Wrap the environment so that its agents have actions of one kind."
            )
        seen = tuple(map(env.observation_space, own))
        actions = {name: Actions(space, RawActions) for name, space in zip(names, spaces, strict=True)}
        known = {name: Spaces(space, actions[name].space) for name, space in zip(names, seen, strict=True)}
        super().__init__(env, _AllAgentsStepper(env, reward_done), known, actions)
        n = len(names)
        ended = {"terminated": MultiBinary(n), "truncated": MultiBinary(n)}
        self.observation_space: Dict[Any] = Dict({AGENTS: Tuple(seen), **ended})

    def _laid_out(self, status: np.ndarray) -> dict[str, Any]:
        seen = tuple(self._seen[name] for name in self.names)
        ended = {"terminated": status == TERMINATED, "truncated": status == TRUNCATED}
        return {AGENTS: seen, **{name: flags.astype(np.int8) for name, flags in ended.items()}}


class _AllAgentsStepper:
    """Steps a parallel environment whose agents are all there when an episode begins, and do not come back once they
    have ended.

    `reward_done`, if given, is called at every step with the rewards of all agents and whether each has terminated so
    far. The reward that it returns counts in the return of the episode, in place of the sum over agents; its done
    terminates the episode for all agents that are still alive.
    """

    turns = False

    def __init__(self, env: ParallelEnvironment, reward_done: RewardDone | None):
        self._stepper = ParallelStepper(env)
        self.own: dict[str, Any] = self._stepper.own
        self.names: tuple[str, ...] = tuple(self._stepper.own)
        self._reward_done = reward_done
        self._terminated = np.zeros(len(self.names), bool)

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> AgentsStep:
        step = self._stepper.reset(seed, options)
        self._terminated[:] = False
        for name in self.names:
            value_of(step.observations, name, "observation")
        return step

    def step(self, actions: Named) -> AgentsStep:
        step = self._stepper.step(actions)._replace(there=())
        for name in actions.keys() - step.ended:
            value_of(step.observations, name, "observation")
        if not step.observations.keys() <= actions.keys():  # some environments go on showing agents that ended
            observations = {name: value for name, value in step.observations.items() if name in actions}
            step = step._replace(acting=tuple(n for n in step.acting if n in actions), observations=observations)
        if self._reward_done is None:
            return step
        for name, how in step.ended.items():
            self._terminated[self.names.index(name)] = how == TERMINATED
        each = np.array([step.rewards.get(name, 0.0) for name in self.names], np.float32)
        result = self._reward_done(each, self._terminated.copy())
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise TypeError(f"the reward_done function returned {kind_of(result)}; expected (reward, done)")
        reward, done = np.asarray(result[0]), np.asarray(result[1])
        if reward.shape != () or done.shape != ():
            raise ValueError(
                f"the reward_done function returned a reward of shape {reward.shape} and a done of shape {done.shape}; "
                "expected one number and one bool for all agents, such as r.sum(), d.all()"
            )
        step = step._replace(score=float(reward))
        return step._replace(acting=(), ended=dict.fromkeys(actions, TERMINATED)) if done else step


Environment = _Steppable | ParallelEnvironment
EXPECTED = (
    "a Gymnasium id, 'module:callable', an environment, a callable that makes one, or a list of these with one for "
    "each process"
)


class EnvironmentInstance:
    """One environment that the user made. Sent to workers by cloudpickle."""

    def __init__(self, env: Any):
        self.env: Any = env
        self.name: str = _name(env)

    def copied(self) -> Any:
        """Another one like it. Raises ConfigError where it can be neither copied nor pickled."""
        try:
            return copy.deepcopy(self.env)
        except Exception:  # whatever its parts raise; perhaps it pickles
            return cloudpickle.loads(self._pickled())

    def _pickled(self) -> bytes:
        try:
            return dumps(self.env)
        except Exception as problem:
            raise ConfigError(
                f"{self.name} can be neither copied nor sent to another process ({problem}). Give what makes it: a "
                "Gymnasium id, or a callable such as lambda: MyEnvironment()."
            ) from problem

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "env": self._pickled()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.name, self.env = state["name"], cloudpickle.loads(state["env"])


class _WrappedEnvironment(NamedTuple):
    """One environment behind Gymnasium's interface, its agents if it has several, and what to tell the user."""

    env: gym.Env[Any, Any]
    agents: AgentActions | None = None
    note: str = ""

    @property
    def rewards(self) -> Rewards:
        """The layout of its rewards."""
        return Rewards() if self.agents is None else MultiAgentRewards(tuple(self.agents))

    @staticmethod
    def of(env: Any, name: str, reward_done: RewardDone | None) -> _WrappedEnvironment:
        """ConfigError for what is no single environment, and for a function for several agents where there is one."""
        _check_kind(env, name)
        if isinstance(env, ParallelEnvironment):
            joint = ParallelAgentsEnvironment(env, reward_done)
            return _WrappedEnvironment(joint, joint.agents)
        if reward_done is not None:
            raise ConfigError(
                f"A function for the rewards and dones of several agents was given, and {name} has one agent; expected "
                "a PettingZoo parallel environment."
            )
        if not (found := reasons(env)):
            return _WrappedEnvironment(env)
        old = OldGymEnvironment(env, name)
        told = (
            f"{_name(env)} is in the style of old Gym ({', '.join(found)}) and is adapted: done counts as "
            "terminated, or as truncated where info['TimeLimit.truncated'] is true."
        )
        if not old.seeded:
            told += (
                " It takes no seed, in reset or by a method seed(seed): its episodes do not repeat, and copies of "
                "one instance may all draw the same numbers."
            )
        return _WrappedEnvironment(old, note=told)


class _KeptOpen(gym.Env[Any, Any]):
    """An environment that the user closes. Costs no call at a step."""

    def __init__(self, env: gym.Env[Any, Any]):
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.reset, self.step, self.render = env.reset, env.step, env.render  # type: ignore[method-assign]

    def close(self) -> None:
        """Leave it open."""


def _check_kind(env: Any, name: str) -> None:
    """Raise ConfigError for what is no single environment whose agents act at once."""
    kind = type(env).__qualname__
    if takes_turns(env):
        raise ConfigError(
            f"{name} lets its agents act in turns; expected a parallel environment: its parallel_env(), or "
            "pettingzoo.utils.conversions.aec_to_parallel(env)."
        )
    if isinstance(env, VectorEnv):
        raise ConfigError(
            f"{name} is a {kind} of {env.num_envs} environments; expected a single one: etude steps as many of them as "
            "it is asked for."
        )
    if not isinstance(env, Environment):
        missing = [part for part in ("reset", "step", "observation_space", "action_space") if part not in dir(env)]
        without = f" without {', '.join(missing)}" if missing else ""
        raise ConfigError(f"{name} is a {kind}{without}; expected {EXPECTED}.")


def _name(env: Any) -> str:
    if isinstance(env, gym.Env) and env.spec is not None:
        return env.spec.id
    metadata = getattr(env, "metadata", None) or {}
    return str(metadata.get("name", type(getattr(env, "unwrapped", env)).__name__))


class EnvironmentDescription(NamedTuple):
    """What is known of environments before any is stepped."""

    name: str
    spaces: Spaces  # as the agent sees them
    agents: AgentActions | None  # where there are several agents
    notes: tuple[str, ...]  # to warn the user of, once


@dataclass(frozen=True)
class UserEnvironments:
    """`make_environments(columns) -> Environments` for an agent's `env`. Sent to workers by cloudpickle.

    Environment c of the run is made from entry c modulo their number. An instance is used itself for its own
    environment, and is then never closed; every other environment gets a copy of it. Actions are in the environment's
    own units.

    reward_done: see `_AllAgentsStepper`.
    """

    entries: tuple[EnvironmentSpec | EnvironmentInstance, ...]
    run_seed: int
    reward_done: RewardDone | None = None

    @classmethod
    def of(cls, env: Any, run_seed: int, reward_done: RewardDone | None = None) -> UserEnvironments:
        """Raises ConfigError for what neither is an environment nor could make one."""
        given = list(env) if isinstance(env, list | tuple) else [env]
        if not given:
            raise ConfigError(f"The list of environments is empty; expected {EXPECTED}.")
        entries: list[EnvironmentSpec | EnvironmentInstance] = []
        instances: dict[int, EnvironmentInstance] = {}  # by identity: the same one, also in another process
        for one in given:  # what a callable makes is checked where it is called
            if isinstance(one, str | type) or (not isinstance(one, Environment) and callable(one)):
                entries.append(one)
            else:
                _check_kind(one, f"{one!r}"[:80])
                entries.append(instances.setdefault(id(one), EnvironmentInstance(one)))
        return cls(tuple(entries), run_seed, reward_done)

    def __call__(self, columns: list[int] | np.ndarray) -> LoopEnvironments:
        """The environments with these numbers in the run."""
        return self._vectorised([self._wrap(int(column)) for column in columns], columns)

    @property
    def name(self) -> str:
        """A short name for messages."""
        return _entry_name(self.entries[0])

    def describe(self) -> EnvironmentDescription:
        """Look at one environment of each entry. Raises SpaceError where their spaces differ."""
        seen = []
        for i, entry in enumerate(self.entries):
            if entry in self.entries[:i]:
                continue
            wrapped = self._wrap(i)
            environments = self._vectorised([wrapped], [i])
            notes = (wrapped.note,) if wrapped.note else ()
            seen.append(EnvironmentDescription(_entry_name(entry), environments.spaces, wrapped.agents, notes))
            environments.close()
        first = seen[0]
        for other in seen[1:]:
            if other.spaces != first.spaces:
                each = [f"{x.name} has {describe(x.spaces.observation)} and {describe(x.spaces.action)}"
                        for x in (first, other)]  # fmt: skip
                raise SpaceError(f"All environments of one agent must have the same spaces; {', '.join(each)}.")
        return first._replace(notes=tuple(dict.fromkeys(text for one in seen for text in one.notes)))

    def single(self, render_mode: str | None = None) -> AdaptedEnvironment:
        """One environment apart from those of the run.

        Raises ConfigError where it cannot be made with this `render_mode`.
        """
        env, name = _make(self.entries[0], render_mode), self.name
        wrapped = _WrappedEnvironment.of(env, name, self.reward_done)
        return AdaptedEnvironment(wrapped.env, name, RawActions, wrapped.rewards)

    def _vectorised(self, wrapped: list[_WrappedEnvironment], columns: list[int] | np.ndarray) -> LoopEnvironments:
        make = iter([one.env for one in wrapped]).__next__
        return LoopEnvironments(make, np.asarray(columns), self.run_seed, self.name, RawActions, wrapped[0].rewards)

    def _wrap(self, column: int) -> _WrappedEnvironment:
        entry = self.entries[column % len(self.entries)]
        own = isinstance(entry, EnvironmentInstance) and self.entries.index(entry) == column
        made = entry.env if own and isinstance(entry, EnvironmentInstance) else _make(entry)
        wrapped = _WrappedEnvironment.of(made, _entry_name(entry), self.reward_done)
        return wrapped._replace(env=_KeptOpen(wrapped.env)) if own else wrapped


def _make(entry: EnvironmentSpec | EnvironmentInstance, render_mode: str | None = None) -> Any:
    """One environment of an entry. Raises ConfigError where it cannot be made with this `render_mode`."""
    if isinstance(entry, EnvironmentInstance):
        return entry.copied() if render_mode is None else rendering(entry.copied(), entry.name, render_mode)
    made = resolve(entry)
    return make_any(made, {}) if render_mode is None else make_rendering(made, render_mode)


def _entry_name(entry: EnvironmentSpec | EnvironmentInstance) -> str:
    return entry.name if isinstance(entry, EnvironmentInstance) else name_of(entry)
