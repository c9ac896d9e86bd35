"""Rollouts: what collects steps of environments with the current weights.

Begin with `fragments.InProcess`, which acts, steps and records. `pool`, `lockstep` and `async_gradients` do so in
workers; `shared` joins several processes, or several runs.
"""

from etude.rollout.actor import Actor, SingleActor, SingleEpisode
from etude.rollout.async_gradients import AsyncGradients, LocalActorLearners, RemoteActorLearners
from etude.rollout.collector import Collector
from etude.rollout.fragments import InProcess
from etude.rollout.lockstep import LockstepPool, acting_in_process, workers_pay_off
from etude.rollout.pool import Pool, PoolOptions, buffer_size
from etude.rollout.shared import BroadcastRollout, FollowingActor, JointRollout, SharedRollout, own_environments

__all__ = [
    "Actor", "AsyncGradients", "BroadcastRollout", "Collector", "FollowingActor", "InProcess", "JointRollout",
    "LocalActorLearners", "LockstepPool", "Pool", "PoolOptions", "RemoteActorLearners", "SharedRollout", "SingleActor",
    "SingleEpisode", "acting_in_process", "buffer_size", "own_environments", "workers_pay_off",
]  # fmt: skip
