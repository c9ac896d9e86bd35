"""Does a long training grow? `python -m benchmarks.reliability.soak --engine jax --algorithm ppo --minutes 5`.

Trains in a process of its own, by the command line and with worker processes, and notes every `--every` seconds what
each process holds: resident memory, open descriptors, threads. Then it ends the training with SIGTERM, as a scheduler
does. The result goes to soak.json beside this script, under ALGORITHM_ENGINE.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.reliability.processes import workers_of

COMMAND = [sys.executable, "-c", "import sys; from etude.cli import main; sys.exit(main())"]
FOREVER = 10**9  # environment steps
GRACE = 60.0  # seconds that a training may take to save and end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=("ppo", "dqn"), default="ppo")
    parser.add_argument("--engine", choices=("jax", "tensorflow", "torch"), default="jax")
    parser.add_argument("--environment", default="CartPole-v1")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two samples")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = soak(options, Path(folder) / "run")
    measure.write(__file__, {f"{options.algorithm}_{options.engine}": found})


def soak(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """The samples of one training, and how it ended."""
    given = {"engine": options.engine, "workers": options.workers, "steps": FOREVER, "run-dir": directory}
    schedule = {"evaluate-every": 100_000, "save-every": 100_000}  # a part of what may grow
    words = [word for name, value in {**given, **schedule}.items() for word in (f"--{name}", str(value))]
    began, samples = time.monotonic(), []
    with (directory.with_suffix(".log")).open("w+") as log:
        command = [*COMMAND, "train", options.algorithm, options.environment, *words]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            while process.poll() is None and time.monotonic() - began < 60 * options.minutes:
                time.sleep(options.every)
                samples.append({"seconds": round(time.monotonic() - began, 1), **sample(process.pid, directory)})
                print(json.dumps(samples[-1]), flush=True)
            process.send_signal(signal.SIGTERM)
            process.wait(GRACE)
        finally:
            process.kill()
            process.wait()
        log.seek(0)
        said = log.read()[-2000:]
    whole = {name: getattr(options, name) for name in ("environment", "workers", "minutes")}
    ended = {"exit_code": process.returncode, "saved": len(list(directory.glob("checkpoints/step_*.etude")))}
    return {**whole, **ended, **({} if process.returncode == 130 else {"output": said}), "samples": samples}


def sample(process: int, directory: Path) -> dict[str, Any]:
    """What the trainer and its workers hold now, and the environment step that the metrics have reached."""
    return {
        "step": _last_step(directory / "metrics.jsonl"),
        "trainer": _held(process),
        "workers": [_held(worker) for worker in workers_of(process)],
    }


def _held(process: int) -> dict[str, float]:
    """Resident memory in MB, open descriptors and threads of a process; nothing of one that has ended."""
    folder = Path(f"/proc/{process}")
    try:
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        descriptors = len(list((folder / "fd").iterdir()))
    except OSError:
        return {}
    resident = int(status.get("VmRSS", "0").split()[0]) / 1024
    return {"rss_mb": round(resident, 1), "descriptors": descriptors, "threads": int(status["Threads"])}


def _last_step(metrics: Path) -> int:
    """The step of the newest whole record; 0 before there is one."""
    if not metrics.exists():
        return 0
    with metrics.open("rb") as file:
        file.seek(max(0, metrics.stat().st_size - 65536))
        lines = file.read().split(b"\n")[:-1]
    for line in reversed(lines):
        try:
            return int(json.loads(line)["step"])
        except (ValueError, KeyError):
            continue
    return 0


if __name__ == "__main__":
    main()
