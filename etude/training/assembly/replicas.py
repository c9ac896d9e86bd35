"""What a run in several processes, or on several devices, needs beside the parts of every run."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import etude.engines as engines
from etude.adapt.rules import BATCHES, values_reached
from etude.agent import Agent
from etude.base.errors import ConfigError, ReplicaError
from etude.checkpoint.run_directory import RunDirectory, is_path
from etude.config import TrustRegionConfig
from etude.engines.replicas import Devices, Replicas, indivisible, launched
from etude.multi_agent.by_policy import PolicyAgents
from etude.protocols import ProcessGroup, Weights
from etude.training.description import Execution
from etude.training.kinds import kind_of
from etude.training.loop import Learning

SHOWN = 200  # characters of a setting in a message


def replicas_for(agent: Agent, execution: Execution) -> Replicas | None:
    """The devices that an agent is trained on, where they are several; None for one. ConfigError where it cannot be
    trained on several."""
    if execution.strategy is None and (execution.devices is None or execution.devices == 1):
        return None
    if kind_of(agent).returns_gradients:
        given = f"devices = {execution.devices!r}" if execution.strategy is None else "strategy"
        raise ConfigError(
            f"{given}: {agent} computes gradients in its workers, one rollout at a time. Give it workers instead."
        )
    members = agent.members.values() if isinstance(agent, PolicyAgents) else (agent,)
    for name in (type(member).__name__ for member in members if isinstance(member.config, TrustRegionConfig)):
        raise ConfigError(
            f"{name} bounds the divergence over a whole rollout, which it takes its step on in one process and on one "
            "device. Leave devices and strategy out; workers= collects in several processes."
        )
    if execution.strategy is not None:
        found: Replicas | None = _of_strategy(execution)
    else:
        assert execution.devices is not None
        network = getattr(agent.config, "network", None)
        found = engines.replicas_for(execution.engine, network, execution.devices, execution.device, execution.compiled)
    if found is not None and found.group is not None and (execution.overlap or execution.ray is not None):
        given = "overlap = True" if execution.overlap else f"ray = {execution.ray!r}"
        raise ConfigError(
            f"{given} in a run of {found.group.size} processes, each of which waits for the steps of all. Leave it "
            "out; workers= gives each process workers of its own."
        )
    return found


def _of_strategy(execution: Execution) -> Replicas:
    """The replicas of a strategy that all take a part of every batch."""
    if execution.engine not in ("auto", "tensorflow") or execution.compiled:
        given = f"engine = {execution.engine!r}" if execution.engine != "auto" else "compiled = True"
        raise ConfigError(f"strategy= is for the engine tensorflow; got {given}. Leave it out, or give devices=.")
    found = engines.strategy_replicas(execution.strategy)
    if found.scheduled:
        raise ConfigError(
            "A run takes a MirroredStrategy or a MultiWorkerMirroredStrategy; a ParameterServerStrategy trains agents "
            "of your own: RL.distributed_training."
        )
    return Replicas(found.count, execution.device, group=found.group, strategy=found)


def check_divisible(agent: Agent, count: int, replicas: Replicas | None) -> None:
    """Raise ConfigError where the batches of an agent, of any size that rules may give them, cannot be divided equally
    over devices. count: environments."""
    if replicas is None:
        return
    for config in _configs_reached(agent.config):
        examples = kind_of(agent).update_schedule(config, count).examples
        if examples is not None and examples % replicas.count:
            raise ConfigError(indivisible(examples, replicas.count))


def _configs_reached(config: Any) -> Iterator[Any]:
    """A config, and those that its rules for the size of batches make of it at their bounds."""
    yield config
    for name in (rule.hyperparameter for rule in config.adapt if rule.hyperparameter in BATCHES):
        for size in values_reached(config, name):
            yield dataclasses.replace(config, **{name: size})


def divided_environments(execution: Execution, count: int, replicas: Replicas) -> int:
    """How many environments a run in several processes has. count: what the preset, or the user, says."""
    processes = 1 if replicas.group is None else replicas.group.size
    least = processes * max(1, execution.workers)
    if execution.environments is not None and count < least:
        each = f" with {execution.workers} workers each" if execution.workers else ""
        raise ConfigError(
            f"environments = {count} for {processes} processes{each}; expected at least one for each. Give "
            f"environments={least} (--envs {least}) or more."
        )
    return max(count, least)


def directory_for(group: ProcessGroup | None, make: Callable[[], RunDirectory]) -> RunDirectory:
    """The directory of a run, which the chief makes and writes to. Raises its error in all processes."""
    if group is None:
        return make()
    made = list[RunDirectory]()

    def path() -> Path | None:
        made.extend([make()] if group.rank == 0 else [])
        return made[0].path if made else None

    chiefs = group.in_all("run directory", path)[0]
    return made[0] if made else _ChiefsDirectory(chiefs)


def given_directory(group: ProcessGroup | None, run_dir: Any) -> RunDirectory | None:
    """The directory that a run was given: made where it is a path; see `directory_for`."""
    if not is_path(run_dir):
        return run_dir
    return directory_for(group, lambda: RunDirectory.create(Path(run_dir), ""))


def resumed_directory(path: Path, trust: bool, devices: Devices) -> RunDirectory:
    """The directory of a run that goes on, as the chief opens it to write, and as the other processes see it."""
    launch = None if devices is None else launched()
    return RunDirectory.resume(path, trust=trust) if launch is None or launch.rank == 0 else _ChiefsDirectory(path)


def check_launched(devices: Devices) -> None:
    """Raise ConfigError where several processes were started, and each would train the same run by itself."""
    launch = launched()
    if launch is not None and launch.size > 1 and devices is None:
        raise ConfigError(
            f"{launch.size} processes were started, and each would train the same run by itself. Give "
            "devices='all' (--devices all), so that they train one run together."
        )


class _ChiefsDirectory(RunDirectory):
    """The directory of a run as processes see it that are not the chief, which alone writes to it."""

    def lock(self) -> None:
        """The chief has it."""

    def save(self, step: int, state: dict[str, Any], meta: dict[str, Any] | None = None) -> Path:
        return self.checkpoints

    def save_best(self, step: int, state: dict[str, Any], meta: dict[str, Any] | None = None) -> Path:
        return self.best

    def write_config(self, config: dict[str, Any]) -> None:
        """The chief does."""


def check_alike(group: ProcessGroup | None, described: dict[str, Any], end: int, learning: Learning) -> None:
    """Raise ReplicaError where the processes of a run are to train different runs. end: the step to train to."""
    if group is None:
        return
    own = {**described, "step": learning.progress.step, "end": end, "weights": _checksum(learning.trained_weights())}
    own = {name: json.dumps(value, sort_keys=True, default=str) for name, value in own.items() if name != "device"}
    found = group.gather("settings", own)
    for rank, other in enumerate(found):
        for name in own:
            if other.get(name) != found[0].get(name):
                error = ReplicaError(
                    f"The processes of this run differ in {name}: process 0 has {found[0].get(name, '')[:SHOWN]}, and "
                    f"process {rank} has {other.get(name, '')[:SHOWN]}. Start all with the same script, arguments and "
                    "checkpoint."
                )
                error.in_all_processes = True
                raise error


def _checksum(weights: Weights) -> int:
    checksum = 0
    for name in sorted(weights):
        checksum = zlib.crc32(np.ascontiguousarray(weights[name]).tobytes(), checksum)
    return checksum
