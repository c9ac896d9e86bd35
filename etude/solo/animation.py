"""Renders an agent's episodes, in a window or to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from etude.base.spaces import Discrete, MultiDiscrete
from etude.envs import RawActions
from etude.explore import AsIs, ByAgent, Greedy
from etude.protocols import Explorer
from etude.report import write_film
from etude.rollout import SingleEpisode
from etude.solo.conversion import conversion_for
from etude.solo.engines import acting_engine
from etude.solo.environments import EnvironmentDescription, UserEnvironments
from etude.solo.irl import reward_source


def play(agent: Any, seed: int, max_steps: int, path: str | Path | None) -> float:
    """Play one episode, in a window, or to a gif or mp4 at `path`; returns its reward."""
    environments = UserEnvironments.of(agent.env, agent.seed, RawActions, agent.reward_done_func_ma)
    described = environments.describe()
    environment = environments.single("human" if path is None else "rgb_array")
    try:
        agents = None if described.agents is None else len(described.agents.names)
        engine: Any = acting_engine(agent, described.spaces, conversion_for(described.spaces.observation), agents)
        explorer = reward_source(agent, agent._session_state.settings).explorer(best_actions(described))
        episode = SingleEpisode(environment, engine, explorer, seed)
        frames = (environment.render() for _ in episode.steps(max_steps))
        if path is None:
            for _ in frames:
                pass
        else:
            write_film(frames, Path(path), environment.render_fps)
        return episode.reward
    finally:
        environment.close()


def best_actions(described: EnvironmentDescription) -> Explorer:
    """The best of values or probabilities where actions are discrete; what the agent returns where they are not."""
    discrete = isinstance(described.spaces.action, Discrete | MultiDiscrete)
    one: Explorer = Greedy() if discrete else AsIs()
    return one if described.agents is None else ByAgent([one], described.agents.actions)
