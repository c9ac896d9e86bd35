"""Explorers: from what an agent's `act` returns to actions. They know no algorithm and no engine, and hold no state:
random numbers are drawn ahead by `draw`, per environment, and come in as an argument."""

from etude.explore.noise import GaussianNoise
from etude.explore.policies import Greedy, Sample
from etude.explore.values import Boltzmann, BoltzmannGumbel, EpsilonGreedy

__all__ = ["Boltzmann", "BoltzmannGumbel", "EpsilonGreedy", "GaussianNoise", "Greedy", "Sample"]
