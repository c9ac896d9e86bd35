"""Files that were made to harm: right checksums, wrong contents. All are refused, cheaply, and nothing of them runs."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_states import same, small_state

from etude import checkpoint
from etude.base.errors import CheckpointError
from etude.checkpoint.container import END_MAGIC, MAGIC, write_container

PLENTY = 2**62


def forged(members: dict[str, bytes]) -> bytes:
    """A checkpoint with right checksums around any members."""
    file = io.BytesIO()
    write_container(file, ((name, [data]) for name, data in members.items()), {})
    return file.getvalue()


def forged_manifest(manifest: Any, body: bytes = b"") -> bytes:
    """A checkpoint with any manifest, rightly signed."""
    text = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
    start = MAGIC + struct.pack("<Q", 1)
    place = struct.pack("<QQ", len(start) + len(body), len(text))
    return start + body + text + place + hashlib.sha256(start + text + place).digest() + END_MAGIC


def tensor_member(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(dtype: Any = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict:
    return {"": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


class Payload:
    def __reduce__(self) -> tuple:
        return (eval, ("__import__('pathlib').Path('canary').write_text('x')",))


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Payload()))
        archive.writestr("../../canary", "x")
    return file.getvalue()


def object_arrays() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([Payload()], object), allow_pickle=True)
    return file.getvalue()


TENSORS = {
    "a header longer than the file": tensor_member({}, length=PLENTY),
    "a header of the largest length": tensor_member({}, length=2**64 - 1),
    "no header": b"",
    "half a length": b"\0\0\0",
    "a header that is no table": tensor_member([1, 2]),
    "a header that is no JSON": tensor_member(b"__import__('os')"),
    "a header in another encoding": tensor_member(json.dumps(tensor()).encode("utf-16"), b"1234"),
    "a tensor twice": tensor_member(
        f'{{"":{json.dumps(tensor()[""])},"":{json.dumps(tensor()[""])}}}'.encode(), b"1234"
    ),
    "a huge tensor": tensor_member(tensor(shape=[2**40], offsets=[0, 2**42]), b"1234"),
    "a huge tensor that claims few bytes": tensor_member(tensor(shape=[2**40]), b"1234"),
    "a product that overflows 64 bits": tensor_member(tensor(shape=[2**32, 2**32, 2**32, 1]), b"1234"),
    "a huge dimension beside an empty one": tensor_member(tensor(shape=[2**62, 2**62, 0], offsets=[0, 0])),
    "a dimension beyond 64 bits": tensor_member(tensor(shape=[2**70, 0], offsets=[0, 0])),
    "a hundred dimensions": tensor_member(tensor(shape=[1] * 100), b"1234"),
    "a negative dimension": tensor_member(tensor(shape=[-1, -1]), b"1234"),
    "dimensions that are no counts": tensor_member(tensor(shape=[True]), b"1234"),
    "a shape that is text": tensor_member(tensor(shape="1"), b"1234"),
    "negative offsets": tensor_member(tensor(offsets=[-4, 0]), b"1234"),
    "offsets backwards": tensor_member(tensor(offsets=[4, 0]), b"1234"),
    "offsets beyond the member": tensor_member(tensor(offsets=[4, 8]), b"1234"),
    "three offsets": tensor_member(tensor(offsets=[0, 4, 8]), b"1234"),
    "offsets that are fractions": tensor_member(tensor(offsets=[0.0, 4.0]), b"1234"),
    "bytes that belong to no tensor": tensor_member(tensor(), b"12345678"),
    "overlapping tensors": tensor_member(tensor() | {"b": tensor()[""]}, b"1234"),
    "a gap between tensors": tensor_member(tensor() | {"b": tensor(offsets=[8, 12])[""]}, b"123456789012"),
    "an array of objects": tensor_member(tensor(dtype="O", shape=[1], offsets=[0, 8]), b"12345678"),
    "a dtype to evaluate": tensor_member(tensor(dtype="__import__('os').getcwd()"), b"1234"),
    "a dtype that is a list": tensor_member(tensor(dtype=["F32"]), b"1234"),
    "an entry that is no table": tensor_member({"": 3}),
    "a pickle": pickle.dumps(Payload()),
    "a zip with a pickle": zipped(),
    "a NumPy file of objects": object_arrays(),
}
GOOD = tensor_member(tensor(), b"1234")
TEXTS = {
    "a pickle": pickle.dumps(Payload()),
    "an expression": b"__import__('pathlib').Path('canary').write_text('x')",
    "deep lists": b"[" * 10**6 + b"]" * 10**6,
    "deep dicts": b'{"a":' * 10**5 + b"1" + b"}" * 10**5,
    "an endless number": b"9" * 10**6,
    "not a number": b'[NaN,{"$array":""}]',
    "another encoding": '{"$array":""}'.encode("utf-16"),
    "a key twice": b'{"a":1,"a":{"$array":""}}',
    "an unknown tag": b'[{"$object":"os.system"},{"$array":""}]',
    "a tag among keys": b'{"$array":"","b":1}',
    "an array that is not there": b'{"$array":"nothing"}',
    "an array twice": b'[{"$array":""},{"$array":""}]',
    "an array that nothing refers to": b"1",
    "a list as a name": b'{"$array":[]}',
    "a pair of one": b'[{"$dict":[["a"]]},{"$array":""}]',
    "a pair twice": b'{"$dict":[["$a",1],["$a",{"$array":""}]]}',
    "a float of spaces": b'[{"$float":"                "},{"$array":""}]',
    "a float that is no hex": b'[{"$float":"zzzzzzzzzzzzzzzz"},{"$array":""}]',
    "a tuple of text": b'[{"$tuple":"abc"},{"$array":""}]',
}
SHA, ZEROS = hashlib.sha256(b"").hexdigest(), hashlib.sha256(b"00").hexdigest()


def entry(name: Any = "x.json", offset: Any = 16, size: Any = 0, sha256: Any = SHA) -> dict:
    return {"name": name, "offset": offset, "size": size, "sha256": sha256}


MANIFESTS: dict[str, Any] = {
    "no table": [],
    "no members": {"meta": {}},
    "no meta": {"members": []},
    "meta that is text": {"meta": "x", "members": []},
    "members that are text": {"meta": {}, "members": "x"},
    "a member without a checksum": {"meta": {}, "members": [{"name": "x.json", "offset": 16, "size": 0}]},
    "a member that is bigger than the file": {"meta": {}, "members": [entry(size=PLENTY)]},
    "a negative size": {"meta": {}, "members": [entry(size=8), entry("y.json", 24, -8)]},
    "an offset before the members": {"meta": {}, "members": [entry(offset=0)]},
    "a size that is a fraction": {"meta": {}, "members": [entry(size=0.0)]},
    "a size that is true": {"meta": {}, "members": [entry(size=False)]},
    "a name that leaves the folder": {"meta": {}, "members": [entry("../../canary.json")]},
    "an absolute name": {"meta": {}, "members": [entry("/tmp/canary.json")]},
    "a name that is a number": {"meta": {}, "members": [entry(3)]},
    "a pickle by name": {"meta": {}, "members": [entry("x.pkl")]},
    "a name twice": {"meta": {}, "members": [entry(), entry()]},
    "a checksum that is a number": {"meta": {}, "members": [entry(sha256=3)]},
    "no JSON": b"__import__('os')",
    "deep lists": b"[" * 10**5,
}


def refused(path: Path, data: bytes) -> str:
    """The message with which a file is refused; it may cost little more memory than the file has."""
    path.write_bytes(data)
    del data
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError) as error:
            checkpoint.read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 * 2**20 + 2 * path.stat().st_size
    assert not Path("canary").exists()
    return str(error.value)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "x.etude"


@pytest.mark.parametrize("what", TENSORS)
def test_tensors_are_refused_with(what: str, path: Path) -> None:
    message = refused(path, forged({"x.safetensors": TENSORS[what], "x.json": b'{"$array":""}'}))
    assert "member 'x.safetensors'" in message


@pytest.mark.parametrize("what", TEXTS)
def test_json_is_refused_with(what: str, path: Path) -> None:
    message = refused(path, forged({"x.safetensors": GOOD, "x.json": TEXTS[what]}))
    assert "member 'x.json'" in message


def test_the_forged_members_would_be_read_if_they_were_right(path: Path) -> None:
    path.write_bytes(forged({"x.safetensors": GOOD, "x.json": b'{"$array":""}'}))
    assert checkpoint.read(path)["x"].tobytes() == b"1234"


@pytest.mark.parametrize("what", MANIFESTS)
def test_manifests_are_refused_with(what: str, path: Path) -> None:
    assert f"{path} has a malformed manifest" in refused(path, forged_manifest(MANIFESTS[what]))


def test_headers_of_tensors_are_bounded_before_they_are_read(path: Path) -> None:
    for member in (
        tensor_member({}, length=3),
        tensor_member({}, length=PLENTY),
        tensor_member(b"{" + b" " * 2**24 + b"}"),
    ):
        assert "its header claims" in refused(path, forged({"x.safetensors": member, "x.json": b"1"}))


def test_bytes_that_no_member_covers_are_refused(path: Path) -> None:
    both = {"meta": {}, "members": [entry(size=2, sha256=ZEROS), entry("y.json", size=2, sha256=ZEROS)]}
    assert "malformed manifest" in refused(path, forged_manifest({"meta": {}, "members": []}, b"hidden"))
    assert "malformed manifest" in refused(path, forged_manifest(both, b"00??"))


def test_tensors_without_their_json_are_refused(path: Path) -> None:
    assert "member 'x.json' is missing" in refused(path, forged({"x.safetensors": GOOD}))


def test_a_manifest_or_json_of_gigabytes_is_refused_before_it_is_read(path: Path) -> None:
    start = MAGIC + struct.pack("<Q", 1)
    size = 3 * 2**30
    with path.open("wb") as file:  # a hole takes no space on the disk
        file.write(start)
        file.seek(size)
        file.write(struct.pack("<QQ", 16, size - 16) + bytes(32) + END_MAGIC)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="manifest is not where it should be"):
        checkpoint.read(path)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    long = {"meta": {}, "members": [entry(size=size)]}
    assert "claims" in refused(path, forged_manifest(long))


def test_members_that_are_empty_lists_without_end_cost_no_more_than_their_limit_allows(path: Path) -> None:
    with pytest.raises(CheckpointError, match="claims"):
        path.write_bytes(forged({"x.json": b"[" + b"[]," * (12 * 2**20) + b"0]"}))
        checkpoint.read(path)


WATCH = """
import sys
import numpy as np
from etude import checkpoint
from etude.base.errors import CheckpointError

