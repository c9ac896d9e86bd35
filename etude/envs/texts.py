"""Texts in observations, as numbers: the code of each character, and 0 after the last one."""

from __future__ import annotations

import copy
import string
import warnings
from typing import Any

import numpy as np
from gymnasium.spaces import MultiDiscrete, Text

from etude.base.spaces import Space

SAMPLES, LATEST = 256, 1024  # texts that are drawn of a space, and texts whose codes are kept
LONGEST = 128  # characters, of a space that does not say how many its texts have
CHARACTERS = frozenset(string.ascii_lowercase + " ,.")


def is_text(space: Space) -> bool:
    """Whether the values of a space are texts: of a `Text`, or of any other whose dtype is str, as MiniGrid's."""
    return space.dtype is not None and space.dtype.kind == "U"


class Codes:
    """Turns texts of a space into its codes, `space`: a MultiDiscrete with a place for each character.

    Characters count from 1 in sorted order. A space that is no `Text` does not say which it has: small letters and
    those of a few samples have codes, all others share one; of texts with more than 128 characters the first are read.
    """

    def __init__(self, space: Space):
        self._source, self._own = space, isinstance(space, Text)
        characters, self._least, self._most = _known(space)
        self._codes = {character: code for code, character in enumerate(sorted(characters), 1)}
        size = len(self._codes) + 1 + (not self._own)
        self._dtype = np.dtype(np.uint8 if size <= 256 else np.int32)
        self.space: MultiDiscrete[Any] = MultiDiscrete(np.full(self._most, size), dtype=self._dtype.type)
        self._latest: dict[str, np.ndarray] = {}

    def __call__(self, text: Any) -> np.ndarray:
        """[places]. Raises ValueError for what is no text of the space."""
        row = self._latest.get(text) if isinstance(text, str) else None
        if row is None:
            row = self._row(text)
            if len(self._latest) >= LATEST:
                self._latest.clear()
            self._latest[text] = row
        return row

    def _row(self, text: Any) -> np.ndarray:
        if not isinstance(text, str):
            raise ValueError(f"is a {type(text).__name__}: {str(text)[:80]}; expected a text")
        if self._own and (len(text) > self._most or 0 < len(text) < self._least):  # an absent agent sees none at all
            known = f"expected {self._least} to {self._most}, as {self._source} says"
            raise ValueError(f"has {len(text)} characters: {text[:80]!r}; {known}")
        if self._own and (unknown := [each for each in text if each not in self._codes]):
            raise ValueError(f"is {text[:80]!r}, with {unknown[0]!r}; expected characters of {self._source}")
        if len(text) > self._most:
            warnings.warn(
                f"A text in an observation has {len(text)} characters, and its space, a {type(self._source).__name__}, "
                f"does not say how many it may have: agents see the first {self._most}. Make it a "
                "gymnasium.spaces.Text(max_length).",
                stacklevel=2,
            )
        row = np.zeros(self._most, self._dtype)
        codes = [self._codes.get(each, len(self._codes) + 1) for each in text[: self._most]]
        row[: len(codes)] = codes
        return row


def _known(space: Space) -> tuple[frozenset[str], int, int]:
    """The characters, and the least and the greatest length, of the texts of a space, as far as it says."""
    if isinstance(space, Text):
        return space.character_set, space.min_length, space.max_length
    own, samples = copy.deepcopy(space), [""]
    try:
        own.seed(0)
        samples += [str(own.sample()) for _ in range(SAMPLES)]
    except Exception:  # it has none to show
        pass
    return CHARACTERS.union(*samples), 0, max(LONGEST, *map(len, samples))
