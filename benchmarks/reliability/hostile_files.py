"""Damaged and hostile files of recorded data: bytes changed anywhere, and well-formed files that hold what no recording
does, claim more than they hold, or lead elsewhere."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet

Rng = np.random.Generator
COLUMNS = ("observations", "next_observations", "actions", "rewards", "terminals", "timeouts")
HUGE = (2**31, 2**40, 2**62, 2**63 - 1)


def damaged(data: bytes, kind: str, rng: Rng) -> bytes:
    """The bytes of a file, damaged."""
    changed, place = bytearray(data), int(rng.integers(len(data)))
    if kind == "cut":
        return data[:place]
    if kind == "flipped":
        changed[place] ^= int(rng.integers(1, 256))
    elif kind == "flipped in 50 places":
        for each in rng.integers(len(data), size=50):
            changed[each] ^= int(rng.integers(1, 256))
    elif kind == "a stretch of zeros":
        stretch = slice(place, place + int(rng.integers(1, 4096)))
        changed[stretch] = bytes(len(changed[stretch]))
    elif kind == "a stretch of elsewhere":
        size = int(rng.integers(1, 4096))
        source = data[int(rng.integers(len(data))) :][:size]
        changed[place : place + len(source)] = source
    else:
        _declare(changed, rng)
    return bytes(changed)


def _declare(data: bytearray, rng: Rng) -> None:
    """Change a size: a number of eight bytes of HDF5, or one of Parquet's footer, whose last seven bits come first."""
    if data[:4] != b"PAR1":
        numbers = np.frombuffer(bytes(data[: len(data) // 8 * 8]), "<u8")
        places = np.flatnonzero((numbers > 0) & (numbers <= 2**20))
        data[8 * (place := int(rng.choice(places))) : 8 * place + 8] = int(rng.choice(HUGE)).to_bytes(8, "little")
        return
    footer = int.from_bytes(data[-8:-4], "little")
    place, size = len(data) - 8 - int(rng.integers(1, footer + 1)), int(rng.integers(1, 9))
    data[place : place + size] = b"\xff" * (size - 1) + b"\x7f"


DAMAGE = ("flipped", "flipped in 50 places", "cut", "a stretch of zeros", "a stretch of elsewhere", "declared sizes")

# -- metadata, in both formats -----------------------------------------------------------------------------------------


def changed_about(text: str, rng: Rng) -> str:
    """The text about a file, with one value changed, or of another kind altogether."""
    about = json.loads(text)
    others: list[Any] = [
        None,
        -1,
        0.5,
        10**30,
        "x" * 10**6,
        [],
        {},
        {"box": {"shape": [2**40]}},
        {"discrete": {"n": -1}},
    ]
    if rng.random() < 0.3:
        deep = 10 ** int(rng.integers(2, 6))
        return ("[" * deep + "]" * deep, '{"a":' * deep + "1" + "}" * deep, "", "9" * deep)[rng.integers(4)]
    holder, key = about, str(rng.choice(list(about)))
    while isinstance(holder[key], dict) and holder[key] and rng.random() < 0.7:
        holder, key = holder[key], str(rng.choice(list(holder[key])))
    holder[key] = others[rng.integers(len(others))]
    return json.dumps(about)


# -- HDF5 --------------------------------------------------------------------------------------------------------------


def _texts(file: Any, name: str, held: np.ndarray, rng: Rng) -> None:
    file[name] = ["text"] * len(held)


def _structured(file: Any, name: str, held: np.ndarray, rng: Rng) -> None:
    kinds = (
        [("a", "f4"), ("b", "i8")],
        "c16",
        "S8",
        "V16",
        h5py.ref_dtype,
        h5py.vlen_dtype("f4"),
        h5py.enum_dtype({"a": 1}),
    )
    file.create_dataset(name, (len(held),), kinds[rng.integers(len(kinds))])


def _no_rows(file: Any, name: str, held: np.ndarray, rng: Rng) -> None:
    values = (
        h5py.Empty("f4"),
        np.float32(1),
        np.zeros(0, "f4"),
        np.zeros((0, 3), "f4"),
        np.zeros((len(held), 0), "f4"),
    )
    file[name] = values[rng.integers(len(values))]


def _other_lengths(file: Any, name: str, held: np.ndarray, rng: Rng) -> None:
    shapes = (
        (len(held) - 1,),
        (len(held) + 1,),
        (2 * len(held),),
        (len(held), 7),
        (1, len(held)),
        (len(held), 1, 1, 1),
    )
    file[name] = np.zeros(shapes[rng.integers(len(shapes))], "f4")


def _other_numbers(file: Any, name: str, held: np.ndarray, rng: Rng) -> None:
    values = held.astype("f8")
    values[rng.integers(len(held))] = (np.nan, np.inf, -np.inf, 1e300, -7, 0.5)[rng.integers(6)]
    file[name] = values


def _many_rows(file: Any, name: str, held: np.ndarray, rng: Rng) -> None:
    file.create_dataset(name, (10 ** int(rng.integers(8, 16)),), "f4", chunks=(2 ** int(rng.integers(10, 20)),))


def _large_chunk(file: Any, name: str, held: np.ndarray, rng: Rng) -> None:
    shape, chunks = (len(held),), (2 ** int(rng.integers(20, 29)),)
    file.create_dataset(name, shape, "f4", maxshape=(None,), chunks=chunks, compression="gzip")


def _never_written(file: Any, name: str, held: np.ndarray, rng: Rng) -> None:
    file.create_dataset(name, (2 ** int(rng.integers(25, 40)),), "u1", chunks=(2**20,), compression="gzip")


def _kept_elsewhere(file: Any, name: str, held: np.ndarray, rng: Rng) -> None:
    folder = Path(file.filename).parent
    place = ("/dev/zero", "/dev/random", str(folder / "pipe"), "/etc/passwd", str(folder / "missing"))[rng.integers(5)]
    file.create_dataset(name, (len(held),), "f4", external=[(place, 0, 4 * len(held))])


def _linked(file: Any, name: str, held: np.ndarray, rng: Rng) -> None:
    folder = Path(file.filename).parent
    file[name] = (
        h5py.ExternalLink(str(folder / "pipe"), "rewards"),
        h5py.ExternalLink(file.filename, "rewards"),
        h5py.SoftLink(f"/{name}"),
        h5py.SoftLink("/"),
    )[rng.integers(4)]


def _virtual(file: Any, name: str, held: np.ndarray, rng: Rng) -> None:
    layout = h5py.VirtualLayout((len(held),), "f4")
    layout[:] = h5py.VirtualSource(str(Path(file.filename).parent / "pipe"), "rewards", (len(held),))
    file.create_virtual_dataset(name, layout)


def _nested(file: Any, name: str, held: np.ndarray, rng: Rng) -> None:
    group = file
    for _ in range(int(rng.integers(17, 2000))):
        group = group.create_group("g")


def _in_itself(file: Any, name: str, held: np.ndarray, rng: Rng) -> None:
    for each in "abc":
        file.create_group(f"{name}/{each}")
        file[f"{name}/{each}/again"] = file[name]


def _many_items(file: Any, name: str, held: np.ndarray, rng: Rng) -> None:
    for i in range(int(rng.integers(1001, 3000))):
        file.create_group(f"group{i}")


def _missing(file: Any, name: str, held: np.ndarray, rng: Rng) -> None:
    """Leave the column out."""


HDF5: dict[str, Callable[[Any, str, np.ndarray, Rng], None]] = {
    "texts": _texts, "structures": _structured, "no rows": _no_rows, "other lengths": _other_lengths,
    "other numbers": _other_numbers, "huge row counts": _many_rows, "huge chunks": _large_chunk,
    "never written": _never_written, "kept in other files": _kept_elsewhere, "links": _linked, "virtual": _virtual,
    "nested": _nested, "groups in themselves": _in_itself, "many items": _many_items, "missing": _missing,
}  # fmt: skip


def hostile_hdf5(path: Path, kind: str, rng: Rng) -> None:
    """Change a recording at `path`."""
    with h5py.File(path, "a") as file:
        if kind == "metadata":
            file.attrs["etude"] = changed_about(file.attrs["etude"], rng)
            return
        name = str(rng.choice(COLUMNS))
        held = file[name][()]
        del file[name]
        HDF5[kind](file, name, held, rng)


# -- Parquet -----------------------------------------------------------------------------------------------------------


def _others(rows: int, rng: Rng) -> dict[str, Callable[[], Any]]:
    uneven = [[0.0] * (i % 3) for i in range(rows)]
    deep: Any = 1.0
    for _ in range(30):
        deep = [deep]
    return {
        "texts": lambda: pyarrow.array([str(i) * 100 for i in range(rows)]),
        "dictionaries": lambda: pyarrow.array(["text"] * rows).dictionary_encode(),
        "structures": lambda: pyarrow.array([{"a": 1.0, "b": "x"}] * rows),
        "nested": lambda: pyarrow.array([deep] * rows),
        "times": lambda: pyarrow.array([0] * rows, pyarrow.timestamp("ns")),
        "decimals": lambda: pyarrow.array([0] * rows).cast(pyarrow.decimal128(38)),
        "no type": lambda: pyarrow.nulls(rows),
        "no values": lambda: pyarrow.array([None if i == rng.integers(rows) else 1.0 for i in range(rows)]),
        "uneven rows": lambda: pyarrow.array(uneven),
        "missing numbers": lambda: pyarrow.array([[1.0, None]] * rows),
        "other numbers": lambda: pyarrow.array([float(rng.choice([np.nan, np.inf, 1e300, -7.0, 0.5]))] * rows),
        "wide rows": lambda: pyarrow.array([[0.0] * 10_000] * rows),
    }


def hostile_parquet(path: Path, kind: str, rng: Rng) -> None:
    """Write a changed recording in the place of that at `path`."""
    table = pyarrow.parquet.read_table(path)
    about = table.schema.metadata[b"etude"].decode()
    options: dict[str, Any] = {"compression": "zstd"}
    if kind == "metadata":
        table = table.replace_schema_metadata({"etude": changed_about(about, rng)})
    elif kind == "huge row counts":
        rows = 10 ** int(rng.integers(7, 9))
        table = pyarrow.table({name: pyarrow.nulls(rows, pyarrow.bool_()).fill_null(False) for name in COLUMNS[:2]})
    elif kind == "many items":
        table = pyarrow.table({f"column{i}": [0.0] for i in range(int(rng.integers(1001, 3000)))})
    elif kind == "many row groups":
        options["row_group_size"] = 1
    else:
        place = table.schema.get_field_index(str(rng.choice(COLUMNS)))
        other = _others(len(table), rng)[kind]()
        table = table.set_column(place, table.column_names[place], other)
    pyarrow.parquet.write_table(table, path, **options)


PARQUET = (
    *_others(1, np.random.default_rng(0)), "metadata", "huge row counts", "many items", "many row groups"
)  # fmt: skip

# -- paths -------------------------------------------------------------------------------------------------------------

PATHS: dict[str, Callable[[Path], Any]] = {
    "a pipe": lambda path: os.mkfifo(path),
    "a folder": lambda path: path.mkdir(),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a pipe": lambda path: path.symlink_to(path.parent / "pipe"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to nothing": lambda path: path.symlink_to(path.parent / "missing"),
    "an empty file": lambda path: path.touch(),
    "nothing": lambda path: None,
}
