"""Networks: specs (data), architectures (functions of named parameters), and the parts that agents are built of."""

from etude.networks.maker import Maker
from etude.networks.network import FreeParameters, Normaliser, Part, RecurrentNetwork, frozen, target
from etude.networks.normaliser import RunningMoments, RunningScale, RunningScales
from etude.networks.specs import (
    ActorCritic,
    ByEmbedding,
    Conv,
    Mlp,
    Recurrent,
    SimBa,
    SimBaV2,
    Spec,
    Transformer,
    actor_of,
    critic_of,
    layers_of,
    with_layers,
)

__all__ = [
    "ActorCritic", "ByEmbedding", "Conv", "FreeParameters", "Maker", "Mlp", "Normaliser", "Part", "Recurrent",
    "RecurrentNetwork", "RunningMoments", "RunningScale", "RunningScales", "SimBa", "SimBaV2", "Spec",
    "Transformer", "actor_of", "critic_of", "frozen", "layers_of", "target", "with_layers",
]  # fmt: skip
