"""Plays single episodes step by step, outside of a rollout: to render them, and to score agents by eye."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from etude.base import trees
from etude.base.trees import Tree
from etude.envs import AdaptedEnvironment
from etude.protocols import Explorer
from etude.rollout.actor import Actor, SingleActor


class SingleEpisode:
    """One episode of one environment.

    explorer: turns what the actor returns into actions. seed: of the episode, and of the explorer's noise.
    """

    def __init__(self, environment: AdaptedEnvironment, actor: Actor, explorer: Explorer, seed: int):
        self._environment, self._explorer, self._seed = environment, explorer.of(np.zeros(1, np.int64)), seed
        rng = np.random.default_rng(seed)
        self._actor = SingleActor(actor, _AddBatchAxis(), environment.spaces.action, rng)
        self.reward, self.length, self.ended = 0.0, 0, False

    def steps(self, max_steps: int) -> Iterator[None]:
        """Play at most so many steps; yields after the reset and after every step, ready to be rendered."""
        observation = self._environment.reset(seed=self._seed)
        yield
        while not self.ended and self.length < max_steps:
            action = self._actor.act(observation, {}, self.length == 0, self._explorer, self.length)
            observation, reward, terminated, truncated, _ = self._environment.step(action)
            self.reward, self.length, self.ended = self.reward + reward, self.length + 1, terminated or truncated
            yield


class _AddBatchAxis:
    """Environments that agents see already need a batch axis only."""

    def observe(self, observation: Any, info: dict[str, Any], first: bool) -> Tree:
        return trees.map(lambda leaf: leaf[None], observation)

    def action(self, action: np.ndarray) -> Any:
        return action[0]
