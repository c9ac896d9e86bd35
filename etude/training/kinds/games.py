"""Learning from whole games of tokens that the present policy plays, in rounds."""

from __future__ import annotations

from typing import Any, ClassVar

from etude.agent import Agent
from etude.base.errors import ConfigError
from etude.base.seeding import GroupSeeds, RunSeed, generator
from etude.config import GamesConfig
from etude.networks.tokens import tokens_of
from etude.protocols import Replay
from etude.replay import Buffer, ColumnEpochs, Ring, TokenGroups
from etude.training.kinds.episodes import EpisodeLearning, EpisodesSchedule
from etude.training.kinds.kind import TrainingContext
from etude.training.kinds.offline import TokenSequenceLearning
from etude.training.kinds.on_policy import sampled
from etude.training.schedule import UpdateSchedule
from etude.training.setup import Setup


class GameLearning(EpisodeLearning):
    """A round: one game of every environment, where those of a group begin alike. It is learned from in shuffled passes
    over minibatches of games, with the extras of `replay.TokenGroups`."""

    name = "token_games"
    config: ClassVar[type[Any]] = GamesConfig
    environments: ClassVar[int] = 32
    log_prob = True
    one_by_one = True  # games of a native simulator do not begin together

    def episode_replay(self, context: TrainingContext) -> Replay:
        spaces, config = context.engine.spaces, context.agent.config
        _, window = tokens_of(spaces.observation)
        ring = Ring(spaces, (window.context + 1) * context.count, context.count, sampled(spaces))
        view = TokenGroups(config.gamma, config.group_size, config.normalize_advantage)
        return Buffer(ring, ColumnEpochs(), view, generator(context.setup.seed, "replay"))

    def update_schedule(self, config: Any, count: int) -> UpdateSchedule:
        size = min(config.minibatch_size or count, count)
        return EpisodesSchedule(config.epochs * (count // size), size)

    def batch_examples(self, config: Any, count: int) -> int | None:
        return min(config.minibatch_size or count, count)

    def example_bytes(self, context: TrainingContext) -> int:
        return TokenSequenceLearning().example_bytes(context)

    def check_setup(self, agent: Agent, setup: Setup) -> None:
        size = agent.config.group_size
        if (setup.environments or self.environments) % size:
            raise ConfigError(
                f"environments = {setup.environments or self.environments}, group_size = {size}; expected whole groups "
                f"of environments whose games begin alike, such as environments = {4 * size}."
            )

    def _run_seed(self, context: TrainingContext) -> RunSeed:
        return GroupSeeds(context.setup.seed, context.agent.config.group_size)
