"""Readers: where they find data, the order in which they return it, and what they refuse."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import fsspec
import h5py
import numpy as np
import pytest
from recordings import SPACES, dataset, episode

from etude.base.errors import ConfigError, DataError
from etude.base.spaces import Box, Discrete, Spaces
from etude.checkpoint.run_directory import RunDirectory
from etude.cli import main
from etude.offline import Dataset, Reader, Writer, read, write
from etude.offline.layout import BLOCK

HERE = Path(__file__).parent
SUFFIXES = (".h5", ".parquet", ".jsonl", ".jsonl.gz", "-v0")


def numbers(episodes):
    """Which episodes these are: the first column of their codes."""
    return [int(each.observation[0, 0]) for each in episodes]


@pytest.fixture
def folder(tmp_path):
    """Five files of six episodes, numbered from 0."""
    for i in range(5):
        episodes = tuple(episode(6 * i + j, 3, SPACES["box"]) for j in range(6))
        write(tmp_path / f"part-{i}.parquet", Dataset(episodes, SPACES["box"], "Codes-v0"))
    return tmp_path


def test_a_folder_is_read_in_order_without_a_generator(folder):
    reader = Reader(folder)
    assert numbers(reader.episodes()) == list(range(30)) and reader.environment == "Codes-v0"
    assert reader.spaces == dataset("box").spaces and reader.source == SPACES["box"]


def test_every_pass_holds_each_episode_once_in_another_order(folder):
    reader, rng = Reader(folder, shuffle=8), np.random.default_rng(0)
    first, second = numbers(reader.episodes(rng)), numbers(reader.episodes(rng))
    assert sorted(first) == sorted(second) == list(range(30)) and first != second
    assert numbers(reader.episodes(np.random.default_rng(0))) == first
    assert [number // 6 for number in first] != sorted(number // 6 for number in first)  # files are mixed


def test_parts_have_no_episode_in_common_and_miss_none(folder):
    parts = [numbers(Reader(folder).part(i, 2).episodes(np.random.default_rng(i))) for i in range(2)]
    assert sorted(parts[0] + parts[1]) == list(range(30)) and all(parts)
    with pytest.raises(ConfigError, match="There are 5 files for 6 parts"):
        Reader(folder).part(0, 6)
    with pytest.raises(ConfigError, match="part = 2 of 2"):
        Reader(folder).part(2, 2)


def test_patterns_and_lists_name_files(folder):
    assert numbers(Reader(str(folder / "part-[12].parquet")).episodes()) == list(range(6, 18))
    files = [folder / "part-4.parquet", str(folder / "part-0.parquet")]
    assert numbers(Reader(files).episodes()) == [*range(24, 30), *range(6)]


def test_remote_addresses_are_read_through_fsspec(folder):
    system = fsspec.filesystem("memory")
    for path in folder.iterdir():
        system.pipe_file(f"/readers/{path.name}", path.read_bytes())
    assert numbers(Reader("memory://readers").episodes()) == list(range(30))
    assert numbers(Reader("memory://readers/part-3.parquet").episodes()) == list(range(18, 24))
    with pytest.raises(DataError, match="memory://nowhere"):
        Reader("memory://nowhere")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kind", ["box", "multidiscrete"])
def test_a_reader_returns_what_was_read_at_once(tmp_path, suffix, kind, monkeypatch):
    path, given = tmp_path / f"codes{suffix}", dataset(kind)
    write(path, given)
    monkeypatch.setattr("etude.offline.reader.BLOCK", 1)  # a block ends with every episode
    for module in ("parquet", "hdf5"):
        monkeypatch.setattr(f"etude.offline.{module}.BLOCK", 200)
    streamed, whole = list(Reader(path).episodes()), read(path)
    assert len(streamed) == len(whole.episodes) == 4 and whole.source == given.source
    for mine, theirs, first in zip(streamed, whole.episodes, given.episodes, strict=True):
        assert mine.reward.tolist() == theirs.reward.tolist() == first.reward.tolist()
        assert (mine.terminated, mine.truncated) == (first.terminated, first.truncated)
        assert mine.summary() == theirs.summary()


def test_files_larger_than_a_block_are_read_in_pieces(tmp_path, monkeypatch):
    block = BLOCK // 64
    for module in ("reader", "parquet"):
        monkeypatch.setattr(f"etude.offline.{module}.BLOCK", block)
    rows = 4 * block // 40
    episodes = tuple(episode(i, rows // 20, SPACES["box"]) for i in range(20))
    write(tmp_path / "large.parquet", Dataset(episodes, SPACES["box"]))
    found = list(Reader(tmp_path).episodes())
    assert numbers(found) == list(range(20))
    assert [len(each.reward) for each in found] == [rows // 20] * 20


def test_a_minari_data_set_is_read_as_minari_wrote_it():
    found = Reader(HERE / "data" / "codes-v0").read()
    assert [each.observation["code"][:, 1].tolist() for each in found.episodes] == [
        [*range(5)],
        [*range(4)],
        [*range(5)],
    ]
    assert [(each.terminated, each.truncated) for each in found.episodes] == [
        (False, True),
        (True, False),
        (False, True),
    ]
    first, second, _ = found.episodes
    assert first.observation["image"][:, 0, 0, 0].tolist() == [100, 110, 120, 130, 140]  # from JPEG
    assert first.observation["more"][0].tolist() == [0, 1, 2, 3, 0] and first.reward.tolist() == [1, 2, 3, 4]
    np.testing.assert_allclose(second.action[:, 0] * 2, [0, 0.1, 0.2], atol=1e-6)


def test_a_minari_data_set_is_found_by_its_id(monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(HERE / "data"))
    assert len(list(Reader("codes-v0").episodes())) == 3


def test_minari_data_sets_have_the_layout_that_minari_reads(tmp_path):
    write(tmp_path / "codes-v0", dataset("multidiscrete"))
    metadata = json.loads((tmp_path / "codes-v0" / "data" / "metadata.json").read_text())
    assert (metadata["total_episodes"], metadata["total_steps"], metadata["minari_version"]) == (4, 10, "0.5.4")
    theirs = json.loads((HERE / "data" / "codes-v0" / "data" / "metadata.json").read_text())
    assert {
        "observation_space",
        "action_space",
        "dataset_id",
        "data_format",
        "jpeg_encoding",
    } <= metadata.keys() & theirs.keys()
    with h5py.File(tmp_path / "codes-v0" / "data" / "main_data.hdf5") as file:
        group = file["episode_0"]
        assert group["observations/more/_index_0"].shape == (5,) and group["actions"].shape == (4, 2)
        assert group["terminations"][()].tolist() == [False, False, False, True] and group.attrs["total_steps"] == 4


RLLIB = {
    "type": "SampleBatch",
    "obs": [[0.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 0.0]],
    "new_obs": [[0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [1.0, 1.0]],
    "actions": [0, 1, 0, 1],
    "rewards": [1.0, 2.0, 3.0, 4.0],
    "dones": [False, False, True, False],
    "eps_id": [7, 7, 7, 8],
    "action_logp": [-0.5, -0.6, -0.7, -0.8],
    "infos": [{}, {}, {}, {}],
}
RLLIB_SPACES = Spaces(Box(-9, 9, (2,), np.float32), Discrete(2))


def rllib(path, *batches):
    path.write_text("".join(json.dumps(batch) + "\n" for batch in batches))
    return path


def test_plain_json_of_rllib_is_read(tmp_path):
    rest = {**RLLIB, "obs": [[1.0, 1.0]], "new_obs": [[1.0, 2.0]], "actions": [1], "rewards": [5.0], "dones": [True],
            "eps_id": [8], "action_logp": [-0.9]}  # fmt: skip
    path = rllib(tmp_path / "output.json", RLLIB, rest, {**rest, "eps_id": [9], "dones": [False]})
    found = list(Reader(path, spaces=RLLIB_SPACES).episodes())
    assert [each.reward.tolist() for each in found] == [[1, 2, 3], [4, 5], [5]]
    assert [each.terminated for each in found] == [True, True, False]
    np.testing.assert_allclose(found[1].extras["log_prob"], [-0.8, -0.9])


def test_episodes_of_rllib_go_on_in_later_lines_among_steps_of_others(tmp_path):
    def batch(first, ends):
        observed = [[e, float(t)] for e in (1, 2) for t in (first, first + 1)]
        following = [[e, t + 1] for e, t in observed]
        return {**RLLIB, "obs": observed, "new_obs": following, "rewards": [1.0] * 4, "eps_id": [1, 1, 2, 2],
                "dones": [False, ends, False, ends]}  # fmt: skip

    one, other = batch(0.0, False), batch(2.0, True)
    found = list(Reader(rllib(tmp_path / "ended.json", one, other), spaces=RLLIB_SPACES).episodes())
    assert [each.reward.sum() for each in found] == [4, 4] and all(each.terminated for each in found)
    assert [each.observation.tolist() for each in found] == [[[e, t] for t in range(5)] for e in (1, 2)]
    cut = list(Reader(rllib(tmp_path / "cut.json", one, batch(2.0, False)), spaces=RLLIB_SPACES).episodes())
    assert [each.reward.sum() for each in cut] == [4, 4] and all(each.truncated for each in cut)
    no_next = [{name: values for name, values in each.items() if name != "new_obs"} for each in (one, other)]
    found = list(Reader(rllib(tmp_path / "without.json", *no_next), spaces=RLLIB_SPACES).episodes())
    assert [each.reward.sum() for each in found] == [4, 4]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"obs": "BCJNGGhAqgAAAAAA"},
            r'column .obs. is compressed, which is a pickle.*output_compress_columns"\] = \[\]',
        ),
        ({"rewards": None}, "no numbers"),
        ({"actions": [0, 1]}, "rows"),
        ({"type": "MultiAgentBatch"}, "several policies"),
        ({"obs": [[0.0], [1.0, 2.0], [0.0], [0.0]]}, "inhomogeneous|no numbers"),
    ],
)
def test_json_of_rllib_that_cannot_be_read_says_why(tmp_path, change, message):
    with pytest.raises(DataError, match=message):
        list(Reader(rllib(tmp_path / "output.json", {**RLLIB, **change}), spaces=RLLIB_SPACES).episodes())


class Source:
    """A source of one's own."""

    spaces = dataset("box").spaces

    def episodes(self, rng=None):
        yield from dataset("box").episodes


