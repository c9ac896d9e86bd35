"""Tokenizers: texts as numbers and back, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

import etude
from etude.base.errors import ConfigError, SpaceError
from etude.language import Characters, HuggingFace, TokenEnvironment, Wordle, game_of, words


def test_characters():
    tokenizer = Characters("cabba\n")
    assert tokenizer.size == 6 and tokenizer.special == {"pad": 0, "end": 1}
    assert tokenizer.encode("abc\n") == [3, 4, 5, 2] and tokenizer.decode([3, 4, 5, 2]) == "abc\n"
    assert tokenizer.encode("") == [] and tokenizer.decode([]) == ""
    with pytest.raises(SpaceError, match=r"character 2 of a text, 'é' in 'abé', is no token of Characters\('\\nabc'\)"):
        tokenizer.encode("abé")
    with pytest.raises(SpaceError) as long:
        tokenizer.encode("a" * 2**20 + "é")
    assert len(str(long.value)) < 300


@pytest.fixture(scope="module")
def library():
    return pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def pairs(library):
    """A tokenizer of pairs of letters, trained here."""
    tokenizer = library.Tokenizer(library.models.BPE())
    alphabet = list("abcdefghijklmnopqrstuvwxyzBGY- \n")
    trainer = library.trainers.BpeTrainer(
        vocab_size=60, special_tokens=["<pad>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.decoder = library.decoders.Fuse()
    tokenizer.train_from_iterator(words(100), trainer)
    return tokenizer


def test_one_of_hugging_face_plays(pairs, tmp_path):
    pairs.save(str(tmp_path / "tokenizer.json"))
    tokenizer = HuggingFace(tmp_path / "tokenizer.json", end="</s>", pad="<pad>")
    assert tokenizer.size == 60 and tokenizer.special == {"end": 1, "pad": 0}
    data = etude.record(lambda: TokenEnvironment(Wordle(100, list_words=True), tokenizer), 5)
    for episode in data.episodes:
        game = game_of(episode)
        lines = tokenizer.decode(game.tokens).splitlines()
        assert {line.split(" ")[0] for line in lines} <= set(words(100))
        assert len(lines) in range(1, 7) and game.mine.sum() < 5 * len(lines)  # fewer tokens than letters
    with pytest.raises(SpaceError, match="character 3 of a text, 'é'"):
        tokenizer.encode("cabé")


def test_a_tokenizer_that_adds_spaces_is_refused_for_legal_texts(pairs, library):
    without = library.Tokenizer.from_str(pairs.to_str())
    without.decoder = library.decoders.WordPiece()
    with pytest.raises(SpaceError, match="of the legal text '.*': it loses or adds characters"):
        TokenEnvironment(Wordle(100, list_words=True), HuggingFace(without, end="</s>")).reset()


def test_what_a_tokenizer_drops_or_does_not_know_is_an_error(library, tmp_path):
    known = {"<unk>": 0, "</s>": 1, "red": 2, "blue": 3}
    for unknown in ({}, {"unk_token": "<unk>"}):
        given = library.Tokenizer(library.models.WordLevel(known, **unknown))
        given.pre_tokenizer = library.pre_tokenizers.Whitespace()
        tokenizer = HuggingFace(given, end="</s>")
        assert tokenizer.encode("red blue") == [2, 3]
        with pytest.raises((SpaceError), match="character 4 of a text, 'g' in 'red green'|WordLevel error"):
            tokenizer.encode("red green")
    with pytest.raises(ConfigError, match="end='<eos>' is no token"):
        HuggingFace(given, end="<eos>")
    with pytest.raises(ConfigError, match="there is no file"):
        HuggingFace("missing.json", end="</s>")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ConfigError, match="expected a tokenizer.json"):
        HuggingFace(tmp_path / "bad.json", end="</s>")


def test_a_window_holds_many_tokens(pairs):
    env = TokenEnvironment(Wordle(100), HuggingFace(pairs, end="</s>"), context=300)
    observation, _ = env.reset(seed=0)
    assert observation.dtype == np.int32 and observation.shape == (301,)
