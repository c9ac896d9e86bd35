"""Replay = ring x selector x view: `Buffer(Ring(spaces, 100_000, 8), Uniform(), OneStep(0.99), rng)`."""

from etude.replay.advantage_sequences import AdvantageSequences, UnrolledAdvantages
from etude.replay.buffer import Buffer, Selector, View
from etude.replay.episode_views import EpisodeBatch, EpisodeReturns, Fitness, OneStepAndReturns, Triplets, WholeReturns
from etude.replay.gradient_queue import GradientQueue
from etude.replay.hindsight import Hindsight
from etude.replay.mixture import Demonstrations, MixedReplay, RecordedTerms
from etude.replay.multi_agent import MultiAgentAdvantages, MultiAgentTransitions
from etude.replay.prioritised import Prioritised
from etude.replay.ring import Ring, bytes_needed
from etude.replay.selectors import BestEpisodes, ColumnEpochs, Epochs, Passes, Uniform
from etude.replay.sequences import Sequences
from etude.replay.token_sequences import PreferencePairs, TokenGroups, TokenSequences
from etude.replay.unrolls import Unrolls
from etude.replay.views import Advantages, NStep, OneStep, OneStepAndNextActions

__all__ = [
    "AdvantageSequences", "Advantages", "Buffer", "ColumnEpochs", "Demonstrations", "EpisodeBatch",
    "EpisodeReturns", "BestEpisodes", "Epochs", "Fitness", "GradientQueue", "Hindsight", "MixedReplay",
    "MultiAgentAdvantages", "MultiAgentTransitions", "NStep", "OneStep", "OneStepAndNextActions",
    "OneStepAndReturns", "Passes", "PreferencePairs", "Prioritised", "RecordedTerms", "Ring", "Selector",
    "Sequences", "TokenGroups", "TokenSequences", "Triplets", "Uniform", "UnrolledAdvantages", "Unrolls", "View",
    "WholeReturns",
    "bytes_needed",
]  # fmt: skip
