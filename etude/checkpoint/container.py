"""The file format of checkpoints, version 1. All numbers are little-endian.

    8 bytes    magic 89 'ETUDE' 0D 0A (a high bit and both line ends: transfers that spoil bytes are noticed at once)
    8 bytes    format version
    ...        the members, one after the other, without gaps
    ...        the manifest, JSON: {"meta": {...}, "members": [{"name", "offset", "size", "sha256"}, ...]}
    8 + 8      offset and size of the manifest
    32 bytes   SHA-256 of the first 16 bytes, the manifest, and its offset and size
    8 bytes    magic 'ETUDEEND'

So every byte is covered by a checksum or compared, a file is written in one pass, and one that was cut off has no end.
A component is a member NAME.json and, where it has arrays, a member NAME.safetensors before it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from etude.base.errors import CheckpointError
from etude.base.files import replacing
from etude.checkpoint import plain, tensors
from etude.checkpoint.plain import parse
from etude.checkpoint.tensors import CHUNK

MAGIC, END_MAGIC = b"\x89ETUDE\r\n", b"ETUDEEND"
VERSION = 1
MANIFEST_LIMIT = 2**20  # bytes
JSON_LIMIT = 32 * 2**20  # bytes

_START, _PLACE, _END = struct.Struct("<8sQ"), struct.Struct("<QQ"), struct.Struct("<QQ32s8s")
_MEMBER_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\.(json|safetensors)")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Damaged(CheckpointError):
    """A file is not what was written, or can no longer be read."""


class _Member(NamedTuple):
    """Where a part of the file is, and what it must be."""

    name: str
    offset: int
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint holds."""

    members: tuple[_Member, ...]
    meta: dict[str, Any]

    @property
    def components(self) -> tuple[str, ...]:
        """The names of the components."""
        return tuple(name.removesuffix(".json") for name, *_ in self.members if name.endswith(".json"))


class _MemberReader:
    """Reads one member in order and hashes what it reads."""

    def __init__(self, file: BinaryIO, member: _Member):
        self._file, self._member, self._left = file, member, member.size
        self._digest = hashlib.sha256()
        file.seek(member.offset)

    def readinto(self, view: memoryview) -> None:
        """Fill `view`, which has at most what is left of the member; ValueError where the file has ended."""
        self._left -= len(view)
        for start in range(0, len(view), CHUNK):  # hashed while it is still in the processor's cache
            piece = view[start : start + CHUNK]
            if self._file.readinto(piece) != len(piece):  # type: ignore[attr-defined]
                raise ValueError("the file ends within it")
            self._digest.update(piece)

    def read(self, size: int) -> bytes:
        """The next `size` bytes, as `readinto`."""
        data = bytearray(size)
        self.readinto(memoryview(data))
        return bytes(data)

    def finish(self) -> None:
        """Read what is left; ValueError unless the whole member is what was written."""
        buffer = memoryview(bytearray(min(CHUNK, self._left)))
        while self._left:
            self.readinto(buffer[: min(CHUNK, self._left)])
        if self._digest.hexdigest() != self._member.sha256:
            raise ValueError("it does not match its checksum")


def write_container(
    file: BinaryIO, members: Iterable[tuple[str, Iterable[bytes | memoryview]]], meta: dict[str, Any]
) -> None:
    """Write a checkpoint in one pass. members: names, and their bytes in pieces."""
    start = _START.pack(MAGIC, VERSION)
    file.write(start)
    position, table = len(start), []
    for name, pieces in members:
        digest, begin = hashlib.sha256(), position
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
            position += len(piece)
        table.append(_Member(name, begin, position - begin, digest.hexdigest())._asdict())
    manifest = json.dumps({"meta": meta, "members": table}, separators=(",", ":"), allow_nan=False).encode()
    if len(manifest) > MANIFEST_LIMIT:
        raise ValueError(f"its meta takes {len(manifest)} of at most {MANIFEST_LIMIT} bytes; store it as a component")
    place = _PLACE.pack(position, len(manifest))
    digest = hashlib.sha256(start + manifest + place)
    file.write(manifest + place + digest.digest() + END_MAGIC)


@contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, Manifest]]:
    """A checkpoint open for reading and its manifest, which has been verified; the members have not."""
    if not path.is_file():
        raise CheckpointError(f"There is no checkpoint {path}. Give the path of a .etude file.")
    try:
        with path.open("rb") as file:
            yield file, _read_manifest(file, path)
    except OSError as error:
        raise Damaged(f"The checkpoint {path} cannot be read: {error.strerror or error}.") from error


@contextmanager
def _member_of(path: Path, member: _Member) -> Iterator[None]:
    """Turns ValueError into an error that names the file and the member."""
    try:
        yield
    except ValueError as error:
        raise Damaged(f"The checkpoint {path} is damaged: member {member.name!r}: {error}.") from error


