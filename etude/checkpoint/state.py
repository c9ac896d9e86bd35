"""Reading and writing the state of a run as one file."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from etude.base.errors import CheckpointError
from etude.checkpoint import plain, tensors
from etude.checkpoint.container import (
    JSON_LIMIT,
    Damaged,
    Manifest,
    Member,
    MemberReader,
    member_of,
    opened,
    verify,
    write_container,
)
from etude.checkpoint.files import replacing

_COMPONENT = re.compile(r"[A-Za-z0-9_-]{1,64}")


class _Part(NamedTuple):
    component: str
    text: bytes
    arrays: dict[str, np.ndarray]


def write(path: Path | str, state: Mapping[str, Any], meta: Mapping[str, Any] | None = None) -> None:
    """Write `state` to one file, in the place of the one that may be there; atomic and durable.

    state: components by name. Arrays are streamed, not copied.
    meta: a few plain facts that `inspect` shows without reading the file (JSON).

    CheckpointError where the state cannot be stored or the file cannot be written; a file that was there is untouched.
    """
    path = Path(path)
    parts = [_split(name, value) for name, value in state.items()]
    try:
        facts = json.loads(json.dumps(dict(meta or {}), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"The meta data of {path} must be JSON: {error}.") from error
    try:
        with replacing(path) as file:
            write_container(file, _members(parts), facts)
    except ValueError as error:
        raise CheckpointError(f"The checkpoint {path} was not saved: {error}.") from error
    except OSError as error:
        raise CheckpointError(_not_written(path, error, parts)) from error


def _split(name: str, value: Any) -> _Part:
    if not isinstance(name, str) or not _COMPONENT.fullmatch(name):
        raise CheckpointError(f"{name!r} cannot name a component; expected 1 to 64 letters, digits, '_' or '-'.")
    try:
        text, arrays = plain.split(value, tensors.storable)
    except plain.Unstorable as error:
        raise CheckpointError(f"The component {name!r} cannot be stored: {error}.") from error
    if len(text) > JSON_LIMIT:
        raise CheckpointError(
            f"The component {name!r} has {len(text)} bytes outside arrays; at most {JSON_LIMIT} fit. Turn long lists "
            "of numbers into NumPy arrays."
        )
    return _Part(name, text, arrays)


def _members(parts: list[_Part]) -> Iterable[tuple[str, Iterable[bytes | memoryview]]]:
    for name, text, arrays in parts:
        if arrays:
            yield f"{name}.safetensors", tensors.encode(arrays)
        yield f"{name}.json", [text]


def _not_written(path: Path, error: OSError, parts: list[_Part]) -> str:
    needed = sum(len(text) + sum(array.nbytes for array in arrays.values()) for _, text, arrays in parts)
    try:
        free = f"{shutil.disk_usage(path.parent).free / 1e6:,.1f} MB are free there"
    except OSError:
        free = "the directory cannot be read"
    return (
        f"The checkpoint {path} was not saved: {error.strerror or error}. It needs {needed / 1e6:,.1f} MB; {free}. "
        "What was saved before is untouched. Free some space, or check that the directory can be written to."
    )


def read(path: Path | str, expect: Collection[str] = (), skip: Collection[str] = ()) -> dict[str, Any]:
    """The state that was written, after every byte of the file has been verified.

    expect: components that must be there.
    skip: components that are verified and not kept in memory (the replay, where an agent is only evaluated).

    Needs memory for the state once, and runs nothing from the file. CheckpointError where components are missing, or
    where the file is missing, incomplete or damaged: the message names the member, and a complete checkpoint beside it.
    """
    path = Path(path)
    try:
        return read_only(path, expect, skip)
    except Damaged as error:
        raise Damaged(f"{error} {_alternative(path)}") from error


def read_only(path: Path, expect: Collection[str], skip: Collection[str]) -> dict[str, Any]:
    """`read`, without a look at other files where this one is damaged."""
    try:
        with opened(path) as (file, manifest):
            missing = sorted(set(expect) - set(manifest.components))
            if missing:
                raise CheckpointError(
                    f"The checkpoint {path} lacks {', '.join(missing)}; it has {', '.join(manifest.components)}. It "
                    "cannot continue this run; load one that was saved by the same kind of run."
                )
            return _read_components(path, file, manifest, skip)
    except MemoryError as error:
        size = path.stat().st_size / 1e6
        raise CheckpointError(f"The checkpoint {path} needs {size:,.0f} MB of memory, more than is free.") from error


def _read_components(path: Path, file: BinaryIO, manifest: Manifest, skip: Collection[str]) -> dict[str, Any]:
    texts: dict[str, tuple[Member, bytes]] = {}
    arrays: dict[str, dict[str, np.ndarray]] = {}
    for member in manifest.members:
        component, kind = member.name.rsplit(".", 1)
        reader = MemberReader(file, member)
        with member_of(path, member):
            try:
                if component not in skip and kind == "safetensors":
                    arrays[component] = tensors.decode(reader, member.size)
                elif component not in skip:
                    texts[component] = member, reader.read(member.size)
            finally:  # a wrong checksum explains whatever else went wrong
                reader.finish()
    state = {}
    for component, (member, text) in texts.items():
        with member_of(path, member):
            state[component] = plain.join(text, arrays.pop(component, {}))
    if arrays:
        raise Damaged(f"The checkpoint {path} is damaged: member '{next(iter(arrays))}.json' is missing.")
    return state


def _alternative(path: Path) -> str:
    for other in sorted(set(path.parent.glob("*.etude")) - {path}, reverse=True):
        try:
            verify(other)
        except CheckpointError:
            continue
        return f"A complete one beside it is {other}."
    return "There is no complete one beside it."
