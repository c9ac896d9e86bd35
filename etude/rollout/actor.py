"""Actors choose actions: in a rollout, with the recurrent state of agents that have one; and for one environment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from etude.base import trees
from etude.base.data import INITIAL_VERSION, PolicyVersion
from etude.base.spaces import Space
from etude.base.trees import Tree
from etude.envs import AdaptedEnvironment, Translation
from etude.protocols import Explorer, Weights


class Actor(Protocol):
    """What a rollout needs of an engine."""

    state_size: int  # of the recurrent state of one environment; 0 for most agents
    acted: Any  # `Agent.acted` of recurrent ones
    rewarded: Any  # `Agent.rewarded` of recurrent ones

    def act(self, observation: Tree, state: np.ndarray | None = None) -> Any:
        """What the explorer turns into actions, for observations [N, ...].

        Recurrent agents also take their state [N, M] float32, zeros at the first step of an episode, and return it for
        the next step. Others are called with observations alone.
        """

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Act with these weights, of this version, from now on."""


def acted(actor: Actor, observation: Tree, state: np.ndarray) -> tuple[Any, np.ndarray]:
    """(what `act` returns, the state after it); the same state for agents without one."""
    return actor.act(observation, state) if actor.state_size else (actor.act(observation), state)


class SingleActor:
    """Chooses one action at a time for one environment outside of a rollout, in the environment's own units: for
    deployment and for loops of one's own. The states of the agent and of its explorer are kept from call to call.

    action: the canonical action space. rng: what exploration draws from.
    """

    def __init__(self, actor: Actor, translation: Translation, action: Space, rng: np.random.Generator):
        self._actor, self._translation, self._action, self._rng = actor, translation, action, rng
        self._state = np.zeros((1, actor.state_size), np.float32)
        self._explorer_state = np.empty((1, 0))

    def act(
        self, observation: Any, info: dict[str, Any] | None, first: bool, explorer: Explorer, step: int, reward: float
    ) -> Any:
        """An action of the environment for one of its observations. first: of an episode. step: see `Explorer`. reward:
        that came with the observation.

        Raises SpaceError for an observation that does not fit, and leaves everything as it was.
        """
        seen = self._translation.observe(observation, info, first)
        if first:
            self._state[:], self._explorer_state[:] = 0.0, np.nan
        if explorer.state_size > self._explorer_state.shape[1]:
            self._explorer_state = np.full((1, explorer.state_size), np.nan)
        noise = explorer.draw(self._rng, 1, self._action)
        if self._actor.state_size:
            self._state = self._actor.rewarded(self._state, np.full(1, 0.0 if first else reward, np.float32))
        output, self._state = acted(self._actor, seen, self._state)
        choice = explorer(output, noise, step, self._explorer_state[:, : explorer.state_size])
        if self._actor.state_size:
            self._state = self._actor.acted(self._state, choice.action)
        return self._translation.action(choice.action)

    def load(self, weights: Weights) -> None:
        """Act with these from now on."""
        self._actor.load(weights)


class SingleEpisode:
    """One episode of one environment, step by step outside of a rollout: to render it, or to score an agent.

    explorer: turns what the actor returns into actions. seed: of the episode, and of the explorer's noise.
    """

    def __init__(self, environment: AdaptedEnvironment, actor: Actor, explorer: Explorer, seed: int):
        self._environment, self._explorer, self._seed = environment, explorer.of(np.zeros(1, np.int64)), seed
        rng = np.random.default_rng(seed)
        self._actor = SingleActor(actor, _AddBatchAxis(), environment.spaces.action, rng)
        self.reward: float = 0.0
        self.length: int = 0
        self.ended: bool = False

    def steps(self, max_steps: int) -> Iterator[None]:
        """Play at most so many steps; yields after the reset and after every step, ready to be rendered."""
        observation, reward = self._environment.reset(seed=self._seed), 0.0
        yield
        while not self.ended and self.length < max_steps:
            action = self._actor.act(observation, {}, self.length == 0, self._explorer, self.length, reward)
            observation, reward, terminated, truncated, _ = self._environment.step(action)
            self.reward, self.length, self.ended = self.reward + reward, self.length + 1, terminated or truncated
            yield


class _AddBatchAxis:
    """Environments that agents see already need a batch axis only."""

    def observe(self, observation: Any, info: dict[str, Any] | None, first: bool) -> Tree:
        return trees.map(lambda leaf: leaf[None], observation)

    def action(self, action: np.ndarray) -> Any:
        return action[0]
