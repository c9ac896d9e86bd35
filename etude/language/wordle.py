"""Wordle as LMRL-Gym plays it (Abdulhai et al. 2023, arXiv:2311.18232), the policies that its data are from, and words
that nobody has to license: pronounceable ones, from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Text

from etude.base.errors import ConfigError
from etude.base.trees import Tree
from etude.language.environment import LEGAL
from etude.language.tokens import Characters
from etude.losses.distributions import Categorical

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


def _as_words(given: int | Sequence[str]) -> tuple[str, ...]:
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


GUESSES, LETTERS = 6, 5
COLOURS = "BYG"  # not in the word; elsewhere in it; here
NOTHING = "-"  # in the place of colours, of what is no word of the list
HEARD = f" {COLOURS}{NOTHING}\n"
PAINT = {"B": "97;100", "Y": "30;43", "G": "30;42", NOTHING: "9"}  # of a terminal, by ANSI's numbers; 9: struck through
CHARACTERS = Characters(ascii_lowercase + HEARD)


class _Colours:
    """The colours of guesses against all words of a list, as numbers in base 3."""

    def __init__(self, words: Sequence[str]):
        self.words, self.places = tuple(words), {word: i for i, word in enumerate(words)}
        self._letters = np.array([list(word.encode()) for word in words], np.uint8)
        self._rows: dict[int, np.ndarray] = {}

    def of(self, guess: int) -> np.ndarray:
        """[words] the colours of this guess for each hidden word. A letter is yellow wherever the word has it."""
        if guess not in self._rows:
            own = self._letters[guess]
            has = (self._letters[:, :, None] == own).any(1)
            colours = has.astype(np.uint8) + (self._letters == own)
            self._rows[guess] = colours @ np.array([81, 27, 9, 3, 1], np.uint8)
        return self._rows[guess]

    def candidates(self, lines: Sequence[str]) -> np.ndarray:
        """The numbers of the words that fit all lines `guess COLOURS`; others than those of words tell nothing."""
        left = np.arange(len(self.words))
        for line in lines:
            guess, _, heard = line.partition(" ")
            colours = heard[1::2] if len(heard) > LETTERS else heard  # after each letter, where these are repeated
            if guess in self.places and set(colours) <= set(COLOURS):
                code = int("".join(str(COLOURS.index(each)) for each in colours), 3)
                left = left[self.of(self.places[guess])[left] == code]
        return left


class Wordle(gym.Env[str, str]):
    """Guess a hidden word of five letters within six guesses, at a reward of -1 for each but the right one.

    The environment answers `" BYGBB\\n"`: G where the hidden word has the letter in this place, Y where it has it
    elsewhere (repeated letters are not counted), B where it does not have it. As in LMRL-Gym, the hidden word is drawn
    again at every guess, from the words that fit all answers; a guess that is no word of the list costs its reward, and
    is answered by `" -----\\n"`.

    words: a list, or how many are generated. list_words: name the words as legal texts, so that no other can be said.
    render_mode: "ansi" renders the guesses as a terminal shows them, each letter on its colour. repeat_letters: answer
        `" sBhYaGrBeB\n"`, each colour after its letter: with a token for each such pair, what a guess tells is learned
        in a tenth of the gradient steps.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1, "context": GUESSES * (LETTERS + 2 + LETTERS)}

    def __init__(
        self,
        words: int | Sequence[str] = 100,
        list_words: bool = False,
        render_mode: str | None = None,
        repeat_letters: bool = False,
    ):
        self._colours, self._repeat = _Colours(_as_words(words)), repeat_letters
        self._info: dict[str, Any] = {LEGAL: self._colours.words} if list_words else {}
        self.action_space: Text = Text(LETTERS, min_length=LETTERS, charset=ascii_lowercase)
        self.observation_space: Text = Text(LETTERS + 2, min_length=0, charset=HEARD)
        if repeat_letters:
            self.observation_space = Text(2 * LETTERS + 2, min_length=0, charset=ascii_lowercase + HEARD)
            self.metadata: dict[str, Any] = {**self.metadata, "context": GUESSES * (LETTERS + 2 + 2 * LETTERS)}
        self._left, self.render_mode = np.arange(0), render_mode
        self._lines: list[tuple[str, str]] = []  # guesses, and their colours

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._left, self._lines = np.arange(len(self._colours.words)), []
        return "", dict(self._info)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        found, colours, guess = False, NOTHING * LETTERS, self._colours.places.get(action)
        if guess is not None:
            hidden = self._left[self.np_random.integers(len(self._left))]
            codes = self._colours.of(guess)
            self._left = self._left[codes[self._left] == codes[hidden]]
            found = bool(guess == hidden)
            colours = np.base_repr(int(codes[hidden]), 3).zfill(LETTERS).translate(str.maketrans("012", COLOURS))
        self._lines.append((action.upper(), colours))
        ended = found or len(self._lines) == GUESSES
        heard = "".join(map("".join, zip(action, colours, strict=False))) if self._repeat else colours
        return f" {heard}\n", 0.0 if found else -1.0, ended, False, dict(self._info)

    def render(self) -> Any:
        """The guesses so far, for a terminal; None where it was made without a render mode."""
        if self.render_mode is None:
            return None
        lines = (zip(*line, strict=False) for line in self._lines)
        return "".join("".join(f"\x1b[{PAINT[c]}m {letter} \x1b[0m" for letter, c in line) + "\n" for line in lines)