def _read_manifest(file: BinaryIO, path: Path) -> Manifest:
    start = file.read(_START.size)
    size = os.fstat(file.fileno()).st_size
    if start[: len(MAGIC)] != MAGIC:
        raise Damaged(f"{path} is not an etude checkpoint, or its first bytes are damaged.")
    if size < _START.size + _END.size:
        raise Damaged(f"The checkpoint {path} is incomplete: it was cut off after {size} bytes.")
    version = _START.unpack(start)[1]
    if version != VERSION:
        raise Damaged(
            f"The checkpoint {path} has format version {version}; this etude reads version {VERSION}. If a newer etude "
            "wrote it, install that: pip install --upgrade etude"
        )
    file.seek(size - _END.size)
    offset, length, digest, magic = _END.unpack(file.read(_END.size))
    if magic != END_MAGIC:
        raise Damaged(f"The checkpoint {path} is incomplete: its end is missing.")
    if length > MANIFEST_LIMIT or offset < _START.size or offset + length + _END.size != size:
        raise Damaged(f"The checkpoint {path} is damaged: its manifest is not where it should be.")
    file.seek(offset)
    text = file.read(length)
    if hashlib.sha256(start + text + _PLACE.pack(offset, length)).digest() != digest:
        raise Damaged(f"The checkpoint {path} is damaged: its manifest does not match its checksum.")
    try:
        return _manifest(parse(text), offset)
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"The checkpoint {path} has a malformed manifest: {error}.") from error


def _manifest(data: Any, end: int) -> Manifest:
    position, members = _START.size, []
    for entry in data["members"]:
        member = _Member(entry["name"], entry["offset"], entry["size"], entry["sha256"])
        if not _MEMBER_NAME.fullmatch(member.name) or not _SHA256.fullmatch(member.sha256):
            raise ValueError(f"member {member.name!r} cannot be")
        counts = type(member.offset) is int and type(member.size) is int
        if not counts or member.size < 0 or member.offset != position:
            raise ValueError(f"member {member.name!r} does not follow the one before it")
        if member.name.endswith(".json") and member.size > JSON_LIMIT:
            raise ValueError(f"member {member.name!r} claims {member.size} bytes")
        position += member.size
        members.append(member)
    if position != end or len({member.name for member in members}) != len(members):
        raise ValueError("its members do not fill the file, or occur twice")
    if not isinstance(data["meta"], dict):
        raise ValueError("its meta is not a table")
    return Manifest(tuple(members), data["meta"])


def inspect(path: Path | str) -> Manifest:
    """What a checkpoint holds, without reading its members.

    CheckpointError where there is none or its manifest is damaged.
    """
    with opened(Path(path)) as (_, manifest):
        return manifest


def verify(path: Path | str) -> Manifest:
    """Read every byte of a checkpoint and compare the checksums; memory use is constant.

    CheckpointError where it is missing, incomplete or damaged.
    """
    path = Path(path)
    with opened(path) as (file, manifest):
        for member in manifest.members:
            with _member_of(path, member):
                _MemberReader(file, member).finish()
    return manifest


_COMPONENT = re.compile(r"[A-Za-z0-9_-]{1,64}")


def write(path: Path | str, state: Mapping[str, Any], meta: Mapping[str, Any] | None = None) -> None:
    """Write `state` to one file, in the place of the one that may be there; atomic and durable.

    state: components by name. Arrays are streamed, not copied.
    meta: a few plain facts that `inspect` shows without reading the file (JSON).

    CheckpointError where the state cannot be stored or the file cannot be written; a file that was there is untouched.
    """
    path = Path(path)
    parts = {name: _split(name, value) for name, value in state.items()}
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
        needed = sum(len(text) + sum(array.nbytes for array in arrays.values()) for text, arrays in parts.values())
        try:
            free = f"{shutil.disk_usage(path.parent).free / 1e6:,.1f} MB are free there"
        except OSError:
            free = "the directory cannot be read"
        raise CheckpointError(
            f"The checkpoint {path} was not saved: {error.strerror or error}. It needs {needed / 1e6:,.1f} MB; {free}. "
            "What was saved before is untouched. Free some space, or check that the directory can be written to."
        ) from error


def _split(name: str, value: Any) -> tuple[bytes, dict[str, np.ndarray]]:
    """A component as JSON text, and the arrays that it refers to."""
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
    return text, arrays


def _members(
    parts: Mapping[str, tuple[bytes, dict[str, np.ndarray]]],
) -> Iterable[tuple[str, Iterable[bytes | memoryview]]]:
    for name, (text, arrays) in parts.items():
        if arrays:
            yield f"{name}.safetensors", tensors.encode(arrays)
        yield f"{name}.json", [text]


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
    texts: dict[str, tuple[_Member, bytes]] = {}
    arrays: dict[str, dict[str, np.ndarray]] = {}
    for member in manifest.members:
        component, kind = member.name.rsplit(".", 1)
        reader = _MemberReader(file, member)
        with _member_of(path, member):
            try:
                if component not in skip and kind == "safetensors":
                    arrays[component] = tensors.decode(reader, member.size)
                elif component not in skip:
                    texts[component] = member, reader.read(member.size)
            finally:  # a wrong checksum explains whatever else went wrong
                reader.finish()
    state = {}
    for component, (member, text) in texts.items():
        with _member_of(path, member):
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
