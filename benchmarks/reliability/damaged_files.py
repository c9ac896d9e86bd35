"""Damaged checkpoints: flipped bytes, cut ends, and members that are left out, renamed, repeated or taken from another
run. Each must be refused with CheckpointError; a run may go on without a component that it does not need, or with one
of another run that fits it, as counters do. `python -m benchmarks.reliability.damaged_files [--files N]` writes
damaged_files.json."""

from __future__ import annotations

import argparse
import json
import tempfile
import traceback
from collections import Counter
from pathlib import Path

import numpy as np

import etude
from benchmarks.reliability.runs import RUNS
from etude.base.errors import CheckpointError
from etude.checkpoint.container import inspect, write_container

KINDS = ("flipped", "flipped anew", "cut", "left out", "renamed", "repeated", "of another run")


def damaged(path: Path, other: Path, kind: str, rng: np.random.Generator) -> tuple[bytes, str]:
    """The bytes of a checkpoint, damaged; and the member that was, where one was."""
    data = bytearray(path.read_bytes())
    if kind == "cut":
        return bytes(data[: rng.integers(len(data))]), ""
    if kind.startswith("flipped"):
        for place in rng.integers(len(data), size=1 if kind == "flipped" else 50):
            data[place] ^= int(rng.integers(1, 256))
        return bytes(data), ""
    members, others = _members(path), _members(other)
    name = str(rng.choice(list(members)))
    pairs = list(members.items())
    if kind == "left out":
        pairs = [pair for pair in pairs if pair[0] != name]
    elif kind == "renamed":
        pairs = [(f"x{pair[0]}" if pair[0] == name else pair[0], pair[1]) for pair in pairs]
    elif kind == "repeated":
        pairs.append((name, members[name]))
    else:
        name = str(rng.choice([name for name in members if name in others and members[name] != others[name]]))
        pairs = [(key, others[key] if key == name else value) for key, value in pairs]
    with tempfile.TemporaryFile() as file:
        write_container(file, [(key, [value]) for key, value in pairs], {})
        file.seek(0)
        return file.read(), name


def _members(path: Path) -> dict[str, bytes]:
    data = path.read_bytes()
    return {name: data[offset : offset + size] for name, offset, size, _ in inspect(path).members}


def outcome(path: Path) -> str:
    """refused, or what else happened."""
    try:
        with etude.load(path) as run:
            run.train(16)
            finite = all(np.isfinite(value).all() for value in run.engine.weights().values())
        return "goes on" if finite else "not finite"
    except CheckpointError:
        return "refused"
    except BaseException as error:
        print("".join(traceback.format_exception(error)[-3:]), flush=True)
        return type(error).__name__


def main(files: int, seed: int) -> dict:
    rng, wrong = np.random.default_rng(seed), []
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        saved = {name: Path(folder) / f"{name}.etude" for name in ("dqn", "ppo", "sac", "a3c")}
        for name, path in saved.items():
            with RUNS[name]() as run:
                run.train(48)
                run.save(path)
        (Path(folder) / "damaged").mkdir()
        path = Path(folder) / "damaged" / "run.etude"
        for i in range(files):
            name, kind = str(rng.choice(list(saved))), KINDS[i % len(KINDS)]
            other = saved[str(rng.choice([key for key in saved if key != name]))]
            data, member = damaged(saved[name], other, kind, rng)
            path.write_bytes(data)
            found = outcome(path)
            counts[kind][f"{found} {member}" if found == "goes on" else found] += 1
            if found not in ("refused", "goes on"):
                wrong.append(f"{name}, {kind}, file {i}: {found}")
                print(wrong[-1], flush=True)
    total = sum(counts.values(), Counter())
    return {"files": files, "seed": seed, "outcomes": dict(total), "kinds": counts, "wrong": wrong}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    found = main(given.files, given.seed)
    Path(__file__).with_suffix(".json").write_text(json.dumps(found, indent=2) + "\n")
    print(found["outcomes"])
