"""Learning from whole episodes of the present policy: one of every environment, which are forgotten afterwards."""

from __future__ import annotations

from typing import Any

from etude.agent import ActsBy, Agent
from etude.base.errors import ConfigError
from etude.base.spaces import Box, Space
from etude.config import EpisodesConfig
from etude.explore.log_prob import with_log_prob
from etude.protocols import Explorer, Replay
from etude.replay import EpisodeBatch, EpisodeReturns
from etude.replay.episode_batch import power_of_two
from etude.training.kinds.context import TrainingContext
from etude.training.kinds.kind import LearningKind
from etude.training.progress import RunProgress
from etude.training.update_schedule import UpdateSchedule, UpdatesDue

SMALLEST_BATCH = 256  # rows that a batch of whole episodes is filled up to, at least


class EpisodeLearning(LearningKind):
    """All steps of the episodes, with their returns, in one batch."""

    name = "episodes"
    config = EpisodesConfig

    def replay(self, context: TrainingContext) -> Replay:
        if (folder := context.setup.replay_folder) is not None:
            raise ConfigError(
                f"replay_folder = {folder!r}: {type(context.agent).__name__} keeps a batch of episodes in memory, no "
                "replay. Leave it out."
            )
        return self.episode_replay(context)

    def explorer(self, agent: Agent, acts_by: ActsBy, action: Space, total: int, count: int) -> Explorer:
        found = super().explorer(agent, acts_by, action, total, count)
        return with_log_prob(found) if isinstance(action, Box) else found  # the losses read samples

    def episode_replay(self, context: TrainingContext) -> Replay:
        """Holds one episode of every environment."""
        return EpisodeBatch(EpisodeReturns(context.agent.config.gamma, context.engine.value))

    def update_schedule(self, config: Any, count: int) -> UpdateSchedule:
        return EpisodesSchedule()

    def check_overlap(self, context: TrainingContext) -> None:
        super().check_overlap(context)
        raise ConfigError(
            f"overlap=True collects with weights that are one phase old; {type(context.agent).__name__} learns from "
            "whole episodes of its present policy. Leave overlap off."
        )


class EpisodesSchedule:
    """A phase of one gradient step after one whole episode of every environment."""

    def __init__(self) -> None:
        self._step = 0  # at which a phase was asked for last

    def steps_until_update(self, step: int, stored: int) -> None:
        return None

    def updates_due(self, progress: RunProgress, replay: Replay) -> UpdatesDue:
        rows, steps, self._step = len(replay), progress.step - self._step, progress.step
        return UpdatesDue(1 if rows else 0, power_of_two(rows, SMALLEST_BATCH), steps)

    def after_updates(self, replay: Replay) -> None:
        replay.clear()
