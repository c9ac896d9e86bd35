"""Files of data that claim more than they hold, or that lead elsewhere, are refused before memory is taken."""

from __future__ import annotations

import contextlib
import json
import os

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from recordings import dataset

from etude.base.errors import DataError
from etude.base.spaces import Box, Spaces
from etude.offline import read, write

ROWS = 8
SPACES = Spaces(Box(-1, 1, (2,)), Box(-1, 1, (1,)))
COLUMNS = {
    "observations": np.zeros((ROWS, 2), np.float32),
    "actions": np.zeros((ROWS, 1), np.float32),
    "rewards": np.zeros(ROWS, np.float32),
    "terminals": np.zeros(ROWS, bool),
    "timeouts": np.zeros(ROWS, bool),
}


def good(path):
    write(path, dataset("box"))
    return path


def external_file(file, folder):
    (folder / "secret").write_bytes(bytes(80))
    file.create_dataset("extra", (10,), "f8", external=[(str(folder / "secret"), 0, 80)])


def external_pipe(file, folder):
    os.mkfifo(folder / "pipe")
    file.create_dataset("extra", (10,), "f8", external=[(str(folder / "pipe"), 0, 80)])


def external_link(file, folder):
    good(folder / "other.h5")
    file["extra"] = h5py.ExternalLink(str(folder / "other.h5"), "rewards")


def virtual(file, folder):
    good(folder / "other.h5")
    layout = h5py.VirtualLayout((10,), "f4")
    layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "rewards", (10,))
    file.create_virtual_dataset("extra", layout)


def never_written(file, folder):
    file.create_dataset("extra", (20 * 2**30,), "u1", chunks=(2**20,), compression="gzip")


def few_never_written(file, folder):
    file.create_dataset("extra", (ROWS,), "f4", chunks=(ROWS,))


def many_rows(file, folder):
    del file["rewards"]
    file.create_dataset("rewards", (10**12,), "f4", chunks=(2**20,))


def large_chunk(file, folder):
    del file["rewards"]
    file.create_dataset("rewards", (ROWS,), "f4", maxshape=(None,), chunks=(2**28,), compression="gzip")


def nested(file, folder):
    group = file
    for _ in range(100):
        group = group.create_group("g")


def in_itself(file, folder):
    for name in "ab":
        file.create_group(f"g/{name}")
        file[f"g/{name}/again"] = file["g"]


def many_items(file, folder):
    for i in range(1500):
        file.create_group(f"group{i}")


def texts(file, folder):
    file["extra"] = ["text"] * ROWS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (external_file, "'extra' is kept in another file"),
        (external_pipe, "'extra' is kept in another file"),
        (external_link, "'extra' is a link to another file"),
        (virtual, "'extra' is kept in another file"),
        (never_written, "'extra' claims 21,474,836,480 bytes, of which 0 are stored"),
        (few_never_written, "'extra' claims 32 bytes, of which 0 are stored"),
        (many_rows, "'rewards' claims 4,000,000,000,000 bytes"),
        (large_chunk, "'rewards' claims 1,073,741,824 bytes"),
        (nested, "nested over 16 deep"),
        (in_itself, "more than 1000 items, or groups nested over 16 deep"),
        (many_items, "more than 1000 items"),
    ],
)
def test_an_hdf5_file_that_is_not_what_it_claims_is_refused(change, message, tmp_path):
    path = good(tmp_path / "data.h5")
    with h5py.File(path, "a") as file:
        change(file, tmp_path)
    with pytest.raises(DataError, match=message):
        read(path)


def table(**changes):
    arrays = {name: list(values) if values.ndim > 1 else values for name, values in COLUMNS.items()}
    return pyarrow.table({name: pyarrow.array(values) for name, values in {**arrays, **changes}.items()})


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["text" * 1000] * ROWS, "'extra' has the type string, and is passed over"),
        (pyarrow.array(["text"] * ROWS).dictionary_encode(), "'extra' has the type dictionary"),
        ([{"a": 1.0}] * ROWS, "'extra' has the type struct"),
        ([["text"]] * ROWS, r"'extra' has the type list<.*string"),
    ],
)
def test_a_column_of_anything_but_numbers_is_passed_over_or_refused_where_it_is_needed(extra, message, tmp_path):
    path = tmp_path / "data.parquet"
    pyarrow.parquet.write_table(table(extra=extra), path)
    with pytest.warns(UserWarning, match=message):
        found = read(path, SPACES)
    assert "extra" not in found.episodes[0].extras
    pyarrow.parquet.write_table(table(rewards=extra), path)
    with pytest.raises(DataError, match="'rewards' has the type .*; expected numbers"):
        read(path, SPACES)


