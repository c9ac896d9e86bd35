"""When workers that only step pay off: some environments step faster than a process wakes up. Results do not depend on
who steps them, so the choice may depend on timings."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np

from etude.base.cores import usable_cores
from etude.base.spaces import ACTION_MASK, Spaces, zeros
from etude.base.trees import Tree
from etude.protocols import Environments, Explorer
from etude.rollout.actor import Actor
from etude.rollout.in_process import InProcess
from etude.rollout.pool.lockstep import LockstepPool
from etude.rollout.pool.supervisor import PoolOptions

# Seconds of a time step for notifications, for all workers together, and in addition for each: benchmarks/stepping.py
# finds 0.19 ms and 0.03 ms on an idle virtual machine with two cores, which fall asleep; solo_speed.py, with PyTorch
# acting, 0.39 ms for two workers. If they are wrong, workers are left out that would have saved little.
OVERHEAD, OVERHEAD_PER_WORKER = 300e-6, 30e-6


def acting_in_process(
    make_environments: Callable[[list[int]], Environments],
    actor: Actor,
    explorer: Explorer,
    run_seed: int,
    environments: int,
    workers: int,
    options: PoolOptions,
) -> InProcess | LockstepPool:
    """A rollout for an actor that cannot leave this process, with workers that step if the options ask for them or they
    pay off."""
    remote = options.remote_environments
    if remote is None:  # timed with copies, as workers have them: the environment may be a user's own
        copied = cloudpickle.loads(cloudpickle.dumps(make_environments))
        remote = workers_pay_off(copied, environments, workers)
    if remote:
        return LockstepPool(make_environments, actor, explorer, run_seed, environments, workers, options)
    return InProcess(make_environments(list(range(environments))), actor, explorer, run_seed)


def workers_pay_off(
    make_environments: Callable[[list[int]], Environments], environments: int, workers: int, cores: int | None = None
) -> bool:
    """Whether a `LockstepPool` is expected to be quicker than `InProcess`; both collect the same.

    Makes environment 0 here, steps it for about 0.05 s and closes it; raises what that raises. cores: None for those
    that this process may use.
    """
    return seconds_saved(step_seconds(make_environments), environments, workers, cores or usable_cores()) > 0


def seconds_saved(step: float, environments: int, workers: int, cores: int) -> float:
    """Expected seconds that workers save in a time step of all environments, each of which takes `step` seconds."""
    busiest = -(-environments // min(workers, cores))
    return (environments - busiest) * step - OVERHEAD - OVERHEAD_PER_WORKER * workers


def step_seconds(make_environments: Callable[[list[int]], Environments], budget: float = 0.05) -> float:
    """Median seconds of a step of one environment with the first legal action, measured for `budget` seconds."""
    environments = make_environments([0])
    try:
        observation = environments.reset()
        taken: list[float] = []
        until = time.perf_counter() + budget
        while not taken or time.perf_counter() < until:
            action = _legal(environments.spaces, observation)
            began = time.perf_counter()
            observation = environments.step(action)[0]
            taken.append(time.perf_counter() - began)
        return statistics.median(taken)
    finally:
        environments.close()


def _legal(spaces: Spaces, observation: Tree) -> np.ndarray:
    action: Any = zeros(spaces.action, 1)
    if spaces.masked:
        action = observation[ACTION_MASK].argmax(-1).astype(action.dtype)
    return action
