"""What recording costs a run, and what reading more data than memory holds costs.

`python benchmarks/recorded_data.py` writes recorded_data.json. Writing: CPU seconds within a `Writer` over those of the
rest of the run, of PPO on CartPole (8 environments) and of SAC on Pendulum, with their checkpoints. Reading:
`--megabytes` of transitions (17 observations and 6 actions, in episodes of 1,000) are written, read into memory at
once, and read episode by episode, each in a process of its own: megabytes for each CPU second, and the most that was
resident beyond what the process had before. `--parts reading --megabytes 10000` is the full size: about five minutes of
processor time to write, two to read, and 11.6 GB on the disk of `--folder`; at most 10 shards are then read at once.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import measure
import numpy as np

import etude
from etude.base.data import Episode
from etude.base.spaces import Box, Spaces
from etude.offline import Reader, Writer

RUNS = {"ppo": ("CartPole-v1", 40, {"environments": 8}), "sac": ("Pendulum-v1", 1, {"learning_starts": 256})}
FORMATS = ("parquet", "hdf5", "jsonl", "minari")
SPACES = Spaces(Box(-np.inf, np.inf, (17,), np.float32), Box(-1, 1, (6,), np.float32))
LENGTH = 1000  # steps of an episode
ROW_BYTES = 4 * (17 + 6 + 1 + 1)
AT_ONCE = 2000  # megabytes
STORED = 1.3  # bytes of disk for each byte, at most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--thousands", type=int, default=2, help="of steps of SAC; PPO takes 40 times as many")
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--parts", nargs="+", choices=("writing", "reading"), default=["writing", "reading"])
    parser.add_argument("--folder", help="where the data is written and removed again; the system's by default")
    parser.add_argument("--read", nargs=2, metavar=("HOW", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        print(json.dumps(reading(*options.read)))
        return
    if "writing" in options.parts:
        found = {}
        for algorithm in RUNS:
            found[algorithm] = writing(algorithm, options.thousands)
            print(algorithm, found[algorithm], flush=True)
        measure.write(__file__, {"writing": found})
    if "reading" in options.parts:
        require_disk(options.folder, options.megabytes)
        with tempfile.TemporaryDirectory(dir=options.folder) as text:
            measure.write(__file__, {"megabytes": options.megabytes, "reading": both_ways(text, options.megabytes)})


def require_disk(folder: str | None, megabytes: int) -> None:
    """Exit where the disk has no room for what is written."""
    free, needed = shutil.disk_usage(folder or tempfile.gettempdir()).free // 10**6, round(STORED * megabytes)
    if free < needed:
        sys.exit(f"{megabytes} MB take {needed} MB of disk, of which {free} MB are free. Give --folder another disk.")


def both_ways(folder: str, megabytes: int) -> dict[str, Any]:
    """Write the data, and read it at once and by episode."""
    found: dict[str, Any] = {"written": record(Path(folder), megabytes)}
    for how in ("at once", "by episode"):
        source = folder if how == "by episode" or megabytes <= AT_ONCE else f"{folder}/episodes-0000*"
        found[how] = measure.process([sys.executable, __file__, "--read", how, source], "one", timeout=6 * 3600)
        print(how, found[how], flush=True)
    rates = [found[how]["megabytes a second"] for how in ("by episode", "at once")]
    found["by episode over at once"] = measure.significant(rates[0] / rates[1], 3)
    return found


def writing(algorithm: str, thousands: int) -> dict[str, Any]:
    """CPU seconds within the writer over those of the rest of the run, by format."""
    env, factor, settings = RUNS[algorithm]
    steps = 1000 * factor * thousands
    found: dict[str, Any] = {"steps": steps}
    for form in FORMATS:
        with tempfile.TemporaryDirectory() as folder:
            run = etude.Run(algorithm, env, engine="torch", seed=1, **settings)
            writer, within, rest = Writer(folder, form), 0.0, 0.0
            clock = time.process_time()
            for event in run.steps(steps):
                began = time.process_time()
                writer(event)
                ended = time.process_time()
                within, rest, clock = within + ended - began, rest + began - clock, ended
            found[form] = {"share": round(within / rest, 4), "microseconds a step": round(1e6 * within / steps, 2)}
            found["steps per CPU second"] = round(steps / rest)
    return found


def record(folder: Path, megabytes: int) -> dict[str, float]:
    """Write so much; returns megabytes for each CPU second."""
    rng, began = np.random.default_rng(0), time.process_time()
    count = megabytes * 10**6 // (ROW_BYTES * LENGTH)
    with Writer(folder, spaces=SPACES) as writer:
        for i in range(count):
            if i % (count // 10 or 1) == 0:
                print(f"written {i * LENGTH * ROW_BYTES // 10**6} of {megabytes} MB", flush=True)
            observation = rng.normal(size=(LENGTH + 1, 17)).cumsum(0).astype(np.float32)
            action = rng.uniform(-1, 1, (LENGTH, 6)).astype(np.float32)
            reward = rng.normal(size=LENGTH).astype(np.float32)
            writer.write([Episode(observation, action, reward, False, True, {"log_prob": -reward})])
    stored = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    return {"megabytes a second": round(megabytes / (time.process_time() - began), 1), "stored": round(stored, 1)}


def reading(how: str, source: str) -> dict[str, float]:
    """Read everything; returns megabytes for each CPU second, and the most resident beyond the start."""
    reader, before, began = Reader(source), resident("VmRSS"), time.process_time()
    if how == "at once":
        transitions = len(reader.read())
    else:
        transitions = sum(len(each.reward) for each in reader.episodes(np.random.default_rng(0)))
    rate = transitions * ROW_BYTES / 1e6 / (time.process_time() - began)
    most = resident("VmHWM") - before
    return {"transitions": transitions, "megabytes a second": round(rate, 1), "most resident megabytes": round(most, 1)}


def resident(name: str) -> float:
    """Megabytes of this process: VmRSS now, VmHWM at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1e3


if __name__ == "__main__":
    main()