def test_a_run_learns_from_a_folder_a_reader_or_a_source_of_ones_own(tmp_path):
    from etude.offline.loading import load_data

    with Writer(tmp_path, spaces=SPACES["box"]) as writer:
        writer.write(dataset("box").episodes)
    action = SPACES["box"].action
    for data in (
        tmp_path,
        str(tmp_path / "*.parquet"),
        [tmp_path],
        Reader(tmp_path),
        Source(),
        dataset("box").episodes,
    ):
        assert len(load_data(data, dataset("box").spaces, action)) == 10
    with pytest.raises(DataError, match="there is no recorded data"):
        load_data(tmp_path / "..", dataset("box").spaces, action) if not (tmp_path / "empty").mkdir() else None
        load_data(tmp_path / "empty", dataset("box").spaces, action)


def test_files_of_other_spaces_in_a_folder_are_refused(tmp_path):
    write(tmp_path / "a.parquet", dataset("box"))
    write(tmp_path / "b.parquet", dataset("discrete"))
    with pytest.raises(DataError, match=r"b.parquet: its actions are of Discrete"):
        list(Reader(tmp_path).episodes())


def test_a_file_of_other_extras_is_named_where_all_are_read(tmp_path):
    write(tmp_path / "a.parquet", data := dataset("box"))
    bare = tuple(replace(each, extras={"mine": each.reward}) for each in data.episodes)
    write(tmp_path / "b.parquet", replace(data, episodes=bare))
    with pytest.raises(DataError, match=r"b.parquet: it holds the extras \['mine'\], and the files before it \["):
        Reader(tmp_path).read()


