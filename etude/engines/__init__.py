"""Engines: what evaluates and trains an agent. Frameworks are imported here and in `ops`, and only when they are
used."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from etude.agent import Agent
from etude.base.cores import Busy
from etude.base.errors import ConfigError, MissingExtra
from etude.base.forks import check_home
from etude.base.spaces import Spaces
from etude.engines.replicas import Launch, Replicas, launched
from etude.language import Pretrained
from etude.networks import actor_of, critic_of
from etude.networks.maker import made_by
from etude.networks.specs import framework_of
from etude.protocols import Engine

_KERAS = "KERAS_BACKEND"
_WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")  # settings of how long OpenMP's threads spin
ENGINES = ("jax", "torch", "tensorflow")  # in the order in which "auto" looks for them


def installed() -> list[str]:
    """The engines whose frameworks are installed, without importing them."""
    needs = {"jax": ("jax", "keras"), "torch": ("torch",), "tensorflow": ("tensorflow", "keras")}
    return [name for name in ENGINES if all(importlib.util.find_spec(module) for module in needs[name])]


def choose(name: str, network: Any = None) -> str:
    """The engine that `name` means: itself, or for "auto" that of the agent's own network, or the first one
    installed."""
    found = installed()
    if name == "auto":
        keras = next((engine for engine in found if engine != "torch"), None)  # for one that makes a network
        with _keras_on(None if _KERAS in os.environ else keras):
            own = _engines_for(network)
        wanted = [engine for engine in (found if own is None else own) if engine in found]
        imported = sys.modules.get("keras")
        running = [engine for engine in wanted if imported is not None and engine == imported.backend.backend()]
        if not wanted:
            raise MissingExtra("An engine", "jax")
        return (running or wanted)[0]
    if name not in ENGINES:
        raise ConfigError(f"Unknown engine {name!r}; expected auto, {', '.join(ENGINES)}.")
    if name not in found:
        raise MissingExtra(f"The engine {name!r}", name)
    return name


def create(
    name: str,
    agent: Agent,
    spaces: Spaces,
    *,
    seed: int = 0,
    device: str | Replicas = "auto",
    compiled: bool = False,
    busy: Busy = Busy(),  # noqa: B008  (a tuple)
) -> Engine:
    """An engine for an agent.

    name: see `choose`. device: "auto" (the CPU for small networks), "cpu", "cuda", "cuda:1", or several: what
    `replicas_for` returned. compiled: for torch, compile the learn step (slow to start, faster then); the other engines
    always do. busy: other processes, which are left their cores.
    """
    if isinstance(device, Replicas) and device.strategy is not None:
        from etude.engines.strategies import StrategyEngine

        return StrategyEngine(agent, spaces, seed, device, busy)
    name = choose(name, getattr(agent.config, "network", None))
    if isinstance(device, Replicas):
        # An engine that trains on several devices
        if name == "torch":
            from etude.engines.torch_group import ReplicatedTorchEngine

            return ReplicatedTorchEngine(agent, spaces, seed, device, busy)
        check_home(name)
        with _keras_on(name):
            from etude.engines.jax_replicas import ShardedEngine

            return ShardedEngine(agent, spaces, seed, device, busy)
    if name == "torch":
        with _threads_that_sleep():
            from etude.engines import torch
        torch.leave_to_home()
        if compiled:
            from etude.engines.functional import FunctionalEngine

            return FunctionalEngine(agent, spaces, seed, torch.CompiledTorchBackend(device, busy))
        return torch.TorchEngine(agent, spaces, seed, device, busy)
    check_home(name)
    backend: Any
    with _keras_on(name):
        from etude.engines.functional import FunctionalEngine

        if name == "jax":
            from etude.engines.jax import JaxBackend as backend
        else:
            with _few_messages():
                from etude.engines.keras import require_backend

                require_backend(name)
                from etude.engines.tensorflow import TensorFlowBackend as backend
        return FunctionalEngine(agent, spaces, seed, backend(device, busy))


def strategy_replicas(strategy: Any) -> Any:
    """The replicas of a strategy of `tf.distribute` (see `strategies`), None for None; ConfigError for one that cannot
    train an agent, and where Keras does not run on TensorFlow."""
    if strategy is None:
        return None
    if "tensorflow" not in sys.modules:
        raise ConfigError(
            f"strategy = {strategy!r}; expected a strategy of tf.distribute, such as tf.distribute.MirroredStrategy()."
        )
    with _keras_on("tensorflow"):
        from etude.engines.keras import require_backend
        from etude.engines.strategies import replicas_of

        require_backend("tensorflow")
        return replicas_of(strategy)


@contextmanager
def _threads_that_sleep() -> Iterator[None]:
    """Import torch in this context: its threads then wait for each other for some ten microseconds before they sleep.
    Otherwise they spin for milliseconds, and where other processes use the cores for as long as those compute.

    OpenMP reads how long when it is loaded. Where torch was imported before, or the user set it, nothing changes.
    """
    if "torch" in sys.modules or any(name in os.environ for name in _WAITING):
        yield
        return
    os.environ[_WAITING[0]] = "1000"
    try:
        yield
    finally:
        del os.environ[_WAITING[0]]


@_threads_that_sleep()
def replicas_for(name: str, network: Any, devices: int | str, device: str, compiled: bool) -> Replicas | None:
    """The replicas of a run, once its processes have found each other; None for a single device.

    name: see `choose`. device: as `Execution` has it. Raises ConfigError where there are not as many devices or
    processes, or one of them would be used twice.
    """
    engine = choose(name, network)
    if engine == "tensorflow":
        raise ConfigError(
            f"devices = {devices!r} is for the engines torch and jax; TensorFlow trains on several devices with a "
            "strategy of tf.distribute. Give engine='jax', or strategy=."
        )
    if engine == "jax":
        from etude.engines.jax_replicas import jax_replicas

        return jax_replicas(devices, device, launched())
    if compiled:
        raise ConfigError(f"compiled = True trains on one device; got devices = {devices!r}. Leave one of them out.")
    launch = launched()
    import torch
    from torch import distributed

    gpus = torch.cuda.device_count()
    if launch is None and not distributed.is_initialized():
        if devices == "all" and gpus < 2:
            return None
        wanted = gpus if devices == "all" else devices
        raise ConfigError(
            f"devices = {devices!r}: torch needs a process for each device, and this one was started alone. Start it "
            f"with torchrun --nproc-per-node {wanted} -m etude train ..., or torchrun --nproc-per-node {wanted} "
            "script.py (or accelerate launch)."
        )
    size = launch.size if launch is not None else distributed.get_world_size()
    if devices not in ("all", size):
        raise ConfigError(
            f"devices = {devices} and {size} processes were started; torch needs one for each device. Give "
            f"devices={size}, or 'all'."
        )
    if size == 1:
        return None
    local = Launch(*[distributed.get_rank(), size] * 2) if launch is None else launch
    # The device of this process, as `decide` takes it: the CPU, or a GPU of its own ("auto:1": for large networks)
    name, _, number = device.partition(":")
    if name == "cuda" and number and local.local_size > 1:
        raise ConfigError(
            f"device = {device!r} puts {local.local_size} replicas on one device; expected a device for each. Give "
            "device='cuda', for a GPU each, or 'cpu'."
        )
    if name == "cuda" and local.local_size > gpus:
        raise ConfigError(
            f"{local.local_size} processes were started on this machine, and torch sees {gpus} GPUs; expected a GPU "
            f"for each. Start {max(1, gpus)}, or give device='cpu'."
        )
    own = device if name == "cpu" or not gpus else f"{name}:{local.local_rank}"
    from etude.engines.torch_group import TorchGroup

    return Replicas(size, own, group=TorchGroup())


@contextmanager
def _keras_on(name: str | None) -> Iterator[None]:
    """Keras fixes its backend when it is first imported: in this context, on this engine; None: as ever. What the user
    has set is as it was afterwards, for Keras in this process and for other processes."""
    before = os.environ.get(_KERAS)
    if name is not None:
        os.environ[_KERAS] = name
    try:
        yield
    finally:
        if before is not None:
            os.environ[_KERAS] = before
        elif name is not None:
            del os.environ[_KERAS]


@contextmanager
def _few_messages() -> Iterator[None]:
    """Import TensorFlow in this context. Where TF_CPP_MIN_LOG_LEVEL asks for errors alone, what it logs before it reads
    that is dropped; what else is written to the standard error stream is passed on."""
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0") < "2" or "tensorflow" in sys.modules:
        yield
        return
    with tempfile.TemporaryFile() as kept:
        stream = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stream, 2)
            os.close(stream)
            kept.seek(0)
            for line in kept:
                if not line.startswith((b"WARNING: All log messages before absl", b"I0000 ")):
                    os.write(2, line)


_RUNS_ON = {"torch": ("torch",), "keras": ("jax", "tensorflow", "torch")}


def _engines_for(network: Any) -> tuple[str, ...] | None:
    """The engines for a network of a user's own (a class, or a function that makes one); None for specs."""
    for own in (actor_of(network), critic_of(network)):
        if isinstance(own, Pretrained):
            return _RUNS_ON["torch"]
        framework = framework_of(own if isinstance(own, type) else type(own))
        if framework is None and callable(own):
            framework = framework_of(type(made_by(own)))
        if framework is not None:
            return _RUNS_ON[framework]
    return None
