"""Networks: specs (data), architectures (functions of named parameters), and the parts that agents are built of."""

from etude.networks.network import Maker, Part, lagged
from etude.networks.normaliser import RunningMoments, RunningScale
from etude.networks.specs import Conv, Mlp, Spec

__all__ = ["Conv", "Maker", "Mlp", "Part", "RunningMoments", "RunningScale", "Spec", "lagged"]