def test_etude_data_describes_a_folder_and_names_what_is_damaged(folder, capsys):
    assert main(["data", str(folder)]) == 0
    text = capsys.readouterr().out
    for wanted in ("Codes-v0", "30 (30 terminated)", "transitions  90", "log_prob, place", "behaviour    not recorded"):
        assert wanted in text
    (folder / "part-2.parquet").write_bytes(b"nothing of the kind")
    (folder / "ppo-seed1-00000.parquet.partial").touch()
    assert main(["data", str(folder)]) == 1
    text = capsys.readouterr().out
    assert "24 (24 terminated)" in text and "damaged: " in text and "part-2.parquet" in text
    assert "unfinished: " in text and "ppo-seed1-00000.parquet.partial" in text


def test_the_directory_of_a_run_is_no_recorded_data(tmp_path):
    RunDirectory.create(tmp_path / "run", "run").write_config({})
    with pytest.raises(DataError, match="run is the directory of a run, and no recorded data. Runs are recorded by"):
        Reader(str(tmp_path / "run"))


# -- damaged and hostile files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_json_lines_that_are_cut_off_are_incomplete_with_any_number_of_bytes(tmp_path, suffix):
    path = tmp_path / f"codes{suffix}"
    write(path, dataset("box"))
    data = path.read_bytes()
    for size in range(0, len(data) - 1, 37):
        path.write_bytes(data[:size])
        with pytest.raises(DataError, match="incomplete|damaged|does not describe"):
            read(path)


def test_changed_bytes_of_json_lines_are_refused_or_read(tmp_path):
    path, rng = tmp_path / "codes.jsonl", np.random.default_rng(0)
    write(path, dataset("multidiscrete"))
    data = path.read_bytes()
    refused = 0
    for place in rng.integers(len(data), size=300).tolist():
        path.write_bytes(data[:place] + bytes([data[place] ^ int(rng.integers(1, 256))]) + data[place + 1 :])
        try:
            read(path)
        except DataError as error:
            refused += 1
            assert len(str(error)) < 2000 and "column ''" not in str(error)
    assert refused > 100


