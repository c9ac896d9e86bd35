"""Texts as numbers, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from etude.base.errors import ConfigError, SpaceError, needing

PAD, END = "pad", "end"  # what fills places without a token, and the token that ends what an agent says
SHOWN = 60  # characters of a text in a message


class Tokenizer(Protocol):
    """What turns texts into tokens. `etude.language.Characters` and `HuggingFace` are tokenizers.

    size: how many tokens there are. special: the number of each special token, by what it is for; "end" is required
        where an agent decides itself when it has said enough.
    """

    size: int
    special: Mapping[str, int]

    def encode(self, text: str) -> list[int]:
        """The tokens of a text. Raises SpaceError where a character has none."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""


class Characters:
    """A token for each character: 0 is padding, 1 ends what an agent says, the others are in sorted order."""

    def __init__(self, characters: Iterable[str]):
        self.characters: str = "".join(sorted(set(characters)))
        self.special: Mapping[str, int] = {PAD: 0, END: 1}
        self._texts = ("<pad>", "<end>", *self.characters)
        self._numbers = {character: number for number, character in enumerate(self.characters, len(self.special))}
        self.size: int = len(self._texts)

    def __repr__(self) -> str:
        return f"Characters({self.characters!r})"

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer`."""
        try:
            return [self._numbers[character] for character in text]
        except KeyError:
            raise _unknown(text, next(at for at, each in enumerate(text) if each not in self._numbers), self) from None

    def decode(self, tokens: Sequence[int]) -> str:
        """See `Tokenizer`."""
        return "".join([self._texts[token] for token in tokens])


class HuggingFace:
    """A tokenizer of the library `tokenizers`, the extra `language`.

    given: a `tokenizer.json`, or an object of the library. end, pad: the texts of special tokens, such as "</s>".
    """

    def __init__(self, given: Any, end: str, pad: str | None = None):
        with needing("language.HuggingFace", "language"):
            from tokenizers import Tokenizer as Given
        if isinstance(given, str | Path):
            if not Path(given).is_file():
                raise ConfigError(f"language.HuggingFace: there is no file {str(given)!r}; give a tokenizer.json.")
            try:
                given = Given.from_file(str(given))
            except Exception as problem:  # the library raises no class of its own
                raise ConfigError(f"language.HuggingFace: {problem}; expected a tokenizer.json.") from problem
        self._given = given
        self.size: int = given.get_vocab_size()
        found = {name: (text, given.token_to_id(text)) for name, text in ((END, end), (PAD, pad)) if text is not None}
        for name, (text, number) in found.items():
            if number is None:
                raise ConfigError(f"language.HuggingFace: {name}={text!r} is no token of this tokenizer.")
        self.special: Mapping[str, int] = {name: number for name, (_, number) in found.items()}
        unknown = getattr(given.model, "unk_token", None)
        self._unknown = None if unknown is None else given.token_to_id(unknown)
        self._single: dict[int, str] = {}  # the texts of single tokens, which every environment asks for

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer`."""
        found, read = self._given.encode(text, add_special_tokens=False), 0
        for token, (start, stop) in zip(found.ids, found.offsets, strict=True):
            if token == self._unknown or text[read:start].strip():
                raise _unknown(text, start if token == self._unknown else read, "the tokenizer")
            read = max(read, stop)
        if text[read:].strip():
            raise _unknown(text, read, "the tokenizer")
        return list(found.ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """See `Tokenizer`."""
        if len(tokens) != 1:
            return self._given.decode(list(map(int, tokens)), skip_special_tokens=False)
        token = int(tokens[0])
        if token not in self._single:
            self._single[token] = self._given.decode([token], skip_special_tokens=False)
        return self._single[token]


def _unknown(text: str, at: int, tokenizer: Any) -> SpaceError:
    around = text[max(0, at - SHOWN // 2) : at + SHOWN // 2]
    return SpaceError(
        f"character {at} of a text, {text[at]!r} in {around!r}, is no token of {tokenizer!s:.200}. Use a tokenizer "
        "that has it, or leave it out of what the environment says."
    )
