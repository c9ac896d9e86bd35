"""Recorded data in runs: those that learn from nothing else, in which gradient steps are counted and no environment is
stepped but to evaluate, and those in which an expert is shown beside what is collected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.agent import Agent
from etude.algorithms import ALGORITHMS, takes_data
from etude.base.checks import Stored
from etude.base.data import CollectRequest, Episode, Steps
from etude.base.errors import ConfigError, DataError
from etude.base.events import Learned
from etude.base.spaces import Spaces, describe
from etude.config import OfflineConfig
from etude.envs import action_space_of
from etude.offline import Dataset, read, to_steps
from etude.protocols import Weights
from etude.replay import Demonstrations
from etude.training.build import Setup, recorded_replay_for
from etude.training.learner import Learner
from etude.training.progress import Progress
from etude.training.update_schedule import UpdatesDue


@dataclass(frozen=True)
class Held:
    """Data of which a checkpoint holds the rows. about: what `describe_data` said of it."""

    about: dict[str, Any]


def only_data(agent: Agent) -> bool:
    """Whether an agent learns from recorded data and from nothing else."""
    return isinstance(agent.config, OfflineConfig)


def data_for(data: Any, agent: Agent, setup: Setup, env: Any, spaces: Spaces) -> Dataset | Held | None:
    """The data of a run whose agent learns from some; None for one that learns from its environment. ConfigError where
    data and agent do not go together."""
    name = type(agent).__name__
    if not takes_data(type(agent), type(agent.config)):
        if data is not None:
            known = [name for name, (kind, config) in ALGORITHMS.items() if takes_data(kind, config)]
            raise ConfigError(f"{name} learns from an environment and takes no data; {', '.join(known)} do.")
        return None
    if data is None:
        raise ConfigError(
            f"{name} learns from recorded data: give data= (--data), such as the path of a file of episodes."
        )
    if only_data(agent) and (setup.workers or setup.overlap or setup.environments not in (None, 1)):
        raise ConfigError(
            f"{name} learns from recorded data and steps no environment: leave out workers, overlap and environments."
        )
    return load_data(data, env, spaces)


def load_data(data: Any, env: Any, spaces: Spaces) -> Dataset | Held:
    """The episodes that `data` stands for: a path, a `Dataset`, or canonical episodes; `Held` as it is.

    spaces: what agents see of `env`. Raises DataError where the episodes are not of these.
    """
    if isinstance(data, Held):
        return data
    source = Spaces(spaces.observation, action_space_of(env))
    if isinstance(data, str | Path):
        found = read(data, source)
    elif isinstance(data, Dataset):
        found = data
    elif isinstance(data, Sequence) and all(isinstance(episode, Episode) for episode in data):
        found = Dataset(tuple(data), source)
    else:
        raise ConfigError(
            f"data is a {type(data).__name__}; expected the path of a file (.h5, .hdf5, .parquet), an "
            "etude.offline.Dataset, or a list of episodes."
        )
    if not found.episodes:
        raise DataError("There are no episodes to learn from; expected at least one.")
    for what, mine, theirs in (
        ("observations", found.spaces.observation, spaces.observation),
        ("actions", found.spaces.action, spaces.action),
    ):
        if describe(mine) != describe(theirs):
            raise DataError(
                f"The data holds {what} of {describe(mine)}, and the environment has {describe(theirs)}. Give the "
                "environment that the data was recorded in."
            )
    return found


def describe_data(data: Dataset | Held) -> dict[str, Any]:
    """The data of a run in plain numbers."""
    if isinstance(data, Held):
        return data.about
    return {
        "transitions": len(data),
        "episodes": len(data.episodes),
        "dropped": data.dropped,
        "mean_return": float(data.returns.mean()),
        "environment": data.environment,
    }


def fill(learner: Learner, data: Dataset | Held) -> None:
    """Give a learner all of the data: its replay, and the moments that it normalises with. What a checkpoint holds
    comes with its state."""
    if isinstance(data, Dataset):
        steps = to_steps(data.episodes)
        learner.store(steps)
        learner.follow_moments(steps)


def show(learner: Learner, data: Dataset | Held, seed: int) -> None:
    """Put the data, an expert's, beside what a learner collects: in its batches, and in the moments that it normalises
    with. What a checkpoint holds comes with its state."""
    engine, replay, rows = learner.engine, learner.replay, describe_data(data)["transitions"]
    expert = recorded_replay_for(learner.agent, engine, seed, rows, folder=None, stream="expert")
    replay.view = Demonstrations(replay.view, expert, engine.reward)
    if isinstance(data, Dataset):
        steps = to_steps(data.episodes)
        expert.add(steps)
        learner.follow_moments(steps)


class OfflineLearner:
    """The learning half of a loop (`loop.Learning`) in which each chunk is one of gradient steps."""

    count = 1

    def __init__(self, learner: Learner):
        self._learner = learner
        self._asked = 0

    @property
    def progress(self) -> Progress:
        """`step` counts gradient steps."""
        return self._learner.progress

    def chunk(self, left: int, after: int = 0) -> CollectRequest:
        """The gradient steps of the next phase, `left` at most."""
        chunk = self._learner.chunk(left, after)
        self._asked = chunk.steps or 0
        return chunk

    def take(self, steps: Steps) -> None:
        raise ConfigError("A run on recorded data takes no further steps.")

    def learn_if_due(self) -> Learned:
        """The phase that was asked for last."""
        self.progress.step += self._asked
        return self._learner.learn(UpdatesDue(self._asked, self._learner.agent.config.batch_size))

    def follow_moments(self, steps: Steps) -> bool:
        """The moments are those of the data, and stay."""
        return False

    def exploring_weights(self) -> Weights:
        """Nothing explores."""
        return {}

    def trained_weights(self) -> Weights:
        """What losses train, by name."""
        return self._learner.trained_weights()


class NothingCollected:
    """The collecting half of a loop (`loop.Collecting`) that has no environment."""

    def open(self, total: int, weights: Weights) -> None: ...

    def collect(self, chunk: CollectRequest, step: int, upcoming: int) -> tuple[Steps, ...]:
        return ()

    def load(self, weights: Weights) -> None: ...

    def notes(self) -> list[str]:
        return []

    def state(self) -> None: ...

    def check_state(self, saved: Stored, gradients: Weights) -> None:
        """Nothing is collected, so that nothing is saved."""
        saved.like(None)

    def restore(self, state: None) -> None: ...

    def close(self) -> None: ...
