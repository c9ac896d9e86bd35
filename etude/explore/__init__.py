"""Explorers: from what an agent's `act` returns to actions. They know no algorithm and no engine. What they keep of an
episode and the random numbers, drawn ahead by `draw` for each environment, come in as arguments.

Two families over the same arithmetic: frozen ones with schedules over the run, and those under the names of Keras-RL
and its descendants, whose parameters are plain attributes and which can also be called for one state at a time."""

from etude.explore.combined import ByAgent, ByPolicy, Each, Heuristic, PerActorEpsilonGreedy, PerActorGaussianNoise
from etude.explore.explorer import AdjustedExplorer, ByEnvironment, PerMember, WithLogProb
from etude.explore.noise import GaussianNoise, GaussianWhiteNoiseProcess, OrnsteinUhlenbeckProcess
from etude.explore.policies import AsIs, CorrelatedSample, Greedy, Sample, StateDependentSample
from etude.explore.probabilities import GumbelSoftmaxPolicy, SoftmaxPolicy
from etude.explore.values import (
    AdaptiveEpsGreedyPolicy,
    Boltzmann,
    BoltzmannGumbel,
    BoltzmannGumbelQPolicy,
    BoltzmannQPolicy,
    EpsGreedyQPolicy,
    EpsilonGreedy,
    EpsilonZGreedy,
    GreedyQPolicy,
    MaxBoltzmannQPolicy,
    Softened,
)

__all__ = [
    "AdaptiveEpsGreedyPolicy", "AdjustedExplorer", "AsIs", "Boltzmann", "BoltzmannGumbel", "BoltzmannGumbelQPolicy",
    "BoltzmannQPolicy", "ByAgent", "ByEnvironment", "ByPolicy", "CorrelatedSample", "Each", "EpsGreedyQPolicy",
    "EpsilonGreedy", "EpsilonZGreedy", "GaussianNoise", "GaussianWhiteNoiseProcess", "Greedy", "GreedyQPolicy",
    "GumbelSoftmaxPolicy", "Heuristic", "MaxBoltzmannQPolicy", "OrnsteinUhlenbeckProcess", "Sample",
    "SoftmaxPolicy", "PerActorEpsilonGreedy", "PerActorGaussianNoise", "PerMember", "Softened",
    "StateDependentSample", "WithLogProb",
]  # fmt: skip
