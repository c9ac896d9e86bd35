"""Several agents in one environment, as one: PettingZoo's parallel environments, and those whose agents take turns.

What is observed and done is laid out as in `joint`. An agent that does not act keeps its last observation (zeros before
the first), and its action is not read; once it has ended, its reward is 0. Names that are no texts become texts."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np

from etude.base.errors import SpaceError
from etude.base.spaces import (
    ACTION_MASK,
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Origins,
    Shifted,
    Space,
    Spaces,
    parts,
    with_origins,
    zeros,
)
from etude.envs.actions import TEXTS, Actions, MultiAgentReward
from etude.envs.faults import LateMask, as_flag, explain_error
from etude.envs.observations import LATE_MASK, Observations, flat_mask, is_text, mask_size
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


class _Stepper(Protocol):
    """How one kind of environment is reset and stepped."""

    own: dict[str, Any]  # by the name of each agent that may ever play, what the environment calls it
    turns: bool

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> AgentsStep: ...

    def step(self, actions: Named) -> AgentsStep:
        """`actions` are those of `acting`."""


@dataclass
class _KnownStep:
    """A `_Stepper` whose one step is known."""

    own: dict[str, Any]
    turns: bool
    known: AgentsStep

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> AgentsStep:
        return self.known

    def step(self, actions: Named) -> AgentsStep:
        return self.known


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


class _TurnStepper:
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


PATIENCE = 10_000  # steps in a row in which nobody can act


class JoinedAgents(gym.Env[Any, Any]):
    """Several agents as one Gymnasium environment, but for its reward, which is a MultiAgentReward.

    An episode ends when nobody is left to act or wait: terminated if all whose last step it was terminated, else
    truncated. Its return counts what the stepper says of each step, else the sum of all rewards. Derived classes lay
    out observations.

    agents: the spaces of each, as it sees them, in the order of all arrays. actions: from joined ones to its own.
    """

    def __init__(self, env: Any, stepper: _Stepper, agents: dict[str, Spaces], actions: dict[str, Actions]):
        self.env: Any = env
        self._stepper, self._actions = stepper, actions
        self.names: tuple[str, ...] = tuple(agents)
        self._places = joint.places(agents)
        self.action_space: Space = joint.joined_actions([own.action for own in agents.values()])
        self.metadata: dict[str, Any] = getattr(env, "metadata", {})
        self.render_mode: str | None = getattr(env, "render_mode", None)
        self._seen: Named = {}
        self._idle = 0  # steps in a row in which nobody acted
        self._status: dict[str, int] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        self._begin()
        return self._observe(self._stepper.reset(seed, options)), {}

    def step(self, action: np.ndarray) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step of the agents whose turn it is."""
        acting = [name for name, status in self._status.items() if status == joint.ACTING]
        playing = [name for name, status in self._status.items() if not joint.ended(status)]
        step = self._stepper.step(self.split(action, acting))
        self._idle = 0 if acting else self._idle + 1  # through however many episodes
        if self._idle >= PATIENCE:
            left = f"{', '.join(step.there)} stayed in `agents`" if step.there else "`agents` was empty"
            raise ValueError(
                f"nobody could act in {PATIENCE:,} steps in a row: there was no observation of an agent, and {left}. "
                "Return an observation of each agent that is to act, and empty `agents` when an episode is over"
            )
        ended = {name: how for name, how in step.ended.items() if name in playing}
        self._status |= dict.fromkeys(acting, joint.WAITING) | ended
        each = np.array([step.rewards.get(name, 0.0) if name in playing else 0.0 for name in self.names], np.float32)
        score = float(each.sum(dtype=np.float64)) if step.score is None else step.score
        over = not step.acting and all(joint.ended(self._status[name]) for name in step.there)
        terminated = over and set(ended.values()) == {joint.TERMINATED}
        return self._observe(step), MultiAgentReward(each, score), terminated, over and not terminated, step.infos

    def split(self, action: np.ndarray, names: Sequence[str]) -> Named:
        """The actions of these agents in a joined one, as the environment takes them."""
        found = {}
        for name in names:
            kind, part = self._actions[name], action[self._places[name]]
            found[name] = int(kind.each(part)[0]) if isinstance(kind.space, Discrete) else kind.each(part[None])[0]
        return found

    def render(self) -> Any:
        """What the environment renders, in the `render_mode` that it was made with."""
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _begin(self) -> None:
        self._status = dict.fromkeys(self.names, joint.WAITING)

    def _observe(self, step: AgentsStep) -> dict[str, Any]:
        for name, value in step.observations.items():
            self._seen[name] = self._present(name, value, step)
        for name in step.ended:  # its last one, which the environment must not change
            self._seen[name] = copy.deepcopy(self._seen[name])
        self._status |= dict.fromkeys(step.acting, joint.ACTING)
        return self._laid_out(np.array(list(self._status.values()), np.int8))

    def _present(self, name: str, value: Any, step: AgentsStep) -> Any:
        """What an agent sees of its observation."""
        return value

    def _laid_out(self, status: np.ndarray) -> dict[str, Any]:
        """One observation of what all agents have seen, and of their status [agents]."""
        raise NotImplementedError


