"""Whether workers that only step are worth their hand-over: the steps of some environments are quicker than a process
can be woken. Who steps them changes no number, so the choice may be made by the clock."""

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
from etude.rollout.collector import Actor
from etude.rollout.crew import PoolOptions
from etude.rollout.in_process import InProcess
from etude.rollout.lockstep import LockstepPool

# What waking and hearing take of a time step, in seconds, for all workers together, and more for each: benchmarks/
# stepping.py finds 0.19 ms and 0.03 ms on a virtual machine with two cores and nothing else to do, where cores fall
# asleep; solo_speed.py, with PyTorch acting, 0.39 ms for two workers. Where they are wrong, workers are left out that
# would have saved little.
HAND_OVER, EACH = 300e-6, 30e-6


def acting_here(
    make_environments: Callable[[list[int]], Environments],
    actor: Actor,
    explorer: Explorer,
    run_seed: int,
    environments: int,
    workers: int,
    options: PoolOptions,
) -> InProcess | LockstepPool:
    """Collects with an actor that cannot leave this process, and workers that step where the options ask for them or
    they are worth it."""
    elsewhere = options.step_elsewhere
    if elsewhere is None:  # timed with copies, as workers have them: the environment may be a user's own
        copied = cloudpickle.loads(cloudpickle.dumps(make_environments))
        elsewhere = stepping_pays(copied, environments, workers)
    if elsewhere:
        return LockstepPool(make_environments, actor, explorer, run_seed, environments, workers, options)
    return InProcess(make_environments(list(range(environments))), actor, explorer, run_seed)


def stepping_pays(
    make_environments: Callable[[list[int]], Environments], environments: int, workers: int, cores: int | None = None
) -> bool:
    """Whether a `LockstepPool` is expected to be quicker than `InProcess`; both collect the same.

    Makes environment number 0 here, steps it for about 0.05 s and closes it. Raises what that raises. cores: those that
    this process may use where None.
    """
    return saved(step_seconds(make_environments), environments, workers, cores or usable_cores()) > 0


def saved(step: float, environments: int, workers: int, cores: int) -> float:
    """Seconds that workers are expected to save in a time step of all environments, of which each takes `step`."""
    busiest = -(-environments // min(workers, cores))
    return (environments - busiest) * step - HAND_OVER - EACH * workers


def step_seconds(make_environments: Callable[[list[int]], Environments], budget: float = 0.05) -> float:
    """What a step of one environment takes, with the first action that is legal: the median of those in `budget`
    seconds."""
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
