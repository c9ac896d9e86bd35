"""Plays an agent's episodes with its best actions: in a window, to a file, or for their returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from etude.base.spaces import Discrete, MultiDiscrete
from etude.envs import AdaptedEnvironment, RawActions
from etude.explore import AsIs, ByAgent, Greedy
from etude.protocols import Explorer
from etude.report import write_film
from etude.rollout import SingleEpisode
from etude.solo.conversion import conversion_for
from etude.solo.engines import acting_engine
from etude.solo.environments import EnvironmentDescription, UserEnvironments
from etude.solo.irl import reward_source
from etude.training.evaluate import Evaluation


def play(agent: Any, seed: int, max_steps: int, path: str | Path | None) -> float:
    """Play one episode, in a window, or to a gif or mp4 at `path`; returns its reward."""
    with _playing(agent, "human" if path is None else "rgb_array") as (environment, begin):
        episode = begin(seed)
        frames = (environment.render() for _ in episode.steps(max_steps))
        if path is None:
            for _ in frames:
                pass
        else:
            write_film(frames, Path(path), environment.render_fps)
        return episode.reward


def evaluate(agent: Any, episodes: int = 20, seed: int = 0, max_steps: int = 10_000) -> Evaluation:
    """Play whole episodes with the best actions, on an environment of their own. seed: of the first episode; each
    further one adds 1. max_steps: at which an episode is cut off."""
    ends = []
    with _playing(agent) as (_, begin):
        for number in range(episodes):
            episode = begin(seed + number)
            for _ in episode.steps(max_steps):
                pass
            ends.append(episode)
    cut_off = sum(not episode.ended for episode in ends)
    return Evaluation(tuple(end.reward for end in ends), tuple(end.length for end in ends), cut_off)


@contextmanager
def _playing(
    agent: Any, render_mode: str | None = None
) -> Iterator[tuple[AdaptedEnvironment, Callable[[int], SingleEpisode]]]:
    """An environment, and what begins an episode of the agent in it from a seed."""
    environments = UserEnvironments.of(agent.env, agent.seed, RawActions, agent.reward_done_func_ma)
    described = environments.describe()
    environment = environments.single(render_mode)
    try:
        agents = None if described.agents is None else len(described.agents.names)
        engine: Any = acting_engine(agent, described.spaces, conversion_for(described.spaces.observation), agents)
        explorer = reward_source(agent, agent._session_state.settings).explorer(best_actions(described))
        yield environment, lambda seed: SingleEpisode(environment, engine, explorer, seed)
    finally:
        environment.close()


def best_actions(described: EnvironmentDescription) -> Explorer:
    """The best of values or probabilities where actions are discrete; what the agent returns where they are not."""
    discrete = isinstance(described.spaces.action, Discrete | MultiDiscrete)
    one: Explorer = Greedy() if discrete else AsIs()
    return one if described.agents is None else ByAgent([one], described.agents.actions)
