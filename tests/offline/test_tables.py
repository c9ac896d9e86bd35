"""Recordings as other programs and people keep them: other names, no marks of where episodes end, texts, tables."""

import warnings

import numpy as np
import pyarrow
import pytest
from test_offline_files import D4RL, d4rl

import etude
from etude.base.errors import ConfigError, DataError
from etude.base.spaces import Box, Discrete, Spaces
from etude.offline import Builder, read

LENGTHS = (3, 3, 2)  # of the episodes that `d4rl` writes; the first one terminates
NEXT = np.array([[1, 1], [1, 2], [1, 3], [2, 1], [2, 2], [2, 3], [3, 1], [3, 2]], np.float32)
CART = Spaces(Box(-np.inf, np.inf, (2,)), Discrete(2))


def lengths(found):
    return tuple(len(episode.reward) for episode in found.episodes)


def test_episodes_end_where_the_next_observation_does_not_go_on(tmp_path):
    path = d4rl(tmp_path / "old.hdf5", timeouts=None, next_observations=NEXT)
    with pytest.warns(
        UserWarning, match="1 episodes end where next_observations are not those of the next row, and 1 "
    ):
        found = read(path, D4RL)
    assert lengths(found) == LENGTHS and found.dropped == 0
    assert [episode.terminated for episode in found.episodes] == [True, False, False]
    assert found.episodes[1].observation.tolist() == [[2, 0], [2, 1], [2, 2], [2, 3]]


def test_episodes_end_after_so_many_steps_or_where_flags_say(tmp_path):
    path = d4rl(tmp_path / "old.hdf5", timeouts=None, ends=np.array([0, 0, 0, 0, 0, 1, 0, 0]))
    with pytest.raises(
        DataError, match=r"'timeouts' is missing, and there are no next_observations.*max_episode_steps"
    ):
        read(path, D4RL)
    with pytest.warns(UserWarning, match="1 episodes end after 3 steps, and 1 where they terminate"):
        assert lengths(read(path, D4RL, max_episode_steps=3)) == (3, 2, 1), "what followed the last of each is unknown"
    for ends in ("ends", [False] * 5 + [True] + [False] * 2):
        found = read(path, D4RL, episode_ends=ends)
        assert lengths(found) == (3, 2, 1) and "ends" not in (found.episodes[0].extras if ends == "ends" else ())
    assert lengths(read(path, D4RL, episode_ends=[4, 4, 4, 5, 5, 5, 9, 9])) == (3, 2, 1), "numbers of episodes"
    with pytest.raises(ConfigError, match="max_episode_steps = 0"):
        read(path, D4RL, max_episode_steps=0)
    with pytest.raises(ConfigError, match="episode_ends = 'nothing'; expected the name of a column"):
        read(path, D4RL, episode_ends="nothing")
    with pytest.raises(ConfigError, match="has its own 'timeouts'"):
        read(d4rl(tmp_path / "new.hdf5"), D4RL, max_episode_steps=3)


def test_rows_are_counted_before_episodes_are_looked_for(tmp_path):
    with pytest.raises(DataError, match="column '.*' has 8 rows, 'rewards' has 7; expected one row for each"):
        read(d4rl(tmp_path / "short.hdf5", timeouts=None, rewards=np.ones(7)), D4RL, max_episode_steps=3)
    one = {"observations": [[0, 0]], "next_observations": [[0, 1]], "actions": [[0]], "rewards": [1], "terminals": [1]}
    with pytest.warns(UserWarning, match="0 episodes end where .*, and 1 where they terminate"):
        assert lengths(read(pyarrow.table(one), D4RL)) == (1,)
    with pytest.raises(DataError, match="there are no transitions in it"):
        read(d4rl(tmp_path / "none.hdf5", **{name: np.zeros((0, 2)) for name in one}, timeouts=None), D4RL)
    with pytest.raises(DataError, match="no next_observations that tell where episodes end"):
        read(d4rl(tmp_path / "other.hdf5", timeouts=None, next_observations=np.zeros((8, 3))), D4RL)


def test_columns_of_other_names_are_read(tmp_path):
    arrays = {"observations": None, "rewards": None, "obs": np.zeros((8, 2)), "r": np.arange(8.0)}
    path = d4rl(tmp_path / "named.hdf5", **arrays)
    found = read(path, D4RL, columns={"obs": "observations", "r": "rewards"})
    assert found.episodes[0].reward.tolist() == [0, 1, 2]
    with pytest.raises(DataError, match="columns= names 'state'; it has actions, "):
        read(path, D4RL, columns={"state": "observations"})
    with pytest.raises(ConfigError, match="columns= makes a column 'actions', and .* has one"):
        read(path, D4RL, columns={"obs": "observations", "r": "actions"})


def test_rows_beyond_the_bounds_are_told_by_their_share_and_clipped_on_request(tmp_path):
    actions = np.array([[-2], [-1], [0], [1], [2.5], [0.5], [1.5], [-0.5]], np.float32)
    path = d4rl(tmp_path / "beyond.hdf5", actions=actions)
    with pytest.raises(DataError, match=r"row 4: \[2.5\] is not in Box.*as are 12.50% of the rows.*or clip=True"):
        read(path, D4RL)
    found = read(path, D4RL, clip=True)
    assert found.episodes[1].action.tolist() == [[0.5], [1.0]]


