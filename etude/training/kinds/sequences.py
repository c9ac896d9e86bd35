"""Off-policy learning of agents with a recurrent state, from replayed sequences."""

from __future__ import annotations

import numpy as np

from etude.agent import Agent
from etude.base.data import RECURRENT_STATE
from etude.base.errors import ConfigError
from etude.config import SequenceConfig
from etude.replay import Sequences, View
from etude.replay.sizes import Extras
from etude.training.kinds.context import TrainingContext
from etude.training.kinds.kind import LearningKind
from etude.training.kinds.off_policy import OffPolicyLearning


class OffPolicySequenceLearning(OffPolicyLearning):
    """Sequences of transitions, with the recurrent state that they were acted with where the config stores it."""

    name = "sequences"
    config = SequenceConfig
    multi_agent = False

    def check_shared_replay(self, agent: Agent) -> None:
        LearningKind.check_shared_replay(self, agent)

    def extras(self, context: TrainingContext) -> Extras:
        stored = context.agent.config.stored_state
        if stored and context.data is not None:
            raise ConfigError(
                f"{type(context.agent).__name__}: stored_state = True, but recorded episodes hold no recurrent states. "
                "Give stored_state=False: sequences then start from zeros, and burn_in warms the state up."
            )
        return {RECURRENT_STATE: ((context.engine.state_size,), np.dtype(np.float32))} if stored else {}

    def view(self, context: TrainingContext) -> View:
        config = context.agent.config
        return Sequences(config.gamma, config.sequence_length, config.burn_in)