class MultiAgentEnvironment(JoinedAgents):
    """Several agents as runs see them, laid out as in `joint`, in the order of their names.

    global_state: whether observations hold what the environment's `state()` returns, a value of its `state_space`, or
        an array of the same shape at every step where it has none.
    masks: whether infos hold action masks at some step, also where those of the first reset hold none. Then every agent
        that chooses has one, all ones where its info has none.
    origins: see `with_origins`.
    raw: the spaces of observations and actions of each, as the environment has them.
    spaces: as agents see them. Raises SpaceError where there is no agent, or no state that is asked for.
    """

    def __init__(self, env: Any, global_state: bool = False, masks: bool = False, origins: Origins = ()):
        stepper: _Stepper = _TurnStepper(env) if takes_turns(env) else ParallelStepper(env)
        names = tuple(sorted(stepper.own))
        refuse_nobody(env, names)
        own = stepper.own
        raw = {name: env.observation_space(own[name]) for name in names}
        actions = {name: Actions(env.action_space(own[name])) for name in names}
        self.raw: dict[str, tuple[Space, Space]] = {name: (raw[name], actions[name].space) for name in names}
        infos = stepper.reset(None, None).infos  # spaces do not tell whether there are action masks in infos
        self.masks: bool = masks or any(ACTION_MASK in info for info in infos.values())
        flags = {name: mask_size(actions[name].space, infos.get(name, {}), self.masks) for name in names}
        seen = {name: with_origins(_with_mask(raw[name], flags[name]), origins, (joint.AGENTS, name)) for name in names}
        # Of each agent alone, which finds its action mask in its observation, also where infos hold it.
        self.conversions: dict[str, tuple[Observations, Actions]] = {
            name: (Observations(seen[name]), actions[name]) for name in names
        }
        self._masks = {name: _mask_of(space) for name, space in seen.items()}
        self._is_dict = {name: isinstance(raw[name], Dict) for name in names}
        self.in_infos: set[str] = {name for name in names if flags[name] and _mask_of(raw[name]) is None}
        each = {name: Spaces(own.space, action.space) for name, (own, action) in self.conversions.items()}
        super().__init__(env, stepper, each, actions)
        state = {joint.STATE: with_origins(_state_space(env), origins, (joint.STATE,))} if global_state else {}
        self.spaces: Spaces = joint.joined_spaces(
            each, stepper.turns, *(Observations(own).space for own in state.values())
        )
        self.observation_space: Dict[Any] = Dict(
            {joint.AGENTS: Dict(seen), joint.STATUS: joint.status_space(len(names)), **state}
        )
        self._state: dict[str, Any] = {name: _blank(own) for name, own in state.items()}
        self._unseen = {name: _blank(space) for name, space in seen.items()}
        self._begin()

    @property
    def over(self) -> set[str]:
        """Whose part of the episode is over."""
        return {name for name, status in self._status.items() if joint.ended(status)}

    def before(self, step: AgentsStep) -> MultiAgentEnvironment:
        """One that is where this one is, whose next reset or step is one that happened elsewhere."""
        other = copy.copy(self)
        other._seen, other._status = dict(self._seen), dict(self._status)
        other._stepper = _KnownStep(self._stepper.own, self._stepper.turns, step)
        return other

    def joined(self, observations: Named, infos: Named, first: bool) -> dict[str, Any]:
        """What is observed where these agents act and the others wait; nothing is stepped. first: of an episode."""
        if first:
            self._begin()
        self._status = dict.fromkeys(self.names, joint.WAITING)
        return super()._observe(AgentsStep(tuple(observations), observations, infos, {}, {}))

    def _begin(self) -> None:
        super()._begin()
        self._seen = dict(self._unseen)

    def _present(self, name: str, value: Any, step: AgentsStep) -> Any:
        """An observation with its mask: also where that is in the infos, and where nothing is to be chosen."""
        mask = self._masks[name]
        if mask is None:
            if ACTION_MASK in step.infos.get(name, ()):
                raise LateMask(f"The action mask in the info of agent {name!r} {LATE_MASK}.")
            return value
        if name in self.in_infos:
            value = value if self._is_dict[name] else {"observation": value}
            value = {**value, ACTION_MASK: step.infos.get(name, {}).get(ACTION_MASK)}
        if name not in step.acting or value[ACTION_MASK] is None:
            return {**value, ACTION_MASK: np.ones(mask.shape, mask.dtype)}
        allowed = flat_mask(value[ACTION_MASK])
        if not allowed.any():
            raise ValueError(f"the action mask of agent {name!r}, whose turn it is, allows no action at all")
        return {**value, ACTION_MASK: allowed.astype(mask.dtype)}

    def _observe(self, step: AgentsStep) -> dict[str, Any]:
        if self._state:
            self._state = {joint.STATE: copy.deepcopy(self.env.state())}  # the next reset may write to it
        return super()._observe(step)

    def _laid_out(self, status: np.ndarray) -> dict[str, Any]:
        return {joint.AGENTS: dict(self._seen), joint.STATUS: status, **self._state}


