"""An agent at play, in a window or as a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from etude.base import trees
from etude.base.spaces import Discrete, MultiDiscrete
from etude.engines.solo import acting
from etude.envs import AdaptedEnvironment, Described, GivenEnvironments, OwnUnits
from etude.explore import AsIs, ByAgent, Greedy
from etude.protocols import Explorer
from etude.report import write_film
from etude.solo.irl import rewards_of
from etude.solo.presentation import present_for

FPS = 30  # where an environment tells none


class Episode:
    """One episode with the best actions.

    act: observations [1, ...] to what the explorer turns into actions. Iterating yields after the reset and after every
    step; `reward` is what was earned so far.
    """

    def __init__(self, environment: AdaptedEnvironment, act: Callable[[Any], Any], explorer: Explorer):
        self.environment, self._act, self._explorer = environment, act, explorer
        self.reward = 0.0

    def steps(self, most: int, seed: int) -> Iterator[None]:
        """Play at most so many steps."""
        rng, explorer = np.random.default_rng(seed), self._explorer
        memory = np.full((1, explorer.memory), np.nan)
        observation = self.environment.reset(seed=seed)
        yield
        for step in range(most):
            noise = explorer.draw(rng, 1, self.environment.spaces.action)
            choice = explorer(self._act(trees.map(lambda leaf: leaf[None], observation)), noise, step, memory)
            observation, reward, terminated, truncated, _ = self.environment.step(choice.action[0])
            self.reward += float(np.sum(reward))
            yield
            if terminated or truncated:
                return


def play(agent: Any, seed: int, most: int, path: str | Path | None) -> float:
    """Play an episode of at most so many steps, in a window, or as a gif or mp4 at `path`; returns its reward."""
    given = GivenEnvironments.of(agent.env, agent.seed, OwnUnits, agent.reward_done_func_ma)
    described = given.describe()
    environment = given.single("human" if path is None else "rgb_array")
    try:
        agents = None if described.team is None else len(described.team.names)
        act = acting(agent, described.spaces, present_for(described.spaces.observation), agents)
        explorer = rewards_of(agent, agent._book.settings).exploring(best_actions(described))
        episode = Episode(environment, act, explorer)
        if path is None:
            for _ in episode.steps(most, seed):
                environment.render()
        else:
            _film(episode, most, seed, Path(path))
        return episode.reward
    finally:
        environment.close()


def _film(episode: Episode, most: int, seed: int, path: Path) -> None:
    environment = episode.environment
    fps = environment.env.metadata.get("render_fps") or FPS
    write_film((environment.render() for _ in episode.steps(most, seed)), path, fps)


def best_actions(described: Described) -> Explorer:
    """The best of values or probabilities where actions are discrete; what the agent returns where they are not."""
    discrete = isinstance(described.spaces.action, Discrete | MultiDiscrete)
    one: Explorer = Greedy() if discrete else AsIs()
    return one if described.team is None else ByAgent([one], described.team.actions)
