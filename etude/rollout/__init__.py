"""Rollouts: what collects steps of environments with the current weights."""

from etude.rollout.actor import Actor, SingleActor, SingleEpisode
from etude.rollout.async_gradients import AsyncGradients, LocalActorLearners, RemoteActorLearners
from etude.rollout.collector import Collector
from etude.rollout.in_process import InProcess
from etude.rollout.pool.lockstep import LockstepPool, acting_in_process, workers_pay_off
from etude.rollout.pool.pool import Pool
from etude.rollout.pool.process import ProcessBackend, WorkerBackend
from etude.rollout.pool.ray_workers import RayBackend
from etude.rollout.pool.supervisor import PoolOptions, buffer_size, split_environments
from etude.rollout.shared import BroadcastRollout, FollowingActor, SharedRollout, own_environments

__all__ = [
    "Actor", "AsyncGradients", "BroadcastRollout", "Collector", "FollowingActor", "InProcess", "LocalActorLearners",
    "LockstepPool", "Pool", "PoolOptions", "ProcessBackend", "RayBackend", "RemoteActorLearners", "SharedRollout",
    "SingleActor", "SingleEpisode", "WorkerBackend", "acting_in_process", "buffer_size", "own_environments",
    "split_environments", "workers_pay_off",
]  # fmt: skip
