"""Learning from recorded episodes alone. All steps are gradient steps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

from etude.agent import Agent
from etude.base.errors import ConfigError
from etude.base.seeding import generator
from etude.config import Config, OfflineConfig, PairsConfig
from etude.protocols import Replay
from etude.replay import BestEpisodes, Buffer, OneStep, PreferencePairs, Ring, Selector, TokenSequences, View
from etude.replay.ring import Extras
from etude.training.description import Execution
from etude.training.kinds.kind import BufferRequest, LearningKind, TrainingContext, replay_for
from etude.training.schedule import RunProgress, UpdateSchedule, UpdatesDue
from etude.training.sources import SAMPLER, Sources


class OfflineLearning(LearningKind):
    """Recorded transitions. Environments are stepped for evaluation only.

    view: made with the discount factor; it reads rows of the ring as a batch.
    """

    config: ClassVar[type[Config]] = OfflineConfig
    uses_data = True
    replays_data = True
    steps_environments = False
    collects_steps = False

    def __init__(self, name: str = "transitions", view: Callable[[float], View] = OneStep):
        self.name: str = name
        self._view = view

    def replay(self, context: TrainingContext) -> Replay:
        return replay_for(context, 0, functools.partial(self.buffer, context))

    def buffer(self, context: TrainingContext, request: BufferRequest) -> Buffer:
        """One buffer of the replay."""
        setup = context.setup
        folder = request.folder(setup.replay_folder)
        ring = Ring(context.engine.spaces, request.capacity, extras=self.extras(context), folder=folder)
        view, rng = self.view(context), generator(setup.seed, request.stream("replay"))
        return Buffer(ring, self.selector(context.agent.config), view, rng, request.recorded)

    def selector(self, config: Any) -> Selector:
        """Chooses rows of the ring."""
        return BestEpisodes(config.best)

    def extras(self, context: TrainingContext) -> Extras:
        """What the ring stores besides transitions: shapes and dtypes by name."""
        return {}

    def view(self, context: TrainingContext) -> View:
        """Reads rows of the ring as a batch."""
        return self._view(context.agent.config.gamma)

    def update_schedule(self, config: Any, count: int) -> UpdateSchedule:
        return OfflineSchedule(config.gradient_steps, config.batch_size)

    def check(self, agent: Agent, setup: Execution) -> None:
        if setup.workers or setup.overlap or setup.environments not in (None, 1):
            raise ConfigError(
                f"{type(agent).__name__} learns from recorded data and steps no environment: leave out workers, "
                "overlap and environments."
            )

    def for_data(self, agent: Agent, data: Sources) -> LearningKind:
        if data.online:
            raise ConfigError(
                f'{type(agent).__name__} learns from recorded data alone and cannot go online: leave "{SAMPLER}" out '
                "of data. awac, cal_ql, cql, iql and td3_bc learn from both."
            )
        return self


class TokenSequenceLearning(OfflineLearning):
    """Whole games of tokens; pairs: the better one of two that began alike, and the other one."""

    whole_games = True

    def __init__(self, pairs: bool = False) -> None:
        super().__init__("token_pairs" if pairs else "token_sequences", TokenSequences)
        self.config = PairsConfig if pairs else OfflineConfig  # type: ignore[misc]
        self._pairs = pairs

    def selector(self, config: Any) -> Selector:
        return PreferencePairs(config.best) if self._pairs else BestEpisodes(config.best, first=True)


class OfflineSchedule:
    """A phase of so many gradient steps on batches of `examples` whenever one is asked for: nothing has to be
    collected, and gradient steps are the steps of the run."""

    def __init__(self, gradient_steps: int, examples: int):
        self._gradient_steps, self.examples = gradient_steps, examples
        self._step = 0  # at which a phase was asked for last

    def steps_until_update(self, step: int, stored: int) -> int:
        return self._gradient_steps

    def updates_due(self, progress: RunProgress, replay: Replay) -> UpdatesDue:
        steps, self._step = progress.step - self._step, progress.step
        return UpdatesDue(steps, self.examples, steps)

    def after_updates(self, replay: Replay) -> None:
        """The data stays in the replay."""
