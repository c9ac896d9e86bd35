"""Learning from recorded episodes alone. All steps are gradient steps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

from etude.agent import Agent
from etude.base.checks import Stored
from etude.base.data import INITIAL_VERSION, CollectedSteps, CollectRequest, PolicyVersion
from etude.base.errors import ConfigError
from etude.base.events import Learned
from etude.base.seeding import generator
from etude.config import Config, OfflineConfig, PairsConfig
from etude.networks.tokens import tokens_of
from etude.protocols import Explorer, Replay, Weights
from etude.replay import BestEpisodes, Buffer, OneStep, PreferencePairs, Ring, Selector, TokenSequences, View
from etude.replay.ring import Extras
from etude.training.kinds.kind import BufferRequest, LearningKind, LoopParts, TrainingContext, replay_for
from etude.training.learner import Learner
from etude.training.schedule import RunProgress, UpdateSchedule, UpdatesDue
from etude.training.setup import Setup
from etude.training.sources import SAMPLER, Sources


class OfflineLearning(LearningKind):
    """Recorded transitions. Environments are stepped for evaluation only.

    view: made with the discount factor; it reads rows of the ring as a batch.
    """

    config: ClassVar[type[Config]] = OfflineConfig
    uses_data = True
    replays_data = True
    steps_environments = False

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

    def batch_examples(self, config: Any, count: int) -> int | None:
        return config.batch_size

    def for_data(self, agent: Agent, data: Sources) -> LearningKind:
        if data.online:
            raise ConfigError(
                f'{type(agent).__name__} learns from recorded data alone and cannot go online: leave "{SAMPLER}" out '
                "of data. awac, cal_ql, cql, iql and td3_bc learn from both."
            )
        return self

    def loop_parts(
        self, learner: Learner, context: TrainingContext, make_explorer: Callable[[int], Explorer]
    ) -> LoopParts:
        return LoopParts(OfflineLearner(learner), NoCollection())

    def check_exploration(self, agent: Agent) -> None:
        """Nothing is explored."""

    def environment_count(self, agent: Agent, setup: Setup, preset: int | None) -> int:
        return 1

    def check_setup(self, agent: Agent, setup: Setup) -> None:
        if setup.workers or setup.overlap or setup.environments not in (None, 1):
            raise ConfigError(
                f"{type(agent).__name__} learns from recorded data and steps no environment: leave out workers, "
                "overlap and environments."
            )


class TokenSequenceLearning(OfflineLearning):
    """Whole games of tokens; pairs: the better one of two that began alike, and the other one."""

    def __init__(self, pairs: bool = False) -> None:
        super().__init__("token_pairs" if pairs else "token_sequences", TokenSequences)
        self.config = PairsConfig if pairs else OfflineConfig  # type: ignore[misc]
        self._pairs = pairs

    def selector(self, config: Any) -> Selector:
        return PreferencePairs(config.best) if self._pairs else BestEpisodes(config.best, first=True)

    def example_bytes(self, context: TrainingContext) -> int:
        spaces = context.engine.spaces
        _, window = tokens_of(spaces.observation)
        return window.context * (24 + (len(window.vocabulary) if spaces.masked else 0))


class OfflineSchedule:
    """A phase of so many gradient steps on batches of `size` whenever one is asked for: nothing has to be collected."""

    def __init__(self, gradient_steps: int, size: int):
        self._due = UpdatesDue(gradient_steps, size)

    def steps_until_update(self, step: int, stored: int) -> int:
        return self._due.gradient_steps

    def updates_due(self, progress: RunProgress, replay: Replay) -> UpdatesDue:
        return self._due

    def after_updates(self, replay: Replay) -> None:
        """The data stays in the replay."""


class OfflineLearner:
    """The learning half of a loop (`loop.Learning`) that counts gradient steps as its steps."""

    count = 1
    explores_anew = False

    def __init__(self, learner: Learner):
        self._learner = learner
        self._requested = 0

    @property
    def progress(self) -> RunProgress:
        """`step` counts gradient steps."""
        return self._learner.progress

    def collect_request(self, left: int, after: int = 0) -> CollectRequest:
        """The gradient steps of the next phase, `left` at most."""
        request = self._learner.collect_request(left, after)
        self._requested = request.steps or 0
        return request

    def take(self, *parts: CollectedSteps) -> None:
        raise ConfigError("A run on recorded data takes no further steps.")

    def learn_if_due(self) -> Learned:
        """The phase that was requested last."""
        self.progress.step += self._requested
        size = self._learner.update_schedule.updates_due(self.progress, self._learner.replay).size
        return self._learner.learn(UpdatesDue(self._requested, size, self._requested))

    def follow_moments(self) -> bool:
        """The normaliser stays at the moments of the data."""
        return False

    def exploring_policy(self) -> tuple[Weights, PolicyVersion]:
        """Nothing explores."""
        return {}, INITIAL_VERSION

    def trained_weights(self) -> Weights:
        """What losses train, by name."""
        return self._learner.trained_weights()


class NoCollection:
    """The collecting half of a loop (`loop.Collecting`) without environments."""

    def open(self, total: int, weights: Weights, version: PolicyVersion) -> None: ...

    def collect(self, request: CollectRequest, step: int, upcoming: int) -> tuple[CollectedSteps, ...]:
        return ()

    def put_back(self, parts: tuple[CollectedSteps, ...]) -> None: ...

    def load(self, weights: Weights, version: PolicyVersion) -> None: ...

    @property
    def task(self) -> Any:
        return None

    def set_task(self, task: Any) -> None:
        """There is no environment to give it to."""

    def notes(self) -> list[str]:
        return []

    def state(self) -> dict[str, Any] | None:
        return None

    def check_state(self, saved: Stored, gradients: Weights) -> None:
        """Nothing is collected, so that nothing is saved."""
        saved.like(None)

    def restore(self, state: dict[str, Any] | None) -> None: ...

    def close(self) -> None: ...

    def give_up(self) -> None: ...
