"""The versions of what is installed, without importing it."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

import gymnasium as gym

from etude import __version__

ENGINES: dict[str, tuple[str, ...]] = {
    "jax": ("jax", "keras"),
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "keras"),
}
NAMES = {"tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow_cpu"), "Box2D": ("Box2D", "box2d-py", "box2d")}


def version(library: str) -> str | None:
    """The installed version of a distribution; None where it is not installed."""
    for name in NAMES.get(library, (library,)):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def used_by(description: dict[str, Any]) -> dict[str, str]:
    """The versions of what a run uses, from its `Run.description`: Python, etude, the engine's framework, and the
    package of its environment, where that is named and installed."""
    libraries = ["numpy", "gymnasium", *ENGINES.get(description.get("engine", ""), ())]
    if description.get("environment_is_named"):
        libraries += metadata.packages_distributions().get(_module(description["environment"]), [])[:1]
    found = {library: number for library in libraries if (number := version(library))}
    return {"python": platform.python_version(), "etude": __version__, **found}


def _module(env: str) -> str:
    """The outermost module that an environment's name stands for."""
    name = env.rpartition(":")[2]
    entry = gym.spec(name).entry_point if name in gym.registry else None
    where = entry if isinstance(entry, str) else env if ":" in env else ""
    return where.partition(":")[0].partition(".")[0]
