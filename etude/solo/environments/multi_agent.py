"""PettingZoo parallel environments for agents of one's own: one Gymnasium environment with a tuple of observations.

An observation is a Dict of

- `agents`: a Tuple of what each agent observes, in the order of `possible_agents`. A Tuple and not a Dict by name, as
  trees visit the keys of a Dict in sorted order; the names are in `MultiAgentSpaces.names`.
- `terminated`, `truncated`: MultiBinary, for each agent whether it has ended, and how. So the observation *after* a
  step says which agents the step ended, and the one *before* it which agents were still alive; also for transitions
  of several steps, and in every replay and rollout, without a field of their own.

An agent that ends before the others keeps its last observation; its reward is 0 from then on, and its actions are not
read. An agent's action mask is read as a key of its own observation, not from `infos`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.base.errors import SpaceError
from etude.base.spaces import Box, Dict, Discrete, MultiBinary, Space, Spaces, Tuple, describe
from etude.envs.actions import Actions, ActionScaling, NormalisedActions
from etude.envs.multi_agent import JoinedAgents, refuse_nobody
from etude.envs.pettingzoo import AgentsStep, Named, ParallelEnvironment, ParallelStepper, kind_of, value_of
from etude.multi_agent.joint import AGENTS, TERMINATED, TRUNCATED

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
        refuse_nobody(env, names)
        spaces = cls(names, tuple(map(env.observation_space, names)), tuple(map(env.action_space, names)))
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
        return Dict({AGENTS: Tuple(self.observations), "terminated": MultiBinary(n), "truncated": MultiBinary(n)})


class ParallelAgentsEnvironment(JoinedAgents):
    """A parallel environment as agents of one's own see it.

    scaling: of Box actions, `RawActions` or `NormalisedActions`. reward_done: see `AllAgentsStepper`.
    """

    def __init__(
        self,
        env: ParallelEnvironment,
        reward_done: RewardDone | None = None,
        scaling: ActionScaling = NormalisedActions,
    ):
        self.agents: MultiAgentSpaces = (spaces := MultiAgentSpaces.of(env))
        names = tuple(map(str, spaces.names))
        actions = {name: Actions(space, scaling) for name, space in zip(names, spaces.actions, strict=True)}
        seen = zip(names, spaces.observations, strict=True)
        each = {name: Spaces(observation, actions[name].space) for name, observation in seen}
        super().__init__(env, AllAgentsStepper(env, reward_done), each, actions)
        self.observation_space: Dict[Any] = spaces.observation_space

    def _laid_out(self, status: np.ndarray) -> dict[str, Any]:
        seen = tuple(self._seen[name] for name in self.names)
        ended = {"terminated": status == TERMINATED, "truncated": status == TRUNCATED}
        return {AGENTS: seen, **{name: flags.astype(np.int8) for name, flags in ended.items()}}


class AllAgentsStepper:
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
        self._reward_done = None if reward_done is None else _CheckedRewardDone(reward_done)
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
        return step if self._reward_done is None else self._scored(step, actions)

    def _scored(self, step: AgentsStep, actions: Named) -> AgentsStep:
        assert self._reward_done is not None
        for name, how in step.ended.items():
            self._terminated[self.names.index(name)] = how == TERMINATED
        each = np.array([step.rewards.get(name, 0.0) for name in self.names], np.float32)
        score, done = self._reward_done(each, self._terminated)
        if not done:
            return step._replace(score=score)
        return step._replace(acting=(), ended=dict.fromkeys(actions, TERMINATED), score=score)


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
