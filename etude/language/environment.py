"""Text environments as environments of tokens, for every algorithm with Discrete actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Discrete, Text

from etude.base import checks
from etude.base.data import Episode
from etude.base.errors import ConfigError, DataError, SpaceError
from etude.base.spaces import ACTION_MASK, Tokens
from etude.language.tokens import END, SHOWN, Characters, Tokenizer

LEGAL = "legal_texts"  # what of an info names the texts that may be said now
CONTEXT = "context"  # what of an environment's metadata says how many characters a game has at most
DEFAULT_CONTEXT = 256
LATEST = 1024  # lists of legal texts whose prefixes are kept
Prefixes = dict[tuple[int, ...], set[int]]  # which tokens may follow what was said


class TokenEnvironment(gym.Wrapper[Any, Any, Any, Any]):
    """A text environment, whose spaces are `Text`, with tokens as actions.

    An action is one token of what the agent says. What it says is given to the environment when it takes the token
    "end", or when nothing can be added: at the `max_length` of the action space, or where a legal text is complete.
    Until then rewards are 0. An observation is a value of `base.spaces.Tokens`: all tokens so far, of both sides.

    Legal tokens are the action mask in the info: prefixes of the texts in `info["legal_texts"]`, where the environment
    returns any, else whatever the action space has characters for.

    tokenizer: the default has a token for each character of both spaces. context: the tokens of an observation; the
    default is the environment's `metadata["context"]`, or 256. slide: see the last tokens of a game that is longer; by
    default that is an error. masked: whether legal tokens are the action mask. Of the many tokens of a pretrained model
    masks take more memory than all else: False allows every token, and gives the environment what comes of them, legal
    or not, at most `max_length` tokens and characters.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        tokenizer: Tokenizer | None = None,
        context: int | None = None,
        slide: bool = False,
        masked: bool = True,
    ):
        super().__init__(env)
        said, heard = env.action_space, env.observation_space
        if not isinstance(said, Text) or not isinstance(heard, Text):
            raise ConfigError(f"TokenEnvironment takes an environment whose spaces are Text; got {said} and {heard}.")
        if context is None:
            context = (env.metadata or {}).get(CONTEXT, DEFAULT_CONTEXT)
        checks.whole_number("TokenEnvironment: context", context)
        self.tokenizer: Tokenizer = tokenizer or Characters(said.character_set | heard.character_set)
        self._said, self._slide, self._end = said, slide, self.tokenizer.special.get(END, -1)
        self._masked = masked
        special, size = self.tokenizer.special.values(), self.tokenizer.size
        vocabulary = vocabulary_of(self.tokenizer)
        self._lengths = np.array([0 if token in special else len(text) for token, text in enumerate(vocabulary)])
        self._sayable = np.array(
            [token not in special and len(text) > 0 and said.character_set.issuperset(text)
             for token, text in enumerate(vocabulary)]
        )  # fmt: skip
        self._space = Tokens(vocabulary, context)
        self.observation_space, self.action_space = self._space, Discrete(size)
        self._prefixes: dict[tuple[str, ...], Prefixes] = {}  # of the legal texts of some turns
        self._game: list[int] = []  # what is in the window
        self._turn: list[int] = []  # what is being said
        self._legal: Prefixes | None = None
        self._mask = np.zeros(size, bool)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        text, info = self.env.reset(seed=seed, options=options)
        self._game = []
        return self._hear(text, info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Say one more token."""
        token = int(action)
        if not 0 <= token < len(self._mask) or not self._mask[token]:
            shown = repr(self._space.vocabulary[token]) if 0 <= token < len(self._mask) else "no token"
            raise SpaceError(
                f"the action {token} ({shown}) is not legal after {self._text(self._turn)!r}. Choose one of "
                f'info["{ACTION_MASK}"]: {np.flatnonzero(self._mask)[:20].tolist()}.'
            )
        self._append([token], "what the agent says")
        self._turn.append(token)
        if token != self._end and not self._look():
            return self._window(), 0.0, False, False, self._legal_tokens()
        text = self._text(self._turn)
        heard, reward, terminated, truncated, info = self.env.step(text)
        observation, info = self._hear(heard, info, last=bool(terminated or truncated))
        return observation, reward, terminated, truncated, info

    def render(self) -> Any:
        """What the environment renders; the text of the game where it renders nothing."""
        if self.render_mode is not None:
            return self.env.render()
        names, special = self._space.vocabulary, frozenset(self.tokenizer.special.values())
        spans = groupby(self._game, special.__contains__)  # characters may be of several tokens
        return "".join(
            "".join(names[token] for token in span) if silent else self.tokenizer.decode(list(span))
            for silent, span in spans
        )

    def _text(self, tokens: Sequence[int]) -> str:
        silent = self.tokenizer.special.values()
        return self.tokenizer.decode([token for token in tokens if token not in silent])[: self._said.max_length]

    def _hear(self, text: Any, info: dict[str, Any], last: bool = False) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin a turn of the agent. last: of an episode, where no action follows."""
        if not isinstance(text, str):
            raise SpaceError(f"the environment returned a {type(text).__name__}: {text!s:.80}; expected a text.")
        self._append(self.tokenizer.encode(text), "a text of the environment")
        if last:
            return self._window(), info
        self._turn, texts = [], info.get(LEGAL)
        self._legal = None if texts is None or not self._masked else self._prefixes_of(texts)
        self._look()
        left = {name: value for name, value in info.items() if name != LEGAL}
        return self._window(), {**self._legal_tokens(), **left}

    def _legal_tokens(self) -> dict[str, Any]:
        return {ACTION_MASK: self._mask} if self._masked else {}

    def _append(self, tokens: list[int], what: str) -> None:
        context, length = self._space.context, len(tokens) if self._slide else len(self._game) + len(tokens)
        if length > context:
            sliding = "" if len(tokens) > context else ", or slide=True to see the last ones"
            begins = self.tokenizer.decode((self._game + tokens)[:SHOWN])
            raise SpaceError(
                f"{what} makes a game of {length:,} tokens, more than context={context:,}, after {begins!r:.80}. Give "
                f"a larger context{sliding}."
            )
        self._game = (self._game + tokens)[-context:]

    def _window(self) -> np.ndarray:
        window = np.zeros(self._space.shape, self._space.dtype)
        window[: len(self._game)], window[-1] = self._game, len(self._game)
        return window

    def _look(self) -> bool:
        """Set the mask of the next token; returns whether nothing can be added to what is said."""
        if not self._masked:
            self._mask = np.ones(self.tokenizer.size, bool)
            return max(len(self._turn), len(self._text(self._turn))) >= self._said.max_length
        self._mask = np.zeros(self.tokenizer.size, bool)
        if self._legal is not None:
            following = self._legal[tuple(self._turn)]
            self._mask[list(following)] = True
            return bool(self._turn) and following == {self._end}
        length = sum(self._lengths[token] for token in self._turn)
        self._mask = self._sayable & (length + self._lengths <= self._said.max_length)
        full = not self._mask.any()
        if self._end >= 0 and length >= self._said.min_length:
            self._mask[self._end] = True
        if not self._turn and not self._mask.any():
            raise SpaceError(f"no token of {self.tokenizer!s:.200} is a text of {self._said}. Give another tokenizer.")
        return full

    def _prefixes_of(self, given: Any) -> Prefixes:
        texts = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else ()
        if texts in self._prefixes:
            return self._prefixes[texts]
        said = self._said
        wrong = [
            text for text in texts
            if not (isinstance(text, str) and len(text) <= said.max_length and said.character_set.issuperset(text))
        ]  # fmt: skip
        if wrong or not texts:
            raise SpaceError(
                f'info["{LEGAL}"] has {(wrong or [given])[0]!r:.80}; expected a tuple of at least one text of {said}. '
                "Where none may be said, end the episode."
            )
        found: Prefixes = {}
        for text in texts:
            tokens = tuple(self.tokenizer.encode(text))
            if (back := self.tokenizer.decode(tokens)) != text:
                raise SpaceError(
                    f"the tokenizer makes {back!r:.80} of the legal text {text!r:.80}: it loses or adds characters. "
                    "Give another, or one of Hugging Face the decoder that belongs to it."
                )
            for i, token in enumerate(tokens):
                found.setdefault(tokens[:i], set()).add(token)
            found.setdefault(tokens, set()).add(self._end)
        for prefix, following in found.items():
            if -1 in following and (len(following) > 1 or not prefix):
                raise SpaceError(
                    f"{self.tokenizer.decode(prefix)!r} is a legal text and begins another, or is empty, and the "
                    'tokenizer has no token "end".'
                )
        if len(self._prefixes) >= LATEST:
            self._prefixes.clear()
        self._prefixes[texts] = found
        return found


def vocabulary_of(tokenizer: Tokenizer) -> tuple[str, ...]:
    """The text of each token; of special ones, their names in brackets."""
    special = {number: f"<{name}>" for name, number in tokenizer.special.items()}
    return tuple(special.get(token) or tokenizer.decode([token]) for token in range(tokenizer.size))


class Game(NamedTuple):
    """A whole game: all tokens of both sides [L]; where the agent chose them; what each earned, 0 for the world's."""

    tokens: np.ndarray
    mine: np.ndarray
    reward: np.ndarray


def game_of(episode: Episode) -> Game:
    """The tokens of a recorded episode of a `TokenEnvironment`. DataError where the window slid over its beginning."""
    seen = episode.observation
    while isinstance(seen, dict):  # with an action mask beside it
        seen = seen["observation"]
    before, count = seen[:-1, -1].astype(np.int64), int(seen[-1, -1])
    if (np.diff(seen[:, -1].astype(np.int64)) < 1).any() or not np.array_equal(seen[-1, before], episode.action):
        raise DataError(
            "The last observation of an episode does not hold all of its tokens: its context was too short for it. "
            "Record it again with a larger context."
        )
    mine, reward = np.zeros(count, bool), np.zeros(count, np.float32)
    mine[before], reward[before] = True, episode.reward
    return Game(seen[-1, :count].astype(np.int64), mine, reward)


class GameWithTool:
    """A text environment as trainers of language models take one: `reset`, `get_reward`, and a method that is a tool
    of the model. See `environment_factory`."""

    make: Callable[[], gym.Env[Any, Any]]

    def __init__(self) -> None:
        self._env = type(self).make()
        self._return, self._over = 0.0, True

    def reset(self, seed: int | None = None, **row: Any) -> str | None:
        """Begin a game, and return what the environment says first. row: other columns of the prompt's row."""
        text, _ = self._env.reset(seed=seed)
        self._return, self._over = 0.0, False
        return text or None

    def get_reward(self) -> float:
        """The return of the game so far."""
        return self._return


def environment_factory(
    make: Callable[[], gym.Env[Any, Any]], tool: str, description: str, text: str = "What to say."
) -> type[Any]:
    """What `environment_factory` of TRL's GRPOTrainer takes: a class whose instances play games of a text environment.

    make: makes the environment, whose spaces are `Text`, such as `language.Wordle`. tool: the name by which the model
    calls it, such as "guess". description, text: what the model reads of the tool, and of its only argument, `text`.
    An answer of the environment is the tool's; what is no text of the action space, or comes after the end, is a
    ValueError, which TRL shows the model. The reward of a rollout is the return of its game.
    """
    env = make()
    env.close()  # only its spaces are looked at here
    if not isinstance(env.action_space, Text) or not isinstance(env.observation_space, Text):
        raise ConfigError(
            f"environment_factory takes an environment whose spaces are Text; got {env.action_space} and "
            f"{env.observation_space}."
        )
    if not tool.isidentifier() or tool.startswith("_") or tool in vars(GameWithTool):
        raise ConfigError(f"environment_factory: tool = {tool!r}; expected a name for a method, such as 'guess'.")

    class Playing(GameWithTool):
        def say(self, text: str) -> str:
            if self._over:
                raise ValueError("The game is over.")
            if not self._env.action_space.contains(text):
                raise ValueError(f"{text!r:.80} is none of {self._env.action_space}.")
            heard, reward, terminated, truncated, _ = self._env.step(text)
            self._return, self._over = self._return + float(reward), bool(terminated or truncated)
            return str(heard)

    say: Any = Playing.__dict__["say"]
    say.__name__, say.__doc__ = tool, f"{description}\n\nArgs:\n    text: {text}\n\nReturns:\n    What is answered."
    return type(type(env.unwrapped).__name__, (GameWithTool,), {tool: say, "make": staticmethod(make)})
