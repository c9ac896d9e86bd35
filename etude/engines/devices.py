"""Where an engine computes: one rule for all frameworks."""

from __future__ import annotations

from etude.engines.structure import Structure
from etude.errors import ConfigError

# With fewer numbers than this in the networks, a CPU is faster than a GPU for the batches of reinforcement learning.
SMALL = 1_000_000


def decide(requested: str, gpus: int, structure: Structure) -> str:
    """ "cpu" or "cuda:i".

    requested: "auto", "cpu", "cuda" or "cuda:i". Auto takes the first GPU, where there is one, for large networks and
    for those that NumPy is too slow for. Raises ConfigError where a GPU is asked for that is not there.
    """
    if requested == "cpu":
        return "cpu"
    if requested == "auto":
        numbers = sum(value.size for value in structure.initial.values())
        return "cuda:0" if gpus and (numbers > SMALL or not structure.portable) else "cpu"
    name, _, number = requested.partition(":")
    if name != "cuda" or not (number or "0").isdigit():
        raise ConfigError(f"Unknown device {requested!r}; expected auto, cpu, cuda or cuda:1.")
    if int(number or 0) >= gpus:
        raise ConfigError(
            f"device={requested!r} asks for a GPU; this engine sees {gpus} here. Use device='cpu' or 'auto'."
        )
    return f"cuda:{number or 0}"
