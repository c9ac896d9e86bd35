"""Networks: specs (data), architectures (functions of named parameters), and the parts that agents are built of."""

from etude.networks.network import Maker, Part, RecurrentNetwork, lagged
from etude.networks.normaliser import RunningMoments, RunningScale
from etude.networks.specs import Conv, Mlp, Recurrent, Spec, layers_of, with_layers

__all__ = [
    "Conv",
    "Maker",
    "Mlp",
    "Part",
    "Recurrent",
    "RecurrentNetwork",
    "RunningMoments",
    "RunningScale",
    "Spec",
    "lagged",
    "layers_of",
    "with_layers",
]
