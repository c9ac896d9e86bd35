"""Learning from rollouts of the present policy, which are forgotten afterwards."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from etude.base.data import RECURRENT_STATE
from etude.base.seeding import generator
from etude.config import OnPolicyConfig, OnPolicySequenceConfig, RolloutConfig
from etude.protocols import Replay
from etude.replay import (
    Advantages,
    AdvantageSequences,
    Buffer,
    ColumnEpochs,
    Epochs,
    MultiAgentAdvantages,
    Ring,
    Selector,
    View,
)
from etude.replay.sizes import Extras
from etude.training.kinds.context import TrainingContext
from etude.training.kinds.kind import LearningKind
from etude.training.progress import RunProgress
from etude.training.update_schedule import UpdateSchedule, UpdatesDue


class OnPolicyLearning(LearningKind):
    """Steps with estimated advantages, in shuffled epochs."""

    name = "advantages"
    config: ClassVar[type[RolloutConfig]] = OnPolicyConfig
    multi_agent = True
    log_prob = True

    def replay(self, context: TrainingContext) -> Replay:
        view, selector = self.view(context), self.selector(context.agent.config)
        return Buffer(self._ring(context), selector, view, generator(context.setup.seed, "replay"))

    def _ring(self, context: TrainingContext) -> Ring:
        """Holds one rollout."""
        engine, count = context.engine, context.count
        extras: Extras = {"log_prob": (context.team, np.dtype(np.float32))}
        if engine.state_size:
            extras = {**extras, RECURRENT_STATE: ((engine.state_size,), np.dtype(np.float32))}
        rows, folder = context.agent.config.rollout_length * count, context.setup.replay_folder
        return Ring(engine.spaces, rows, count, extras, reward_shape=context.team, folder=folder)

    def selector(self, config: Any) -> Selector:
        """Chooses rows of the ring."""
        return Epochs()

    def view(self, context: TrainingContext) -> View:
        """Reads rows of the ring as a batch."""
        estimate = MultiAgentAdvantages if context.team else Advantages
        config = context.agent.config
        return estimate(config.gamma, config.gae_lambda, context.engine.value)

    def update_schedule(self, config: Any, count: int) -> UpdateSchedule:
        return OnPolicySchedule(config, count)


class OnPolicySequenceLearning(OnPolicyLearning):
    """The same for agents with a recurrent state: the sequences that each environment's rollout is cut into."""

    name = "advantage_sequences"
    config = OnPolicySequenceConfig
    multi_agent = False

    def selector(self, config: Any) -> Selector:
        return ColumnEpochs(config.sequence_length)

    def view(self, context: TrainingContext) -> View:
        config = context.agent.config
        advantages = Advantages(config.gamma, config.gae_lambda, context.engine.value)
        return AdvantageSequences(config.sequence_length, advantages)


class OnPolicySchedule:
    """A phase after `rollout_length` time steps of every environment, which are then forgotten. Examples are steps, or
    the whole rollouts of environments, or sequences that these are cut into."""

    def __init__(self, config: OnPolicyConfig, count: int):
        self.config, self.count = config, count
        self._length = config.example_length

    def steps_until_update(self, step: int, stored: int) -> int:
        return self.config.rollout_length - stored // self.count % self.config.rollout_length

    def updates_due(self, progress: RunProgress, replay: Replay) -> UpdatesDue:
        rows = self.config.rollout_length * self.count
        examples = rows // self._length
        size = max(1, min(self.config.minibatch_size or rows, rows) // self._length)
        return UpdatesDue(self.config.epochs * (examples // size) if len(replay) == rows else 0, size)

    def after_updates(self, replay: Replay) -> None:
        replay.clear()
