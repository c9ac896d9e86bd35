"""Rollouts: what collects steps of environments with the current weights."""

from etude.rollout.collector import Actor, Collector
from etude.rollout.crew import PoolOptions, split_columns
from etude.rollout.hands import Elsewhere, Here
from etude.rollout.in_process import InProcess
from etude.rollout.lockstep import LockstepPool
from etude.rollout.pool import Pool
from etude.rollout.single import SingleActor
from etude.rollout.turns import Turns
from etude.rollout.worth import acting_here, stepping_pays

__all__ = [
    "Actor", "Collector", "Elsewhere", "Here", "InProcess", "LockstepPool", "Pool", "PoolOptions",
    "SingleActor", "Turns", "acting_here", "split_columns", "stepping_pays",
]  # fmt: skip
