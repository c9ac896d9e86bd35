"""What is written is what is read: every bit, in one file that the safetensors library can read parts of."""

from __future__ import annotations

import tracemalloc
from collections import OrderedDict, namedtuple
from pathlib import Path

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import safetensors.numpy
from checkpoint_states import DTYPES, same, small_state
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from etude import checkpoint
from etude.base.errors import CheckpointError
from etude.checkpoint import tensors


def any_bits(dtype: str) -> st.SearchStrategy[np.ndarray]:
    """Arrays of any shape and any bit pattern, NaN payloads included, some of them not contiguous."""
    width = np.dtype(dtype).itemsize
    bits = hnp.arrays(
        "?" if dtype == "?" else f"u{width}", hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    )
    looks = st.sampled_from([lambda a: a, lambda a: a.T, lambda a: a[..., ::-1] if a.ndim else a])
    orders = st.sampled_from(["<", ">"])
    arrays = st.builds(lambda array, order: array.view(np.dtype(dtype).newbyteorder(order)), bits, orders)
    return st.builds(lambda array, look: look(array), arrays, looks)


ARRAYS = st.one_of([any_bits(dtype) for dtype in DTYPES])
SCALARS = ARRAYS.filter(lambda array: array.size and array.dtype.isnative).map(lambda array: array.reshape(-1)[0])
KEYS = st.text(max_size=6) | st.sampled_from(["$array", "$", "a/b", "~0", "", "__metadata__", "0"])
LEAVES = ARRAYS | SCALARS | st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
TREES = st.recursive(
    LEAVES,
    lambda tree: st.dictionaries(KEYS, tree, max_size=4) | st.lists(tree, max_size=4) | st.tuples(tree, tree),
    max_leaves=10,
)
STATES = st.dictionaries(st.from_regex(r"[A-Za-z0-9_-]{1,12}", fullmatch=True), TREES, max_size=3)


