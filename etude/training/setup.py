"""Where and how a run is carried out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from etude.base import checks
from etude.base.errors import ConfigError
from etude.envs.make import Vectorization


@dataclass(frozen=True)
class Setup:
    """Where and how a run is carried out; nothing of this changes what is learned, but for `seed` and
    `environments`."""

    seed: int = 0
    engine: str = "auto"  # auto, jax, torch, tensorflow
    device: str = "auto"  # auto, cpu, cuda, cuda:1
    compiled: bool = False  # torch only: compile the learn step; slow to start, faster then
    environments: int | None = None  # stepped in parallel; None: what the preset says, or 1 off-policy and 8 else
    workers: int = 0  # processes that collect for this one; 0: it collects itself
    overlap: bool = False  # workers collect while the learner learns, with weights that are one phase old
    vectorization: Vectorization = "auto"  # auto, loop, native: see envs.make_environments
    replay_folder: str | None = None  # keep the replay in files there, for one that is larger than memory
    keep_info: tuple[str, ...] = ()  # names of numbers in `info` that travel with the steps, as extras `info.<name>`
    ray: str | None = None  # workers are Ray actors: "local", "auto" or the address of a cluster; None: processes
    devices: int | str | None = None  # to train on, or "all"; each has a part of every batch; None: one
    strategy: Any = field(default=None, compare=False)  # of tf.distribute, whose replicas have parts of every batch

    def __post_init__(self) -> None:
        checks.declared(self)
        names = self.keep_info
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
            raise ConfigError(f"keep_info = {names!r}; expected names of numbers in info, as in ('x', 'success').")
        object.__setattr__(self, "keep_info", tuple(dict.fromkeys(names)))
        if self.environments is not None and self.environments < 1:
            raise ConfigError(f"environments = {self.environments}; expected a whole number of at least 1.")
        if self.workers < 0 or (self.environments is not None and self.workers > self.environments):
            raise ConfigError(
                f"workers = {self.workers} for {self.environments} environments; expected from 0 to as many as "
                "environments."
            )
        if self.ray is not None and not (self.ray and self.workers):
            raise ConfigError(
                f"ray = {self.ray!r} with workers = {self.workers}; expected local, auto or an address, and how many "
                "actors collect: workers=2 (--workers 2)."
            )
        if self.devices != "all" and not (self.devices is None or _is_count(self.devices)):
            raise ConfigError(f"devices = {self.devices!r}; expected a number of at least 1, 'all', or None.")
        if self.devices is not None and self.strategy is not None:
            raise ConfigError("devices and strategy both say what a run trains on. Give one of them.")
        if self.seed < 0:
            raise ConfigError(f"seed = {self.seed}; expected a whole number of at least 0.")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
