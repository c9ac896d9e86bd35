"""Files of episodes: what is written is read, D4RL's files are read rightly, and bad ones say where."""

from __future__ import annotations

import dataclasses
import json
import sys

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from recordings import SPACES, dataset, episode

from etude.base import trees
from etude.base.errors import ConfigError, DataError, MissingExtra
from etude.base.spaces import Box, Discrete, Spaces
from etude.offline import Dataset, read, write

FORMATS = (".h5", ".parquet")
each_format = pytest.mark.parametrize("suffix", FORMATS)


def assert_same(one, other, tolerance=0.0):
    pairs = zip(trees.items(one), trees.items(other), strict=True)
    for (path, mine), (same_path, theirs) in pairs:
        assert path == same_path and mine.dtype == theirs.dtype and mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance)


@each_format
@pytest.mark.parametrize("kind", SPACES)
def test_episodes_that_are_written_are_read_again(tmp_path, suffix, kind):
    given, path = dataset(kind), tmp_path / f"codes{suffix}"
    write(path, given)
    found = read(path)
    assert (found.source, found.environment, found.dropped) == (given.source, "Codes-v0", 0)
    assert len(found) == len(given) == 10 and found.returns.tolist() == given.returns.tolist()
    for mine, theirs in zip(found.episodes, given.episodes, strict=True):
        assert (mine.terminated, mine.truncated) == (theirs.terminated, theirs.truncated)
        assert_same(mine.observation, theirs.observation)
        assert_same(mine.reward, theirs.reward)
        assert_same(mine.action, theirs.action, 1e-6)  # scaled to the bounds and back
        assert_same(mine.extras, theirs.extras)
    assert not list(tmp_path.glob("*.partial"))


@each_format
def test_episodes_of_one_transition_each_are_read_again(tmp_path, suffix):
    spaces = SPACES["box"]
    given = Dataset(tuple(episode(number, 1, spaces) for number in range(3)), spaces)
    write(tmp_path / f"short{suffix}", given)
    assert read(tmp_path / f"short{suffix}").returns.tolist() == given.returns.tolist()


def test_files_hold_the_actions_of_the_environment(tmp_path):
    given = dataset("box")
    write(tmp_path / "codes.h5", given)
    with h5py.File(tmp_path / "codes.h5") as file:
        action = np.concatenate([episode.action for episode in given.episodes])
        np.testing.assert_allclose(file["actions"], action * [2, 5] + [0, 5], atol=1e-5)
        assert set(file) == {
            "observations", "next_observations", "actions", "rewards", "terminals", "timeouts", "log_prob", "place",
        }  # fmt: skip
    write(tmp_path / "codes.parquet", dataset("discrete"))
    write(tmp_path / "parts.h5", dataset("several"))
    with h5py.File(tmp_path / "parts.h5") as file:
        action = np.concatenate([episode.action for episode in dataset("several").episodes])
        np.testing.assert_allclose(file["actions/b"], action[:, 0] * 4.5 + 4.5, atol=1e-5)
        np.testing.assert_array_equal(file["actions/a/0"], action[:, None, 1:3] + [0, 5])
        np.testing.assert_array_equal(file["actions/a/1"], action[:, 3] + 1)
    table = pyarrow.parquet.read_table(tmp_path / "codes.parquet")
    action = np.concatenate([episode.action for episode in dataset("discrete").episodes])
    assert table["actions"].to_pylist() == (action - 1).tolist()
    assert table["observations"].to_pylist()[5] == [2.0, 1.0]


D4RL = Spaces(Box(-np.inf, np.inf, (2,), np.float64), Box(-2, 2, (1,), np.float32))


def d4rl(path, **changes):
    """By hand: episode 1 terminates after 3 steps, episode 2 times out after 3, episode 3 is cut off by the end."""
    arrays = {
        "observations": np.array([[1, 0], [1, 1], [1, 2], [2, 0], [2, 1], [2, 2], [3, 0], [3, 1]], np.float32),
        "actions": np.array([[-2], [-1], [0], [1], [2], [0.5], [1.5], [-0.5]], np.float32),
        "rewards": np.arange(8, dtype=np.float32),
        "terminals": np.array([0, 0, 1, 0, 0, 0, 0, 0], bool),
        "timeouts": np.array([0, 0, 0, 0, 0, 1, 0, 0], bool),
        "infos/qpos": np.full((8, 3), np.nan),
        "metadata/algorithm": np.array(b"SAC"),
    } | changes
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            if values is not None:
                file[name] = values
    return path


def test_where_what_followed_is_unknown_the_last_transition_of_an_episode_is_dropped(tmp_path):
    found = read(d4rl(tmp_path / "hopper.hdf5"), D4RL)
    assert found.dropped == 2 and found.environment is None
    first, second, third = found.episodes
    assert first.observation.tolist() == [[1, 0], [1, 1], [1, 2], [1, 2]]  # the last one is never bootstrapped from
    assert first.reward.tolist() == [0, 1, 2] and (first.terminated, first.truncated) == (True, False)
    assert first.action.tolist() == [[-1], [-0.5], [0]]
    assert second.observation.tolist() == [[2, 0], [2, 1], [2, 2]]
    assert second.reward.tolist() == [3, 4] and (second.terminated, second.truncated) == (False, True)
    assert third.observation.tolist() == [[3, 0], [3, 1]] and third.truncated and not third.terminated
    assert first.extras == {}


