"""Words that nobody has to license: pronounceable ones, from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from etude.base.errors import ConfigError

CONSONANTS, VOWELS = "bcdfghjklmnpqrstvwxyz", "aeiou"
# How often letters and shapes are drawn: about as in English words of five letters.
_CONSONANTS = np.array([5, 7, 7, 4, 5, 6, 0.6, 4, 11, 6, 9, 6, 0.3, 13, 20, 10, 3, 4, 0.6, 2, 0.8])
_VOWELS = np.array([28, 32, 16, 15, 9])
_SHAPES = {"cvcvc": 20, "ccvcv": 18, "cvccv": 16, "cvvcv": 12, "vcvcv": 5, "ccvcc": 12, "cvccc": 6, "ccvvc": 11}


def words(count: int = 100, seed: int = 0) -> tuple[str, ...]:
    """So many different words of five letters, sorted; the same for a seed."""
    if type(count) is not int or not 1 <= count <= 20_000:
        raise ConfigError(f"language.words: count = {count!r}; expected a whole number from 1 to 20,000.")
    rng, found = np.random.default_rng(seed), set[str]()
    shapes = np.array(list(_SHAPES.values()), float)
    letters = {"c": (list(CONSONANTS), _CONSONANTS / _CONSONANTS.sum()), "v": (list(VOWELS), _VOWELS / _VOWELS.sum())}
    while len(found) < count:
        shape = list(_SHAPES)[rng.choice(len(shapes), p=shapes / shapes.sum())]
        found.add("".join(rng.choice(letters[kind][0], p=letters[kind][1]) for kind in shape))
    return tuple(sorted(found))


def as_words(given: int | Sequence[str]) -> tuple[str, ...]:
    """A list of words, or so many generated ones. ConfigError for what are no different words of small letters."""
    if isinstance(given, int):
        return words(given)
    found: tuple[Any, ...] = tuple(given)
    if not found or len(set(found)) < len(found):
        raise ConfigError(f"words: {len(found)} words, {len(set(found))} of them different; expected no word twice.")
    for word in found:
        if not isinstance(word, str) or len(word) != 5 or not (word.isascii() and word.isalpha() and word.islower()):
            raise ConfigError(f"words: {word!r}; expected five small letters from a to z.")
    return found
