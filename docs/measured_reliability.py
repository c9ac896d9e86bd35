"""What the page on reliability says of measurements: from benchmarks/reliability/*.json, where there are some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from markdown_table import table
from measured import NOT_MEASURED, read

STRIKES = ("SIGKILL", "SIGTERM", "SIGSTOP", "exception")


def _held(name: str) -> dict[str, Any]:
    return {key: value for key, value in read(f"reliability/{name}").items() if key != "about"}


def kills() -> str:
    """Kills by engine, and what was found."""
    names = ("kills_of_trainers", "killed_while_writing", "trainings_compared", "kills_of_workers", "workers_replaced")
    rows = [
        [engine, *(f"{found.get(name, 0):,}" for name in names), str(len(found["wrong"]))]
        for engine, found in _held("kills").items()
    ]
    head = ["engine", "trainers killed", "while writing", "trainings compared", "workers killed", "replaced", "faults"]
    return table(head, rows) if rows else NOT_MEASURED


def groups() -> str:
    """What struck groups of processes, and what was found."""
    rows = []
    for name, found in _held("groups").items():
        numbers = [f"{found[strike]:,}" for strike in (*STRIKES, "trainings", "equal")]
        rows.append([name, *numbers, f"{found['longest_seconds']:g}", str(len(found["wrong"]))])
    head = ["group", *STRIKES, "trainings", "equal", "seconds to its end, at most", "faults"]
    return table(head, rows) if rows else NOT_MEASURED


def checkpoints() -> str:
    """Damaged and changed checkpoints."""
    return _files({"damaged": _held("damaged_files"), "one value changed": _held("changed_values")})


def data() -> str:
    """Damaged and hostile recordings."""
    found = _held("hostile_data")
    if not found:
        return NOT_MEASURED
    cost = f"{found['most_seconds_to_refuse']:g} s of processor time and {found['most_mb_to_refuse']:g} MB"
    return f"{_files({'HDF5 and Parquet': found})}\nRefusing a file took {cost} at most.\n"


def _files(found: dict[str, dict[str, Any]]) -> str:
    rows = []
    for name, held in found.items():
        if held:
            refused = held["outcomes"].get("refused", 0)
            other = held["outcomes"].get("read, other numbers", 0)
            rest = held["files"] - refused - len(held["wrong"])
            taken = f"{rest:,}" + (f" (other numbers: {other})" if other else "")
            rows.append([name, f"{held['files']:,}", f"{refused:,}", taken, str(len(held["wrong"]))])
    return table(["what", "files", "refused", "read", "faults"], rows) if rows else NOT_MEASURED


def environments() -> str:
    """Faulty environments by the place in which they run."""
    counts = _held("faulty_environments").get("counts", {})
    rows = [[place, str(found["cases"]), str(found["passed"])] for place, found in counts.items()]
    return table(["where", "cases", "passed"], rows) if rows else NOT_MEASURED


def soak() -> str:
    """How much a long run grows after its first sample."""
    rows = []
    for name, found in _held("soak").items():
        samples = [sample for sample in found["samples"] if sample["trainer"]]
        if samples:
            grown = [
                f"{samples[0]['trainer'][what]:g} to {samples[-1]['trainer'][what]:g}"
                for what in ("rss_mb", "descriptors", "threads")
            ]
            rows.append([name, f"{found['minutes']:g}", f"{samples[-1]['step']:,}", *grown])
    head = ["run", "minutes", "environment steps", "MB of the trainer", "descriptors", "threads"]
    return table(head, rows) if rows else NOT_MEASURED


MARKS: dict[str, Callable[[], str]] = {
    "kills": kills, "groups": groups, "checkpoints": checkpoints, "data": data, "environments": environments,
    "soak": soak,
}  # fmt: skip