def test_texts_in_an_hdf5_file_are_not_read(tmp_path):
    path = good(tmp_path / "data.h5")
    with h5py.File(path, "a") as file:
        texts(file, tmp_path)
    with pytest.warns(UserWarning, match="'extra' has dtype object, and is passed over"):
        assert "extra" not in read(path).episodes[0].extras


def test_what_is_below_infos_in_a_parquet_file_is_left_alone(tmp_path):
    path = good(tmp_path / "data.parquet")
    held = pyarrow.parquet.read_table(path)
    held = held.append_column("infos/name", pyarrow.array(["text"] * len(held)))
    pyarrow.parquet.write_table(held, path)
    assert len(read(path)) == 10


def test_a_parquet_file_of_more_rows_than_it_has_room_for_is_refused(tmp_path):
    rows = 10**7
    columns = {name: pyarrow.nulls(rows, pyarrow.float32()).fill_null(0.0) for name in COLUMNS}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "data.parquet", compression="zstd")
    with pytest.raises(DataError, match="claims 400,000,000 bytes"):
        read(tmp_path / "data.parquet")


@pytest.mark.parametrize("suffix", [".h5", ".parquet"])
def test_a_pipe_is_no_file_of_data(suffix, tmp_path):
    os.mkfifo(tmp_path / f"data{suffix}")
    with pytest.raises(DataError, match="it is no regular file"):
        read(tmp_path / f"data{suffix}")


@pytest.mark.parametrize(
    "space",
    [None, 7, [], {}, {"box": 1}, {"discrete": {"n": "x", "start": 0}}, {"tuple": 3},
     {"box": {"low": 0, "high": 1, "shape": [2**40], "dtype": "float32"}}],
)  # fmt: skip
def test_a_space_in_the_metadata_that_cannot_be_is_refused(space, tmp_path):
    path = good(tmp_path / "data.h5")
    with h5py.File(path, "a") as file:
        file.attrs["etude"] = json.dumps({**json.loads(file.attrs["etude"]), "observation_space": space})
    with pytest.raises(DataError, match="metadata, 'etude', has a damaged observation_space"):
        read(path)


@pytest.mark.parametrize("name", ["version", "action_space", "transitions"])
def test_a_long_text_in_the_metadata_makes_no_long_message(name, tmp_path):
    path = good(tmp_path / "data.h5")
    with h5py.File(path, "a") as file:
        about = json.loads(file.attrs["etude"])
        held = {"box": {**about["action_space"]["box"], "low": "x" * 10**5}} if name == "action_space" else "x" * 10**5
        file.attrs["etude"] = json.dumps({**about, name: held})
    with pytest.raises(DataError) as error:
        read(path)
    assert len(str(error.value)) < 1000


@pytest.mark.filterwarnings("error")
def test_a_reward_that_no_float32_holds_is_refused_in_the_error_alone(tmp_path):
    path = good(tmp_path / "data.h5")
    with h5py.File(path, "a") as file:
        rewards = np.asarray(file["rewards"], np.float64)
        del file["rewards"]
        file["rewards"] = np.where(np.arange(len(rewards)) == 3, 1e300, rewards)
    with pytest.raises(DataError, match="'rewards', row 3: inf is not finite"):
        read(path)


@pytest.mark.long_but("4")
@pytest.mark.parametrize("first", [4, 7, 10])
def test_a_parquet_file_with_a_changed_byte_is_refused_or_read_as_it_was(tmp_path, first):
    path = good(tmp_path / "data.parquet")
    data, returns = path.read_bytes(), read(path).returns.tolist()
    for place in range(first, len(data) // 2, 9):  # before the footer
        path.write_bytes(data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :])
        with contextlib.suppress(DataError):
            found = read(path)
            assert found.returns.tolist() == returns, place
