"""What the measurements share: processes with a set number of threads, interleaved repeats, ratios with their spread,
versions, and results in JSON beside the script.

The machine is noisy: what is compared is measured in turns, and a ratio is the median of the ratios of each turn.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
READY = "ready"  # what a process says that waits for its window
THREADS = ("one", "default")
LIMITS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "NPROC",  # of JAX
)
PACKAGES = (
    "etude", "numpy", "gymnasium", "jax", "jaxlib", "keras", "tensorflow-cpu", "torch", "stable-baselines3",
    "sb3-contrib", "sbx-rl", "agilerl", "envpool",
)  # fmt: skip


def arguments(description: str) -> argparse.ArgumentParser:
    """The options that every measurement has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--peers", help="a Python that has requirements-peers.txt; without it, peers are left out")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", choices=THREADS, nargs="+", default=list(THREADS))
    parser.add_argument("--cell", help=argparse.SUPPRESS)  # what a subprocess of this script is to measure
    return parser


def process(command: list[str], threads: str = "default", timeout: float = 3600, **environment: str) -> dict:
    """Run a command that prints JSON as its last line. threads: "one" pins it to one core and limits every library."""
    variables = {name: value for name, value in os.environ.items() if name not in LIMITS}
    if threads == "one":
        variables |= dict.fromkeys(LIMITS, "1")
        command = ["taskset", "--cpu-list", str(max(os.sched_getaffinity(0))), *command]
    variables |= {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONDONTWRITEBYTECODE": "", **environment}  # bytecode as installed
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=variables, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return last_line(done.stdout)


def run_cells(wanted: list[str], jobs: int, run: Callable[[str], dict], keep: Callable[[str, dict], None]) -> list[str]:
    """Run cells side by side, each in a process of its own, and keep each as it comes; returns those that failed.

    run: from a cell's name to its result. keep: stores and tells one. Called in this thread alone.
    """
    failed, pool = [], ThreadPoolExecutor(jobs)
    futures = {pool.submit(run, key): key for key in wanted}
    try:
        for future in as_completed(futures):
            key = futures[future]
            try:
                found = future.result()
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                failed.append(key)
                print(error, flush=True)
            else:
                keep(key, found)
    finally:
        pool.shutdown(cancel_futures=True)
    return failed


def cell(name: str, key: str, timeout: float = 6 * 3600, **environment: str) -> dict:
    """One cell of a script of this folder, in a process with one thread."""
    limits = dict.fromkeys(LIMITS, "1")
    return process(script(name, "--cell", key), timeout=timeout, **limits, **environment)


def processor_seconds() -> float:
    """User and system time of all processes that have ended below this one."""
    import resource  # which Windows lacks

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def script(name: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """The command that runs a script of this folder."""
    return [python, str(HERE / name), *arguments]


class Window:
    """Steps and processor time of this process while a window is open. The one who started it opens it: see
    `simultaneous.py`."""

    def __init__(self, seconds: float):
        self._seconds, self._first, self._began = seconds, -1, 0.0
        self._found: dict[str, float] = {}

    def is_over(self, step: int) -> bool:
        """Called after steps: the first call waits until the window opens."""
        if self._first < 0:
            print(READY, flush=True)
            sys.stdin.readline()
            self._first, self._began, self._processor = step, time.perf_counter(), time.process_time()
        seconds = time.perf_counter() - self._began
        processor = time.process_time() - self._processor
        self._found = {"steps": step - self._first, "seconds": seconds, "processor_seconds": processor}
        return seconds >= self._seconds

    def found(self) -> dict[str, float]:
        """What was counted until the last call."""
        return self._found


class PeakMemory:
    """While it is open: the most that this process and its descendants hold, in megabytes (proportional set size)."""

    def __init__(self, every: float = 0.5):
        self.peak, self._every, self._over = 0.0, every, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.peak = max(self.peak, significant(sum(map(proportional_kilobytes, tree_of(os.getpid()))) / 1e3))
            if self._over.wait(self._every):
                return


def tree_of(process: int) -> list[int]:
    """A process and its descendants."""
    children = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            children += [int(child) for child in task.read_text().split()]
    return [process, *(one for child in children for one in tree_of(child))]


def proportional_kilobytes(process: int) -> int:
    """What a process holds, with its part of what it shares; 0 where it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


def last_line(output: str) -> dict:
    """What `answer` said."""
    return json.loads(output.strip().splitlines()[-1])


def answer(result: dict) -> None:
    """Tell the process that asked."""
    print(json.dumps(result), flush=True)


def seconds_per_call(function: Callable[[], Any], least: float = 0.2) -> float:
    """How long one call takes, over as many calls as `least` seconds hold."""
    began = time.perf_counter()
    function()
    calls = max(1, int(least / max(time.perf_counter() - began, 1e-7)))
    began = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - began) / calls


def interleaved(functions: dict[str, Callable[[], Any]], repeats: int, least: float = 0.2) -> dict[str, list[float]]:
    """Seconds per call of each function, measured in turns after one call of each that is not counted."""
    for function in functions.values():
        function()
    found: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            found[name].append(seconds_per_call(function, least))
    return found


def summary(values: list[float], digits: int = 4) -> dict:
    """The median, the lowest, the highest and how many."""
    return {
        "median": significant(statistics.median(values), digits),
        "lowest": significant(min(values), digits),
        "highest": significant(max(values), digits),
        "repeats": len(values),
    }


def ratio(above: list[float], below: list[float]) -> dict:
    """The ratio of two measurements, turn by turn."""
    return summary([a / b for a, b in zip(above, below, strict=True)], 3)


def significant(value: float, digits: int = 4) -> float:
    """A value to so many significant digits."""
    return float(f"{value:.{digits}g}")


def versions() -> dict[str, str]:
    """What is installed beside the running Python."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """The processor and how many cores of it there are."""
    model = platform.processor()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.machine()}",
    }


def read(script_file: str) -> dict:
    """The results that a script has written before."""
    path = Path(script_file).with_suffix(".json")
    return json.loads(path.read_text()) if path.exists() else {}


def write(script_file: str, results: dict, peers: str | None = None) -> None:
    """Add results, by name, to the JSON file beside a script; replaced at once, so that a reader never sees a half."""
    path = Path(script_file).with_suffix(".json")
    about = {"machine": machine(), "versions": versions()}
    if peers:
        about["peers"] = process(script("peers.py", "versions", python=peers))
    everything = {**read(script_file), "about": about, **results}
    fresh = path.with_suffix(".json.new")
    fresh.write_text(json.dumps(everything, indent=1) + "\n")
    os.replace(fresh, path)


def show(title: str, rows: dict[str, dict], unit: str) -> None:
    """Print measured values under a title."""
    print(f"{title} [{unit}]")
    for name, row in rows.items():
        print(f"  {name:<34} {row['median']:>10g}   ({row['lowest']:g} to {row['highest']:g})", flush=True)


def with_new_fields(algorithm: str, config: dict) -> dict:
    """A config as it was written, and the fields that are new since then, with their defaults."""
    from etude.algorithms import find
    from etude.checkpoint.config_json import from_json, to_json

    beside = {name: config[name] for name in ("environment", "environments", "steps", "engine") if name in config}
    fields = {name: value for name, value in config.items() if name not in ("class", *beside)}
    kind = find(algorithm)[1]
    return {**beside, **to_json(from_json(kind, {"class": kind.__name__, **fields}))}