def test_with_next_observations_every_transition_is_kept(tmp_path):
    following = np.array([[1, 1], [1, 2], [1, 3], [2, 1], [2, 2], [2, 3], [3, 1], [3, 2]], np.float32)
    found = read(d4rl(tmp_path / "hopper.hdf5", next_observations=following), D4RL)
    assert found.dropped == 0 and len(found) == 8
    assert [episode.observation[-1].tolist() for episode in found.episodes] == [[1, 3], [2, 3], [3, 2]]
    assert [episode.truncated for episode in found.episodes] == [False, True, True]


def test_next_observations_that_belong_to_another_episode_are_refused(tmp_path):
    following = np.array([[1, 1], [1, 2], [1, 3], [2, 1], [2, 9], [2, 3], [3, 1], [3, 2]], np.float32)
    with pytest.raises(DataError, match=r"'next_observations', row 4: it is not the observation of row 5"):
        read(d4rl(tmp_path / "hopper.hdf5", next_observations=following), D4RL)


def test_an_episode_of_one_transition_that_times_out_leaves_nothing(tmp_path):
    timeouts = np.array([0, 0, 0, 1, 0, 1, 0, 0], bool)
    found = read(d4rl(tmp_path / "hopper.hdf5", timeouts=timeouts), D4RL)
    assert found.dropped == 3 and [len(episode.reward) for episode in found.episodes] == [3, 1, 1]
    with pytest.raises(DataError, match="nothing can be learned"):
        read(d4rl(tmp_path / "each.hdf5", timeouts=np.ones(8, bool), terminals=np.zeros(8, bool)), D4RL)


def test_a_terminal_that_also_times_out_is_a_terminal(tmp_path):
    flags = np.array([0, 0, 1, 0, 0, 1, 0, 1], bool)
    found = read(d4rl(tmp_path / "hopper.hdf5", timeouts=flags, terminals=flags), D4RL)
    assert found.dropped == 0 and all(episode.terminated and episode.truncated for episode in found.episodes)


NAN = np.arange(8, dtype=np.float64)
NAN[5] = np.nan
ROWS = np.zeros((8, 3), np.float32)
BAD = {
    "'rewards' is missing; it has actions": {"rewards": None},
    "'observations' is missing": {"observations": None, "states": ROWS},
    "'actions' has 7 rows, 'rewards' has 8": {"actions": np.zeros((7, 1), np.float32)},
    "'rewards', row 5: nan is not finite": {"rewards": NAN},
    r"'observations', row 1: \[ 0. inf\] is not finite": {"observations": np.array([[0, 0], [0, np.inf]] * 4)},
    r"'observations' has rows of shape \(3,\); expected Box": {"observations": ROWS},
    "'observations' has dtype .S1; expected numbers": {"observations": np.full((8, 2), b"x")},
    r"'actions', row 2: \[2.5\] is not in Box\(-2": {"actions": np.array([[0], [1], [2.5]] + [[0]] * 5)},
    "'terminals', row 3: 2; expected 0 or 1": {"terminals": np.array([0, 0, 0, 2, 0, 0, 0, 0])},
    r"'timeouts' has shape \(8, 3\)": {"timeouts": ROWS},
    r"'rewards' has shape \(8, 3\)": {"rewards": ROWS},
    "there are no transitions": {"rewards": np.zeros(0)},
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_column_is_named_with_its_row(tmp_path, message):
    path = d4rl(tmp_path / "bad.hdf5", **BAD[message])
    with pytest.raises(DataError, match=message) as caught:
        read(path, D4RL)
    assert str(path) in str(caught.value)


def test_choices_have_to_be_whole_numbers_of_the_space(tmp_path):
    spaces = Spaces(D4RL.observation, Discrete(3, start=1))
    actions = np.array([1, 2, 3, 3, 1, 2, 1, 1])
    found = read(d4rl(tmp_path / "good.hdf5", actions=actions), spaces)
    assert found.episodes[0].action.tolist() == [0, 1, 2]
    with pytest.raises(DataError, match=r"'actions', row 7: 0 is not in Discrete\(3, start=1\)"):
        read(d4rl(tmp_path / "bad.hdf5", actions=np.append(actions[:7], 0)), spaces)
    again = read(d4rl(tmp_path / "floats.hdf5", actions=actions.astype(float)), spaces)
    assert again.episodes[0].action.tolist() == [0, 1, 2]
    with pytest.raises(DataError, match="'actions' has dtype float64; expected whole numbers"):
        read(d4rl(tmp_path / "bad.hdf5", actions=actions + 0.5), spaces)
    with pytest.raises(DataError, match=r"Discrete\(3, start=1\). The rows are one-hot: give .*actions.argmax\(1\)"):
        read(d4rl(tmp_path / "bad.hdf5", actions=np.eye(3)[actions - 1]), spaces)


def test_a_file_without_spaces_asks_for_them(tmp_path):
    with pytest.raises(DataError, match="it does not say its spaces"):
        read(d4rl(tmp_path / "hopper.hdf5"))


@each_format
def test_a_file_of_another_environment_is_refused(tmp_path, suffix):
    path = tmp_path / f"codes{suffix}"
    write(path, dataset("box"))
    other = Spaces(SPACES["box"].observation, Box(-1, 1, (2,), np.float32))
    with pytest.raises(DataError, match=r"its actions are of Box.*expected Box\(-1.0, 1.0, \(2,\).*Codes-v0"):
        read(path, other)
    write(path, dataclasses.replace(dataset("box"), environment=None))  # of a callable
    with pytest.raises(DataError, match=r"recorded in another environment\.$"):
        read(path, other)


@each_format
def test_a_file_that_is_cut_off_or_of_another_kind_is_refused(tmp_path, suffix):
    whole, cut = tmp_path / f"whole{suffix}", tmp_path / f"cut{suffix}"
    write(whole, dataset("box"))
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size * 2 // 3])
    with pytest.raises(DataError, match="is incomplete"):
        read(cut)
    cut.write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match="is no .* file"):
        read(cut)
    with pytest.raises(DataError, match="there is no such file"):
        read(tmp_path / f"missing{suffix}")
    with pytest.raises(ConfigError, match="ends in .h5, .hdf5, .parquet"):
        read(tmp_path / "codes.xlsx")


