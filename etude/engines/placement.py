"""Finds the devices that a run trains on, and the processes that drive them."""

from __future__ import annotations

from etude.base.errors import ConfigError
from etude.engines.process_group import Launch, launched
from etude.engines.replicas import Replicas


def find_replicas(engine: str, devices: int | str, device: str, compiled: bool) -> Replicas | None:
    """The replicas of a run with this engine, once its processes have found each other; None for a single device.

    device: as `Setup` has it. Raises ConfigError where there are not as many devices or processes, or one of them would
    be used twice.
    """
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
    return _torch_replicas(devices, device, launched())


def _torch_replicas(devices: int | str, device: str, launch: Launch | None) -> Replicas | None:
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
    own = _own_device(device, gpus, local)
    from etude.engines.torch_group import TorchGroup

    return Replicas(size, own, group=TorchGroup())


def _own_device(device: str, gpus: int, launch: Launch) -> str:
    """The device of this process, as `decide` takes it: the CPU, or a GPU of its own ("auto:1": for large networks)."""
    name, _, number = device.partition(":")
    if name == "cuda" and number and launch.local_size > 1:
        raise ConfigError(
            f"device = {device!r} puts {launch.local_size} replicas on one device; expected a device for each. Give "
            "device='cuda', for a GPU each, or 'cpu'."
        )
    if name == "cuda" and launch.local_size > gpus:
        raise ConfigError(
            f"{launch.local_size} processes were started on this machine, and torch sees {gpus} GPUs; expected a GPU "
            f"for each. Start {max(1, gpus)}, or give device='cpu'."
        )
    return device if name == "cpu" or not gpus else f"{name}:{launch.local_rank}"