@pytest.mark.parametrize("examples", [50, pytest.param(150, marks=pytest.mark.long)])
def test_any_state_comes_back_bit_for_bit(tmp_path: Path, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(state=STATES)
    def comes_back(state: dict) -> None:
        checkpoint.write(tmp_path / "any.etude", state)
        assert same(state, checkpoint.read(tmp_path / "any.etude"))

    comes_back()


def test_signalling_nans_empty_and_single_arrays_keep_their_bits(tmp_path: Path) -> None:
    state = {
        "x": {
            "nan": np.array([0x7F800001, 0xFFC12345, 0x80000000], np.uint32).view(np.float32),
            "zero_dimensions": np.array(7, np.int64),
            "empty": np.zeros((3, 0, 2), np.float16),
            "scalar": np.float32(1.5),
            "integer": 2**200,
        }
    }
    checkpoint.write(tmp_path / "x.etude", state)
    assert same(state, checkpoint.read(tmp_path / "x.etude"))


def test_keys_that_look_like_places_are_not_mixed_up(tmp_path: Path) -> None:
    arrays = iter([np.array([i]) for i in range(9)])
    keys = ("a/b", "a~1b", "~1", "/", "a~b", "a~0b")
    state = {"x": {"a": {"b": next(arrays)}, **{key: next(arrays) for key in keys}}}
    checkpoint.write(tmp_path / "x.etude", state)
    assert same(state, checkpoint.read(tmp_path / "x.etude"))


def test_arrays_that_were_read_can_be_written_to_and_share_no_memory(tmp_path: Path) -> None:
    shared = np.arange(4.0)
    checkpoint.write(tmp_path / "x.etude", {"x": [shared, shared]})
    first, second = checkpoint.read(tmp_path / "x.etude")["x"]
    first[0] = 9
    assert second[0] == 0


def test_larger_arrays_than_a_piece_in_every_memory_layout(tmp_path: Path) -> None:
    base = np.random.default_rng(0).integers(0, 255, (1500, 1200), np.uint8)
    state = {
        "x": {"c": base, "fortran": base.T, "strided": base[::2, ::-3], "wide": base.astype(">f8"), "row": base[:1]}
    }
    assert base.nbytes > tensors.CHUNK
    checkpoint.write(tmp_path / "x.etude", state)
    assert same(state, checkpoint.read(tmp_path / "x.etude"))


def test_the_safetensors_library_reads_our_members_and_we_read_its_files(tmp_path: Path) -> None:
    arrays = {f"a{dtype}": np.arange(6).reshape(2, 3).astype(dtype) for dtype in DTYPES}
    ours = safetensors.numpy.load(b"".join(tensors.encode(arrays)))
    assert same(arrays, {name: ours[name] for name in arrays})

    class Source:
        data = memoryview(safetensors.numpy.save(arrays, {"from": "the library"}))

        def read(self, size: int) -> bytes:
            piece, self.data = self.data[:size], self.data[size:]
            return bytes(piece)

        def readinto(self, view: memoryview) -> None:
            view[:] = self.read(len(view))

    theirs = tensors.decode(Source(), len(Source.data))
    assert same(arrays, {name: theirs[name] for name in arrays})


def test_writing_copies_no_array_and_reading_needs_memory_once(tmp_path: Path) -> None:
    size = 32 * 2**20
    state = {"replay": {"rows": np.ones(size // 8).reshape(2, -1).T, "flags": np.ones(size, bool)}}
    tracemalloc.start()
    checkpoint.write(tmp_path / "x.etude", state)
    writing = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    kept = checkpoint.read(tmp_path / "x.etude")
    reading = tracemalloc.get_traced_memory()[1]
    del kept
    tracemalloc.reset_peak()
    checkpoint.read(tmp_path / "x.etude", skip={"replay"})
    skipping = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert writing < 0.25 * size  # bytes beyond the state itself
    assert reading < 1.1 * 2 * size  # the state is 2 * size
    assert skipping < 0.25 * size


def test_meta_and_components_are_shown_without_reading_the_members(tmp_path: Path) -> None:
    path = tmp_path / "x.etude"
    checkpoint.write(path, small_state(), {"step": 3, "algorithm": "dqn"})
    manifest = checkpoint.inspect(path)
    assert manifest.meta == {"step": 3, "algorithm": "dqn"}
    assert manifest.components == ("engine", "replay", "counters")
    assert sum(member.size for member in manifest.members) < path.stat().st_size


def test_missing_components_are_listed(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "x.etude", {"engine": 1, "counters": 2})
    with pytest.raises(CheckpointError, match=r"lacks normaliser, replay; it has engine, counters\."):
        checkpoint.read(tmp_path / "x.etude", expect={"engine", "replay", "normaliser"})
    assert checkpoint.read(tmp_path / "x.etude", expect={"engine"}) == {"engine": 1, "counters": 2}


CYCLE: list = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, np.array([None])]}, "'x' cannot be stored: /a/1 is an array of dtype object"),
        (np.array(["text"]), "it is an array of dtype <U4"),
        (np.array([1j]), "dtype complex128"),
        (np.zeros(2, [("a", "f4")]), "expected booleans, integers, or floats"),
        (np.ma.masked_array([1, 2], [True, False]), "masked array"),
        ({"a": {1: 2}}, "/a is a dict with the key 1; expected keys that are strings"),
        ([object()], "/0 is a builtins.object; expected NumPy arrays"),
        (b"bytes", "builtins.bytes"),
        (namedtuple("Pair", "a b")(1, 2), "Pair"),
        (lambda: 1, "builtins.function"),
        (1 << 9000, "an integer of 9001 bits"),
        (CYCLE, "contains itself"),
    ],
)
def test_what_cannot_be_stored_is_named_and_writes_nothing(tmp_path: Path, value: object, message: str) -> None:
    with pytest.raises(CheckpointError) as error:
        checkpoint.write(tmp_path / "x.etude", {"x": value})
    assert message in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_dicts_of_a_subclass_come_back_as_plain_dicts(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "x.etude", {"x": OrderedDict(b=1, a=2)})
    assert same(checkpoint.read(tmp_path / "x.etude"), {"x": {"b": 1, "a": 2}})


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a.b", "x" * 65, 3])
def test_component_names_are_plain_words(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="cannot name a component"):
        checkpoint.write(tmp_path / "x.etude", {name: 1})


def test_meta_must_be_json_and_short(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="must be JSON"):
        checkpoint.write(tmp_path / "x.etude", {}, {"a": np.ones(2)})
    with pytest.raises(CheckpointError, match="store it as a component"):
        checkpoint.write(tmp_path / "x.etude", {}, {"a": "x" * 2**20})
    assert list(tmp_path.iterdir()) == []
