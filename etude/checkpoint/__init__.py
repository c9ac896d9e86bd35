"""Checkpoints: one file that holds a whole run and nothing that could run.

    write("run.etude", {"engine": engine.state(), "replay": buffer.state(), "counters": {"step": 50_000}})
    state = read("run.etude", expect={"engine", "replay", "counters"})

A state is a dict of components; a component is dicts, lists and tuples of NumPy arrays, numbers, strings, booleans and
None. It comes back as it was given, bit for bit. The file format is described in `container`.
"""

from etude.base.files import TEMPORARY, Lock, Locked, discard, replacing, temporary_beside
from etude.checkpoint.container import Damaged, Manifest, inspect, read, read_only, verify, write

__all__ = [
    "TEMPORARY", "Damaged", "Lock", "Locked", "Manifest",
    "discard", "inspect", "read", "read_only", "replacing", "temporary_beside", "verify", "write",
]  # fmt: skip