def columns():
    return {
        "x": [0.0, 1.0, 2.0, 0.5], "v": [0.1, 0.2, 0.3, 0.4], "push": [0, 1, 1, 0], "reward": [1.0, 1.0, 0.0, 1.0],
        "done": [0, 0, 1, 0], "cut": [0, 0, 0, 1], "note": ["a", "b", "c", "d"],
    }  # fmt: skip


NAMES = {"x": "observations", "v": "observations", "push": "actions", "reward": "rewards", "done": "terminals"}


def assert_read(found):
    first = found.episodes[0]
    assert lengths(found) == (3,) and found.dropped == 1
    np.testing.assert_allclose(first.observation[:3], [[0.0, 0.1], [1.0, 0.2], [2.0, 0.3]], rtol=1e-6)
    assert first.action.tolist() == [0, 1, 1] and first.terminated and "note" not in first.extras


def in_pandas(table):
    return pytest.importorskip("pandas").DataFrame(table)


def in_polars(table):
    return pytest.importorskip("polars").DataFrame(table)


def of_hugging_face(table):
    return pytest.importorskip("datasets").Dataset.from_dict(table)


@pytest.mark.parametrize("kind", [pyarrow.table, in_pandas, in_polars, of_hugging_face])
def test_tables_in_memory_are_read(kind):
    with pytest.warns(UserWarning, match="'note' has the type .*string.*, and is passed over"):
        assert_read(read(kind(columns()), CART, columns=NAMES, episode_ends="cut"))


@pytest.mark.parametrize("kind", [pyarrow.table, in_pandas, in_polars, of_hugging_face])
def test_rows_of_numbers_and_of_rows_are_read_from_tables(kind):
    images = Spaces(Box(0, 255, (2, 3), np.uint8), Discrete(2))
    pixels = np.arange(12).reshape(2, 2, 3).tolist()
    table = {"observations": pixels, "actions": [0, 1], "rewards": [0.0, 1.0], "terminals": [False, True],
             "timeouts": [False, False]}  # fmt: skip
    found = read(kind(table), images)
    assert found.episodes[0].observation[:2].tolist() == pixels


@pytest.mark.parametrize("form", ["csv", "table"])
def test_tables_without_rows_are_refused_for_that(tmp_path, form):
    names, given = list(columns()), tmp_path / "data.csv"
    given.write_text(",".join(names) + "\n")
    if form == "table":
        given = pyarrow.table({name: pyarrow.array([], pyarrow.float32()) for name in names})
    with pytest.raises(DataError, match="it has no rows"):
        read(given, CART, columns=NAMES, episode_ends="cut")


def test_csv_is_read(tmp_path):
    table, path = columns(), tmp_path / "data.csv"
    path.write_text(
        "\n".join([",".join(table), *(",".join(map(str, row)) for row in zip(*table.values(), strict=True))])
    )
    with pytest.warns(UserWarning, match="'note' has the type string"):
        assert_read(read(path, CART, columns=NAMES, episode_ends="cut"))
    path.write_text("a,b\n1\n2,3,4\n")
    with pytest.raises(DataError, match="it is no CSV file"):
        read(path, CART)
    for row in ("0.5;1", "0,5;1"):
        path.write_text(f"{';'.join(table)}\n{row}\n")
        with pytest.raises(DataError, match="values separated by commas"):
            read(path, CART, columns=NAMES)
    path.write_text("observations,actions,rewards,terminals,timeouts\n,0,1,0,0\n")
    with pytest.raises(DataError, match="'observations', row 0: there is no value|has the type null"):
        read(path, CART)


def test_a_run_learns_from_a_table_in_memory():
    table = {"observations": [[0.1, 0, 0, 0], [0, 0.1, 0, 0]], "actions": [0, 1], "rewards": [1.0, 1.0],
             "terminals": [0, 1], "timeouts": [0, 0]}  # fmt: skip
    with etude.Run("bc", "CartPole-v1", data=pyarrow.table(table), engine="torch", batch_size=2) as run:
        run.train(10)
        assert len(run.data) == 2


def test_other_objects_are_refused():
    with pytest.raises(ConfigError, match="read was given a dict; expected the path of a file, a frame of pandas"):
        read(columns(), CART)


def test_an_episode_of_decisions_ends_without_a_next_observation():
    builder = Builder(CART)
    builder.add([1.0, 2.0], 1, 0.5)
    with pytest.raises(DataError, match="observation = None"):
        builder.end(None, truncated=True)
    builder.end(None, terminated=True)
    (episode,) = builder.dataset().episodes
    assert episode.terminated and episode.observation.tolist() == [[1.0, 2.0]] * 2


def test_each_row_of_a_log_of_decisions_is_an_episode_and_propensities_are_probabilities():
    table = {"x": [0.0, 1.0], "y": [1.0, 0.0], "offer": [1, 0], "paid": [3.0, 0.0], "p": [0.25, 0.5]}
    names = {"x": "observations", "y": "observations", "offer": "actions", "paid": "rewards", "p": "propensities"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = read(pyarrow.table(table), CART, columns=names, max_episode_steps=1)
    assert lengths(found) == (1, 1) and all(episode.terminated for episode in found.episodes)
    np.testing.assert_allclose([e.extras["log_prob"][0] for e in found.episodes], np.log([0.25, 0.5]), rtol=1e-6)
    table["p"] = [0.25, 0.0]
    with pytest.raises(DataError, match="'propensities', row 1: 0.0; expected above 0"):
        read(pyarrow.table(table), CART, columns=names, max_episode_steps=1)
