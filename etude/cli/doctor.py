"""`etude doctor`: what this machine has."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from etude.cli.options import parse
from etude.cli.output import rows, say
from etude.cli.versions import ENGINES, version
from etude.report.filming import has_display
from etude.rollout.pool.process import can_adopt

LIBRARIES = ("numpy", "gymnasium", "Box2D", "mujoco", "tensorboardX", "imageio-ffmpeg", "matplotlib", "wandb")


@dataclass(frozen=True)
class Doctor:
    """Tell the versions, engines and devices on this machine: the first thing to put into a report of a problem."""


def main(arguments: Sequence[str]) -> int:
    """Print it. The exit code is 1 where no engine can train."""
    parse(Doctor, arguments, "doctor")
    rows(
        [
            ("etude", version("etude") or "not installed"),
            ("Python", f"{platform.python_version()} ({sys.executable})"),
            ("system", f"{platform.platform()}, {os.cpu_count()} cores"),
            ("workers", "forked by a process of their own" if can_adopt() else "start method spawn"),
            ("display", "yes" if has_display() else "none: use `etude watch RUN --video out.gif`"),
            ("GPU", _gpu()),
        ]
    )
    say("\nEngines")
    found = {engine: [(part, version(part)) for part in parts] for engine, parts in ENGINES.items()}
    usable = [engine for engine, parts in found.items() if all(number for _, number in parts)]
    rows([(engine, _engine(engine, parts, engine in usable)) for engine, parts in found.items()], indent="  ")
    say(f"  `--engine auto` takes {usable[0]}." if usable else "  None: pip install 'etude[jax]'")
    say("\nLibraries")
    rows([(library, version(library) or "not installed") for library in LIBRARIES], indent="  ")
    return 0 if usable else 1


def _engine(engine: str, parts: list[tuple[str, str | None]], usable: bool) -> str:
    if usable:
        return ", ".join(f"{part} {number}" for part, number in parts)
    return f"not installed: pip install 'etude[{engine}]'"


def _gpu() -> str:
    if not shutil.which("nvidia-smi"):
        return "none found (no nvidia-smi); small networks are faster on the CPU anyway"
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=20)
    return "; ".join(done.stdout.strip().splitlines()) or done.stderr.strip() or "none found"
