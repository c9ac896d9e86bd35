"""Evolution of hyperparameters and network architectures: mutations, the transfer of weights, tournaments."""

from etude.engines.activations import ActivationSample
from etude.tuning.evolution.evolution import (
    Descendant,
    Evolution,
    Generations,
    Individual,
    Lineage,
    Tournament,
    copied,
    evolve,
    fitted,
    mutated,
    next_generation,
)  # fmt: skip
from etude.tuning.evolution.mutations import Mutations
from etude.tuning.evolution.structure import ArchitectureLimits, Mutation
from etude.tuning.evolution.transfer import transfer

__all__ = [
    "ActivationSample", "ArchitectureLimits", "Descendant", "Evolution", "Generations", "Individual", "Lineage",
    "Mutation", "Mutations", "Tournament", "copied", "evolve", "fitted", "mutated", "next_generation", "transfer",
]  # fmt: skip
