"""Environments of EnvPool, which threads of C++ step, as one simulator. Weng et al. 2022, arXiv:2206.10558."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from etude.base import trees
from etude.base.errors import ConfigError

PREFIX = "envpool:"  # of names, such as envpool:Pong-v5


class EnvPoolSimulator(VectorEnv[Any, Any, Any]):
    """A pool whose `reset` takes seeds and `reset_mask` as Gymnasium's simulators do: what ended is reset within the
    step, so that no row is a reset.

    task: an id of EnvPool's. options: further arguments of `envpool.make_gymnasium`, such as num_threads. ConfigError
    where EnvPool is not installed, or has no such task.
    """

    def __init__(self, task: str, num_envs: int, **options: Any):
        try:
            envpool = importlib.import_module("envpool")
        except ModuleNotFoundError as problem:
            raise ConfigError(f"The environment {PREFIX}{task} needs envpool: pip install envpool") from problem
        if task not in envpool.list_all_envs():
            raise ConfigError(f"EnvPool has no task {task!r}. envpool.list_all_envs() lists those that it has.")
        self._make: Any = partial(envpool.make_gymnasium, task, num_envs=num_envs, **options)
        self._pool, self._seen = self._make(seed=0), None
        self.num_envs, self.metadata = num_envs, self._pool.metadata
        self.single_observation_space, self.single_action_space = self._pool.observation_space, self._pool.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """See `gymnasium.vector.VectorEnv`. A pool takes its seed where it is made: it is made anew for one."""
        if seed is not None:
            self._pool.close()
            self._pool = self._make(seed=seed % 2**31)
        seen, infos = self._pool.reset(options=options)
        if options is not None and "reset_mask" in options:  # it returns these alone
            new, seen = seen, trees.map(np.array, self._seen)
            for leaf, own in zip(trees.leaves(seen), trees.leaves(new), strict=True):
                leaf[options["reset_mask"]] = own
        self._seen = seen
        return seen, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """See `gymnasium.vector.VectorEnv`."""
        self._seen, reward, terminated, truncated, infos = self._pool.step(actions)
        return self._seen, reward, terminated, truncated, infos

    def close_extras(self, **_: Any) -> None:
        """See `gymnasium.vector.VectorEnv`."""
        self._pool.close()