class _WordPolicy:
    """Acts in a `TokenEnvironment` of Wordle, by how likely each word is said next: `etude.record(..., policy,
    Sample())` plays whole words, each with its probability.

    words: as of the environment.
    """

    state_size = 0  # it reads the game in what it sees

    def __init__(self, words: int | Sequence[str] = 100):
        self.colours: _Colours = _Colours(_as_words(words))
        self._tokens = np.array([CHARACTERS.encode(word) for word in self.colours.words])
        self._beginning: dict[str, np.ndarray] = {}  # of words -> the numbers of these
        self._kept: dict[str, np.ndarray] = {}  # what was said last -> how likely words are

    def likely(self, candidates: np.ndarray) -> np.ndarray:
        """[words] how likely each is said, where these fit what is known."""
        raise NotImplementedError

    def act(self, observation: Tree) -> Categorical:
        """The distribution of the next letter for [N, ...] observations."""
        chances = np.zeros((len(observation["observation"]), CHARACTERS.size), np.float32)
        for row, window in zip(chances, observation["observation"].tolist(), strict=True):
            game, _, begun = CHARACTERS.decode(window[: window[-1]]).rpartition("\n")
            # The numbers of the words that begin like this
            if begun not in self._beginning:
                said = CHARACTERS.encode(begun)
                self._beginning[begun] = np.flatnonzero((self._tokens[:, : len(begun)] == said).all(1))
            fits = self._beginning[begun]
            found = self._kept.get(game)
            if found is None:
                if len(self._kept) >= 1024:
                    self._kept.clear()
                self._kept[game] = found = self.likely(self.colours.candidates(game.split("\n")))
            row += np.bincount(self._tokens[fits, len(begun)], found[fits], CHARACTERS.size)
        legal = chances > 0
        return Categorical(np.log(np.where(legal, chances, 1.0)), legal)


class RandomMixture(_WordPolicy):
    """A random word that fits what is known, with probability `prob_smart`, else any word of the list."""

    def __init__(self, prob_smart: float, words: int | Sequence[str] = 100):
        super().__init__(words)
        if not 0.0 <= prob_smart <= 1.0:
            raise ConfigError(f"RandomMixture: prob_smart = {prob_smart!r}; expected a probability from 0 to 1.")
        self._smart = prob_smart

    def likely(self, candidates: np.ndarray) -> np.ndarray:
        """See `_WordPolicy`."""
        count = len(self.colours.words)
        found = np.full(count, (1.0 - self._smart) / count)
        found[candidates] += self._smart / len(candidates)
        return found


class GreedyInformation(_WordPolicy):
    """One of the words that fit what is known and leave the least entropy of the hidden word on average."""

    def __init__(self, words: int | Sequence[str] = 100):
        super().__init__(words)
        self._best: dict[bytes, np.ndarray] = {}

    def likely(self, candidates: np.ndarray) -> np.ndarray:
        """See `_WordPolicy`."""
        key = candidates.tobytes()
        if key not in self._best:
            counts = [np.bincount(self.colours.of(guess)[candidates], minlength=243) for guess in candidates.tolist()]
            entropy = np.array([(each * np.log(np.maximum(each, 1))).sum() for each in counts]) / len(candidates)
            self._best[key] = candidates[entropy <= entropy.min() + 1e-9]
        found = np.zeros(len(self.colours.words))
        found[self._best[key]] = 1.0 / len(self._best[key])
        return found