def refuse_nobody(env: Any, names: Sequence[Any]) -> None:
    """Raise SpaceError where an environment has no agents."""
    if not names:
        raise SpaceError(f"{env} has no possible_agents; expected the name of at least one agent.")


def _state_space(env: Any) -> Space:
    """The space of an environment's global state. SpaceError where it has none."""
    declared = getattr(env, "state_space", None)
    try:
        state = env.state()
    except Exception as problem:
        raise SpaceError(
            f"critic_reads = 'state', and state() of {env} raised {explain_error(problem)}. Define state(), or give "
            "critic_reads='observations'."
        ) from problem
    if isinstance(declared, gym.Space):
        return declared
    found = np.asarray(state)
    if found.dtype.kind not in "biuf":
        raise SpaceError(
            f"state() of {env} returned {state!r:.80}; expected an array of numbers, or an environment with a "
            "state_space that says what it returns."
        )
    return Box(-np.inf, np.inf, found.shape, np.float32)


def _with_mask(space: Space, flags: int) -> Space:
    """With a key for the action mask where that comes in infos. flags: its length, 0 for none."""
    if not flags or _mask_of(space) is not None:
        return space
    inner = space.spaces if isinstance(space, Dict) else {"observation": space}
    return Dict({**inner, ACTION_MASK: MultiBinary(flags)})


def _mask_of(space: Space) -> Any:
    return space.spaces.get(ACTION_MASK) if isinstance(space, Dict) else None


def _blank(space: Space) -> Any:
    """What an agent sees before it has seen anything."""
    if isinstance(space, Dict):
        blank = {key: _blank(part) for key, part in parts(space)}
        return blank | ({ACTION_MASK: np.ones_like(blank[ACTION_MASK])} if ACTION_MASK in blank else {})
    if isinstance(space, Discrete | MultiDiscrete):
        return np.asarray(space.start, space.dtype) + np.zeros(space.shape or (), space.dtype)
    if isinstance(space, Shifted):
        return space.origin
    if is_text(space):
        return ""
    inner = [_blank(part) for _, part in parts(space)]
    return tuple(inner) if inner else zeros(space)
