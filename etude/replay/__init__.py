"""Replay = ring x selector x view: `Buffer(Ring(spaces, 100_000, 8), Uniform(), OneStep(0.99), rng)`."""

from etude.replay.advantages import Advantages, AdvantageSequences, UnrolledAdvantages
from etude.replay.buffer import Buffer, View
from etude.replay.episode_views import (
    EpisodeBatch,
    EpisodeReturns,
    Fitness,
    GradientQueue,
    OneStepAndReturns,
    ReturnSequences,
    Triplets,
    WholeReturns,
)
from etude.replay.hindsight import Hindsight
from etude.replay.mixture import Demonstrations, MixedReplay, RecordedTerms
from etude.replay.multi_agent import MultiAgentAdvantages, MultiAgentTransitions
from etude.replay.ring import Ring
from etude.replay.selectors import BestEpisodes, ColumnEpochs, Epochs, NewFirst, Passes, Prioritised, Selector, Uniform
from etude.replay.token_sequences import PreferencePairs, TokenGroups, TokenSequences
from etude.replay.views import NStep, OneStep, OneStepAndNextActions, Sequences, Unrolls

__all__ = [
    "AdvantageSequences", "Advantages", "Buffer", "ColumnEpochs", "Demonstrations", "EpisodeBatch",
    "EpisodeReturns", "BestEpisodes", "Epochs", "Fitness", "GradientQueue", "Hindsight", "MixedReplay",
    "MultiAgentAdvantages", "MultiAgentTransitions", "NStep", "NewFirst", "OneStep", "OneStepAndNextActions",
    "OneStepAndReturns", "Passes", "PreferencePairs", "Prioritised", "RecordedTerms", "ReturnSequences", "Ring",
    "Selector", "Sequences", "TokenGroups", "TokenSequences", "Triplets", "Uniform", "UnrolledAdvantages",
    "Unrolls", "View", "WholeReturns",
]  # fmt: skip
