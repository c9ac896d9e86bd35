"""Where an engine computes: one rule for all frameworks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from etude.base.cores import left_beside
from etude.base.errors import ConfigError
from etude.engines.parameter_layout import ParameterLayout

# With fewer numbers than this in the networks, a CPU is faster than a GPU for the batches of reinforcement learning. On
# an H200 and on the CPU beside it: torch, PPO's 140,000 numbers 5,300 and 3,200 us a gradient step, SAC's 360,000 with
# batches of 256 7,000 and 38,000; JAX, these 1,500 and 17,000.
SMALL = 250_000
# With fewer than this, one thread is faster than several: they wait for each other at every operation, and where cores
# are busy, for milliseconds. DQN's 4-256-256-2 with batches of 64, on two cores: on JAX 500 us a gradient step with one
# thread, 500 to 5,000 with two; on torch beside busy processes 1,400 and 17,700. SAC's 340,000 numbers with batches of
# 256, on JAX: 7,500 and 4,700.
TINY = 200_000


def decide(requested: str, gpus: int, layout: ParameterLayout) -> str:
    """ "cpu" or "cuda:i".

    requested: "auto", "cpu", "cuda" or "cuda:i". Auto takes the first GPU, where there is one, for large networks and
    for those that NumPy is too slow for; "auto:i", of one of several processes, takes that GPU. Raises ConfigError
    where a GPU is asked for that is not there.
    """
    if requested == "cpu":
        return "cpu"
    name, _, number = requested.partition(":")
    if name == "auto":
        # How many numbers the networks hold
        if not (gpus and (sum(value.size for value in layout.initial.values()) > SMALL or not layout.portable)):
            return "cpu"
        name = "cuda"
    if name != "cuda" or not (number or "0").isdigit():
        raise ConfigError(f"Unknown device {requested!r}; expected auto, cpu, cuda or cuda:1.")
    if int(number or 0) >= gpus:
        raise ConfigError(
            f"device={requested!r} asks for a GPU; this engine sees {gpus} here. Use device='cpu' or 'auto'."
        )
    return f"cuda:{number or 0}"


def threads_for(weights: Iterable[Any], beside: int, fixed: int = 0) -> int | None:
    """How many threads should compute with these weights, and so many fixed numbers, on the CPU, beside so many busy
    processes; None: as many as the framework takes. JAX and TensorFlow can be set up only before they compute for the
    first time in a process."""
    shapes = [weight.shape for weight in weights]
    convolves = any(len(shape) > 3 for shape in shapes)  # computes many times as much for each number
    if not convolves and sum(map(math.prod, shapes)) + fixed < TINY:
        return 1
    return left_beside(beside) if beside else None