seen = []
watching = True

def hook(event, arguments):
    if watching:
        seen.append((event, [str(argument) for argument in arguments[:3]]))

sys.addaudithook(hook)
for path in sys.argv[1:]:
    try:
        checkpoint.read(path)
    except CheckpointError:
        pass
watching = False
import json
print(json.dumps(seen))
"""


def watched(paths: Iterable[Path]) -> list[tuple[str, list[str]]]:
    """What a new process does, as the interpreter reports it, while it reads these files."""
    command = [sys.executable, "-c", WATCH, *map(str, paths)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_reading_runs_nothing_imports_nothing_and_opens_nothing_for_writing(path: Path) -> None:
    good = path.with_name("good.etude")
    checkpoint.write(good, small_state())
    files = [good]
    for i, (members, name) in enumerate([(TENSORS, "x.safetensors"), (TEXTS, "x.json")]):
        other = {"x.safetensors": GOOD, "x.json": b'{"$array":""}'}
        for j, data in enumerate(members.values()):
            files.append(path.with_name(f"{i}_{j}.bad"))
            files[-1].write_bytes(forged({**other, name: data}))
    events = watched(files)
    opened = [arguments for event, arguments in events if event == "open"]
    assert str(good) in [arguments[0] for arguments in opened]
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    assert not [arguments for arguments in opened if int(arguments[2]) & writing]
    assert {event for event, _ in events} == {"open", "pathlib.Path.glob", "os.scandir"}  # a look for a complete one
    assert same(checkpoint.read(good), small_state())