def test_a_file_that_lost_rows_is_refused(tmp_path):
    write(tmp_path / "codes.h5", dataset("discrete"))
    with h5py.File(tmp_path / "codes.h5", "a") as file:
        for name in list(file):
            values = file[name][()]
            del file[name]
            file[name] = values[:-2]
    with pytest.raises(DataError, match="it holds 8 transitions and says that it has 10"):
        read(tmp_path / "codes.h5")


def test_a_newer_layout_or_damaged_metadata_are_refused(tmp_path):
    for text, message in ((json.dumps({"version": 2}), "layout is version 2"), ("{", "is damaged")):
        write(tmp_path / "codes.h5", dataset("discrete"))
        with h5py.File(tmp_path / "codes.h5", "a") as file:
            file.attrs["etude"] = text
        with pytest.raises(DataError, match=message):
            read(tmp_path / "codes.h5")


def parquet(path, **columns):
    rows = 4
    table = {
        "observations": [[float(i), 0.0] for i in range(rows)],
        "actions": [[0.5]] * rows,
        "rewards": [1.0] * rows,
        "terminals": [False] * (rows - 1) + [True],
        "timeouts": [False] * rows,
    } | columns
    pyarrow.parquet.write_table(pyarrow.table(table), path)
    return path


def test_lists_as_other_programs_write_them_are_read(tmp_path):
    found = read(parquet(tmp_path / "lists.parquet"), D4RL)
    assert found.episodes[0].observation[:4].tolist() == [[0, 0], [1, 0], [2, 0], [3, 0]]
    assert found.episodes[0].action.tolist() == [[0.25]] * 4


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"observations": [[0.0, 0.0], [1.0], [2.0, 0.0], [3.0, 0.0]]}, "'observations', row 1: 1 numbers, and 2"),
        ({"rewards": [1.0, 2.0, None, 3.0]}, "'rewards', row 2: there is no value"),
        ({"observations": [[0.0, 0.0], [1.0, None], [2.0, 0.0], [3.0, 0.0]]}, "'observations', row 1: a number is"),
    ],
)
def test_rows_of_a_table_that_are_not_alike_are_named(tmp_path, columns, message):
    with pytest.raises(DataError, match=message):
        read(parquet(tmp_path / "bad.parquet", **columns), D4RL)


@each_format
def test_where_nothing_can_be_written_is_one_error(tmp_path, suffix):
    with pytest.raises(DataError, match="cannot be written: No such file or directory. Name another file"):
        write(tmp_path / "missing" / f"file{suffix}", dataset("box"))


def test_nothing_to_write_is_refused_and_a_failed_write_leaves_what_was_there(tmp_path):
    given, path = dataset("box"), tmp_path / "codes.h5"
    write(path, given)
    before = path.read_bytes()
    with pytest.raises(DataError, match="nothing to write"):
        write(path, Dataset((), given.source))
    with pytest.raises((KeyError, IndexError)):
        write(path, Dataset(given.episodes, SPACES["free"]))
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("suffix", "module"), [(".h5", "h5py"), (".parquet", "pyarrow")])
def test_a_missing_library_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch, suffix, module):
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / f"codes{suffix}").touch()
    with pytest.raises(MissingExtra, match=r"pip install 'etude\[offline\]'"):
        read(tmp_path / f"codes{suffix}", D4RL)
