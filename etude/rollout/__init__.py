"""Rollouts: what collects steps of environments with the current weights."""

from etude.rollout.collector import Actor, Collector
from etude.rollout.crew import PoolOptions
from etude.rollout.in_process import InProcess
from etude.rollout.lockstep import LockstepPool
from etude.rollout.pool import Pool
from etude.rollout.worth import acting_here, stepping_pays

__all__ = [
    "Actor", "Collector", "InProcess", "LockstepPool", "Pool", "PoolOptions", "acting_here", "stepping_pays",
]  # fmt: skip
