"""Games in files: text that a person can read, in each format, and files of other tokenizers."""

from __future__ import annotations

import json

import numpy as np
import pytest

import etude
from etude.base.errors import DataError
from etude.cli import main
from etude.explore import Sample
from etude.language import Characters, RandomMixture, TokenEnvironment, Wordle

NAMES = ("games.h5", "games.parquet", "games.jsonl", "games.jsonl.gz", "games-v0")


@pytest.fixture(scope="module")
def games():
    return etude.record("etude/Wordle-v0", 5, RandomMixture(0.33), Sample(), seed=3)


def text_of(data, episode):
    return data.source.observation["observation"].text(episode.observation["observation"][-1])


@pytest.mark.parametrize("name", NAMES)
def test_a_file_keeps_games_and_shows_them(games, tmp_path, name, capsys):
    etude.offline.write(tmp_path / name, games)
    read = etude.offline.read(tmp_path / name)
    texts = [text_of(games, episode) for episode in games.episodes]
    assert read.source == games.source and [text_of(read, episode) for episode in read.episodes] == texts
    for mine, theirs in zip(games.episodes, read.episodes, strict=True):
        assert np.array_equal(mine.action, theirs.action) and np.array_equal(mine.reward, theirs.reward)
        assert np.array_equal(mine.extras["log_prob"], theirs.extras["log_prob"])
    assert main(["data", str(tmp_path / name)]) == 0
    shown = capsys.readouterr().out
    assert "Tokens(72 of 34" in shown and "episode 2, return " in shown
    for line in "".join(texts[:3]).splitlines():
        assert f"  {line}\n" in shown


@pytest.mark.parametrize("form", ["parquet", "hdf5", "jsonl", "minari"])
def test_shards_hold_the_text_of_each_game_once(games, tmp_path, form):
    with etude.offline.Writer(tmp_path, form, name="games") as writer:
        etude.record("etude/Wordle-v0", 5, RandomMixture(0.33), Sample(), seed=3, output=writer)
    texts = [text_of(games, episode) for episode in games.episodes]
    (shard,) = tmp_path.iterdir()
    if form == "jsonl":
        assert [json.loads(line)["text"] for line in shard.read_text().splitlines()[1:-1]] == texts
    elif form == "parquet":
        column = pytest.importorskip("pyarrow.parquet").read_table(shard).column("infos/text").to_pylist()
        assert [text for text in column if text] == texts
    else:
        file = pytest.importorskip("h5py").File(shard / "data" / "main_data.hdf5" if form == "minari" else shard)
        groups = [file[f"episode_{i}"] for i in range(5)] if form == "minari" else [file]
        held = [text.decode() for group in groups for text in group["infos/text"][()] if text]
        assert held == texts
    read = list(etude.offline.Reader(tmp_path).episodes())
    assert [text_of(games, episode) for episode in read] == texts


def test_files_of_other_tokenizers_and_words_are_refused_by_name(games, tmp_path):
    etude.offline.write(tmp_path / "games.jsonl", games)

    def other():
        return TokenEnvironment(Wordle(), Characters("abcdefghijklmnopqrstuvwxyzBGY- \n?"))

    with pytest.raises(DataError, match=r"games.jsonl: its observations are of .*Tokens\(72 of 34, .*Tokens\(72 of 35"):
        etude.Run("bc", other, data=tmp_path / "games.jsonl")
    with pytest.raises(DataError, match=r"Tokens\(72 of 34, .*Tokens\(72 of 35"):
        etude.Run("bc", other, data=games)
    run = etude.Run("bc", "etude/Wordle-v0", data=tmp_path / "games.jsonl", seed=0)
    run.train(1)


def test_a_file_cannot_claim_more_tokens_than_memory_holds(games, tmp_path):
    etude.offline.write(tmp_path / "games.jsonl", games)
    text = (tmp_path / "games.jsonl").read_text().replace('"context":72', '"context":1000000000000')
    (tmp_path / "large.jsonl").write_text(text)
    with pytest.raises(DataError, match="damaged observation_space"):
        etude.offline.read(tmp_path / "large.jsonl")
