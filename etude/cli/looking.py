"""Commands that look at what there is: `etude list`, `doctor`, `check-env`, `stacks` and `data`."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import TYPE_CHECKING

import numpy as np

from etude.agent import Agent
from etude.algorithms import ALGORITHMS
from etude.base.data import return_text
from etude.base.errors import ConfigError
from etude.base.files import holder
from etude.base.spaces import describe
from etude.base.stacks import descendants, here, holds, stacks_of
from etude.base.text import printable
from etude.cli.options import environment_arguments, parse, takes, with_names, with_path
from etude.cli.output import ENGINES, rows, say, version
from etude.report.filming import has_display
from etude.workers.process import can_adopt

if TYPE_CHECKING:
    from etude.offline.reader import Inspection


MOST = max(len(agent.actions) for agent, _ in ALGORITHMS.values())  # kinds of action spaces


@dataclass(frozen=True)
class List:
    """List the algorithms with the spaces that they accept, and the environments that have tuned hyperparameters."""


def list_algorithms(arguments: Sequence[str]) -> int:
    """Print both lists."""
    from etude.presets import PRESETS

    parse(List, arguments, "list")
    say("Algorithms and the action spaces that they support (any: Discrete,")
    say("MultiDiscrete, MultiBinary, Box and Hybrid). Observations: Box (vectors,")
    say("images), Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these.\n")
    rows(
        [(name, actions(agent), title(config)) for name, (agent, config) in ALGORITHMS.items()], indent="  ", wrap=True
    )
    say("\nPresets: tuned hyperparameters, the defaults of `etude train`\n")
    tuned = [(name, env, preset) for name, presets in PRESETS.items() for env, preset in presets.items()]
    # One column: the longest names of both would not fit into a terminal side by side.
    rows([(f"{name}  {env}", f"{preset.steps:,} steps") for name, env, preset in tuned], indent="  ")
    return 0


def actions(agent: type[Agent]) -> str:
    """The action spaces that an agent accepts."""
    return "any" if len(agent.actions) == MOST else ", ".join(space.__name__ for space in agent.actions)


def title(config: type) -> str:
    """The first sentence of the file that an algorithm is, or the settings that make it one."""
    text = " ".join((sys.modules[config.__module__].__doc__ or "").split("\n\n")[0].split())
    return re.split(r"(?<=[a-z)]\.) (?=[A-Z])", text)[0]


LIBRARIES = ("numpy", "gymnasium", "Box2D", "mujoco", "tensorboardX", "imageio-ffmpeg", "matplotlib", "wandb")


@dataclass(frozen=True)
class Doctor:
    """Tell the versions, engines and devices on this machine: the first thing to put into a report of a problem."""


def doctor(arguments: Sequence[str]) -> int:
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
    told = {engine: ", ".join(f"{part} {number}" for part, number in parts) for engine, parts in found.items()}
    told |= {engine: f"not installed: pip install 'etude[{engine}]'" for engine in found if engine not in usable}
    rows(told.items(), indent="  ")
    say(f"  `--engine auto` takes {usable[0]}." if usable else "  None: pip install 'etude[jax]'")
    say("\nLibraries")
    rows([(library, version(library) or "not installed") for library in LIBRARIES], indent="  ")
    return 0 if usable else 1


def _gpu() -> str:
    if not shutil.which("nvidia-smi"):
        return "none found (no nvidia-smi); small networks are faster on the CPU anyway"
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=20)
    return "; ".join(done.stdout.strip().splitlines()) or done.stderr.strip() or "none found"


@dataclass(frozen=True)
@takes("env_arg")
class CheckEnv:
    """Check ENV: a Gymnasium id, `module:callable` or `file.py:callable`. The exit code is 1 if it has mistakes."""


def check_env(arguments: Sequence[str]) -> int:
    """Print the findings."""
    names, options = with_names(CheckEnv, arguments, "check-env ENV")
    if len(names) != 1:
        raise ConfigError(f"check-env takes one environment; got {len(names)}. Usage: etude check-env module:callable")
    from etude.envs.check import check_environment
    from etude.envs.configured import configured

    environment = configured(names[0], environment_arguments(options.env_arg), None)
    findings = check_environment(environment)
    for finding in findings:
        say(f"{finding.kind}: {finding.name}: {finding.message}")
    mistakes = sum(finding.kind == "mistake" for finding in findings)
    say(f"{names[0]}: {mistakes} to mend." if mistakes else f"{names[0]}: nothing found wrong.")
    return 1 if mistakes else 0


@dataclass(frozen=True)
class Stacks:
    """Print the Python stacks of RUN, a run directory that a process trains in, and of its workers. The run goes on."""

    seconds: float = 3.0  # how long to wait for the answer of each process


def stacks(arguments: Sequence[str]) -> int:
    """Ask, and print."""
    path, options = with_path(Stacks, arguments, "stacks")
    if sys.platform != "linux":
        raise ConfigError(f"etude stacks reads /proc, which {sys.platform} does not have; it works on Linux.")
    lock = path / ".lock"
    try:
        found = holder(lock)
    except OSError:
        raise ConfigError(f"{path} is no run directory that was trained in: it has no file .lock.") from None
    if found is None:
        raise ConfigError(f"{lock} does not say which process trains in {path}. Give a run directory.")
    process, host = found
    if not here(host):
        raise ConfigError(f"{path} was last trained in on {host}. Call etude stacks there.")
    if not holds(process, lock):
        raise ConfigError(f"No process trains in {path} now; the last one was process {process}.")
    stacks = stacks_of(process, options.seconds)
    if stacks is None:
        raise ConfigError(
            f"Process {process}, which trains in {path}, does not write its stacks: it handles SIGUSR2 itself."
        )
    _print(f"process {process}, which trains", stacks)
    for child in descendants(process):
        if (stacks := stacks_of(child, options.seconds)) is not None:
            _print(f"worker process {child}", stacks)
    return 0


def _print(who: str, stacks: str) -> None:
    say(f"--- {who}")
    say(stacks.rstrip() or "It did not answer in time: the system keeps it from running (a disk, a driver, SIGSTOP).")


BINS, WIDEST = 10, 40  # of the histogram: its bars, and the characters of the longest
SHOWN = 20  # files of a kind
LONGEST = 2_000  # characters of a game


@dataclass(frozen=True)
class Data:
    """Describe recorded data: spaces, episodes, returns, what recorded it, and damage.

    SOURCE is a file, a folder, a pattern, a Minari data set, or a remote address. All of it is read. The exit code is 1
    if something is damaged or was not finished.
    """

    env: str | None = None  # a Gymnasium id, for files that do not say their spaces (D4RL, RLlib)


def data(arguments: Sequence[str]) -> int:
    """Print the description."""
    names, options = with_names(Data, arguments, "data SOURCE")
    if not names:
        raise ConfigError("data takes what to read: a file, a folder or a pattern. Usage: etude data FOLDER")
    from etude.envs import action_space_of, examine
    from etude.offline.reader import inspect

    spaces = None
    if options.env is not None:
        from dataclasses import replace

        spaces = replace(examine(options.env, play=False).spaces, action=action_space_of(options.env))
    found = inspect(names[0] if len(names) == 1 else names, spaces)
    _describe(found)
    for text in list(found.damaged.values())[:SHOWN]:
        say(f"damaged: {text}")
    if len(found.damaged) > SHOWN:
        say(f"damaged: {len(found.damaged) - SHOWN} more files")
    for path in found.unfinished[:SHOWN]:
        say(f"unfinished: {path} is being written, or was when its process ended. A resumed run records it again.")
    for path in found.superseded[:SHOWN]:
        say(f"superseded: {path} holds steps that a resumed run recorded again. It can be removed.")
    return 1 if found.damaged or found.unfinished else 0


def _describe(found: Inspection) -> None:
    if found.spaces is not None:
        observation, action = describe(found.spaces.observation), describe(found.spaces.action)
        rows([("environment", found.environment or "not recorded"), ("observations", observation), ("actions", action)])
    rows([
        ("files", f"{found.files:,}"),
        ("episodes", f"{len(found.returns):,} ({found.terminated:,} terminated)"),
        ("transitions", f"{found.transitions:,}" + (f" ({found.dropped:,} dropped)" if found.dropped else "")),
        ("extras", ", ".join(sorted(found.extras)) or "none"),
        ("behaviour", "; ".join(found.behaviour) or "none"),
    ])  # fmt: skip
    if found.returns:
        lengths = np.array(found.lengths)
        say(f"lengths       mean {lengths.mean():.1f}, from {lengths.min():,} to {lengths.max():,}")
        each = np.array(found.returns).reshape(len(lengths), -1)  # of one agent, or of each of several
        returns, agents = each.sum(1), () if found.spaces is None else found.spaces.agents or ()
        for who, of in zip(["returns", *(f"  {agent}" for agent in agents)], [returns, *each.T], strict=False):
            total = ", the sum over all agents" if agents and of is returns else ""
            say(f"{who:13} mean {return_text(of.mean())}, standard deviation {return_text(of.std())}{total}")
        counts, edges = np.histogram(returns, 1 if returns.min() == returns.max() else BINS)
        bars = zip(edges[:-1], edges[1:], counts.tolist(), strict=True)
        rows([(return_text(low), f"to {return_text(high)}", f"{count:,}", "#" * round(WIDEST * count / counts.max()))
              for low, high, count in bars], indent="  ")  # fmt: skip
    for i, text in enumerate(found.texts):
        say(f"episode {i}, return {found.returns[i]:g}")
        say(indent(printable(text, LONGEST), "  "))