HEADER = {
    "version": 1,
    "observation_space": {"discrete": {"n": 3, "start": 0}},
    "action_space": {"discrete": {"n": 2, "start": 0}},
}
EPISODE = {"terminated": True, "observations": [0, 1], "actions": [1], "rewards": [1.0]}


def lines(path, *values):
    path.write_text("".join((value if isinstance(value, str) else json.dumps(value)) + "\n" for value in values))
    return path


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[" * 10**5, "line 2"),
        ('{"a":' * 10**5, "line 2"),
        ("nothing", "line 2"),
        ({**EPISODE, "observations": [0]}, "'observations' has"),
        ({**EPISODE, "rewards": "x"}, "column 'rewards'"),
        ({**EPISODE, "rewards": [10**400]}, "line 2"),
        ({**EPISODE, "rewards": []}, "line 2|no transitions"),
        ({**EPISODE, "terminated": 1}, "expected true or false"),
        ({**EPISODE, "actions": [7]}, "'actions', row 0: 7 is not in Discrete"),
        ({**EPISODE, "other": ["text"]}, "column 'other'"),
        ('{"terminated": true, "observations": [0, 1], "actions": [1], "rewards": [NaN]}', "NaN is no JSON"),
    ],
)
def test_a_line_that_is_no_episode_is_named(tmp_path, line, message):
    path = lines(tmp_path / "bad.jsonl", {"etude": HEADER}, line, {"etude": {"transitions": 1, "episodes": 1}})
    with pytest.raises(DataError, match=message):
        read(path)


def test_a_small_file_that_expands_to_gigabytes_is_refused(tmp_path):
    path = tmp_path / "bomb.jsonl.gz"
    with gzip.open(path, "wb", 9) as file:
        file.write(json.dumps({"etude": HEADER}).encode() + b"\n")
        file.write(b'{"rewards": [' + b"0," * 2**24 + b"0]}\n")
    assert path.stat().st_size < 2**20
    with pytest.raises(DataError, match="expands to more than 200 times its size"):
        read(path)


def minari(tmp_path):
    path = tmp_path / "codes-v0"
    write(path, dataset("box"))
    return path, path / "data" / "metadata.json", path / "data" / "main_data.hdf5"


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ("[", "metadata.json: it is damaged"),
        ("[]", "metadata.json: it is damaged"),
        ({"data_format": "arrow"}, "data_format is 'arrow'"),
        ({"observation_space": "{}"}, "metadata.json is damaged"),
        ({"observation_space": json.dumps({"type": "Box", "shape": [2**40], "low": 0, "high": 1, "dtype": "float32"})},
         "metadata.json is damaged"),
        ({"observation_space": '{"type": "Dict", "subspaces": ' * 2000}, "metadata.json is damaged"),
        ({"action_space": json.dumps({"type": "Text"})}, "metadata.json is damaged"),
    ],
)  # fmt: skip
def test_damaged_metadata_of_minari_are_refused(tmp_path, metadata, message):
    path, file, _ = minari(tmp_path)
    held = json.loads(file.read_text())
    del held["etude"]
    file.write_text(metadata if isinstance(metadata, str) else json.dumps({**held, **metadata}))
    with pytest.raises(DataError, match=message):
        read(path)


def test_numbers_of_minari_that_lead_elsewhere_or_are_missing_are_refused(tmp_path):
    path, _, numbers_ = minari(tmp_path)
    with h5py.File(numbers_, "a") as file:
        del file["episode_1/rewards"]
        file["episode_1/rewards"] = h5py.ExternalLink("/etc/passwd", "x")
    with pytest.raises(DataError, match="'rewards' is a link to another file"):
        read(path)
    with h5py.File(numbers_, "a") as file:
        del file["episode_1/rewards"]
    with pytest.raises(DataError, match="episode_1: it is damaged"):
        read(path)
    with h5py.File(numbers_, "a") as file:
        del file["episode_1"]
    with pytest.raises(DataError, match="none of them is episode_1"):
        read(path)


def test_an_id_that_leads_out_of_minaris_folder_is_no_data_set(tmp_path, monkeypatch):
    path, _, _ = minari(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    with pytest.raises(DataError, match="there is no such file"):
        Reader("../" + path.name)


def test_a_shard_whose_empty_rows_nothing_fills_is_refused(tmp_path):
    import pyarrow
    import pyarrow.parquet

    with Writer(tmp_path, spaces=SPACES["box"]) as writer:
        writer.write(dataset("box").episodes)
    (path,) = tmp_path.glob("*.parquet")
    table = pyarrow.parquet.read_table(path)
    pyarrow.parquet.write_table(table.slice(0, 2), path)
    for take in (read, lambda path, spaces: list(Reader(path, spaces=spaces).episodes())):
        with pytest.raises(DataError, match="next_observations"):
            take(path, SPACES["box"])
