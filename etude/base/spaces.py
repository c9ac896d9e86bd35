"""Spaces, as Gymnasium defines them, and what etude needs to know of them.

Agents see *canonical* spaces: Box actions in [-1, 1] (where the environment's have two bounds; see `scale`), Discrete
starting at 0, an action mask under the key `action_mask` of a Dict observation. `envs` makes them so. An action is one
array of one axis, or of none for Discrete ones; see `ActionLayout`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from etude.base.errors import SpaceError
from etude.base.trees import Tree

Space: TypeAlias = gym.Space[Any]
ACTION_MASK = "action_mask"


@dataclass(frozen=True)
class Spaces:
    """The canonical observation and action spaces of a task.

    agents: those of each of several agents, by name; None where there is one. See `joint` for what joins them.
    """

    observation: Any  # a Space: Any, because each kind has attributes of its own
    action: Any
    agents: dict[str, Spaces] | None = None
    turns: bool = False  # whether several agents act one after the other

    @property
    def masked(self) -> bool:
        """Whether observations carry an action mask."""
        return isinstance(self.observation, Dict) and ACTION_MASK in self.observation.spaces


def parts(space: Space) -> list[tuple[Any, Space]]:
    """The (key, space) pairs of a Dict (sorted by key) or Tuple space, in the order of `trees`; [] for others."""
    if isinstance(space, Dict):
        return sorted(space.spaces.items())
    if isinstance(space, Tuple):
        return list(enumerate(space.spaces))
    return []


def leaves(space: Space, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Space]]:
    """The (path, space) pairs of the parts of a space that have no parts, in the order of `trees.leaves`."""
    inner = parts(space)
    return [leaf for key, part in inner for leaf in leaves(part, (*path, key))] if inner else [(path, space)]


class Hybrid(Box):
    """Actions of numbers and choices, [numbers, choices] in one float32 array, in which whole numbers are exact.

    numbers: a Box of one axis. choices: a MultiDiscrete of one axis, counted from 0.
    """

    def __init__(self, numbers: Box, choices: MultiDiscrete):
        self.numbers: Box = numbers
        self.choices: MultiDiscrete = choices
        low, high = np.append(numbers.low, np.zeros(choices.shape)), np.append(numbers.high, choices.nvec - 1)
        super().__init__(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)

    def __repr__(self) -> str:
        return f"Hybrid({self.numbers}, {self.choices})"

    def sample(self, mask: Any = None, probability: Any = None) -> np.ndarray:
        return np.append(self.numbers.sample(), self.choices.sample()).astype(np.float32)

    def seed(self, seed: int | None = None) -> Any:
        return self.numbers.seed(seed), self.choices.seed(seed)


class Shifted(Box):
    """Observations in numbers of 64 bits that differ by less than a float32 shows: agents see float32 of their distance
    from `origin`, as they see Discrete ones from their start.

    given: the environment's space.
    """

    def __init__(self, given: Box, origin: Any):
        self.given = given
        self.origin: np.ndarray = np.asarray(origin, np.int64 if given.dtype == np.int64 else np.float64)
        if self.origin.shape != given.shape:
            raise ValueError(f"the origin of {describe(given)} has the shape {self.origin.shape}")
        low, high = (np.asarray(end, np.float64) - self.origin for end in (given.low, given.high))
        with np.errstate(over="ignore"):  # a bound beyond float32 is no bound
            super().__init__(low.astype(np.float32), high.astype(np.float32), given.shape, np.float32)


class Tokens(MultiDiscrete):
    """The last tokens of a text: `context` numbers, 0 after the last one, and how many there are.

    vocabulary: the text of each token, by its number; what tells tokenizers apart.
    """

    def __init__(self, vocabulary: Sequence[str], context: int):
        self.vocabulary: tuple[str, ...] = tuple(vocabulary)
        self.context: int = context
        kind: Any = np.uint8 if max(len(self.vocabulary) - 1, context) < 256 else np.int32
        sizes = np.append(np.full(context, len(self.vocabulary)), context + 1)
        super().__init__(sizes, dtype=kind)

    def text(self, window: np.ndarray) -> str:
        """The text of one value of the space."""
        return "".join(self.vocabulary[token] for token in window[: window[-1]])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokens) and (self.vocabulary, self.context) == (other.vocabulary, other.context)

    def __repr__(self) -> str:
        digest = zlib.crc32("\0".join(self.vocabulary).encode(errors="surrogatepass"))
        return f"Tokens({self.context} of {len(self.vocabulary)}, {digest:08x})"


Origins = Sequence[tuple[Sequence[Any], Any]]  # the path of a leaf, and its origin, as plain data


def with_origins(space: Space, origins: Origins, path: tuple[Any, ...] = ()) -> Space:
    """A space with the leaves of these paths counted from their origins. path: where the space is itself."""
    if not origins:
        return space
    if isinstance(space, Dict):
        return Dict({key: with_origins(part, origins, (*path, key)) for key, part in parts(space)})
    if isinstance(space, Tuple):
        return Tuple([with_origins(part, origins, (*path, key)) for key, part in parts(space)])
    origin = next((own for place, own in origins if tuple(place) == path), None)
    alike = isinstance(space, Box) and not isinstance(space, Shifted)
    return Shifted(space, origin) if alike and origin is not None else space  # type: ignore[arg-type]


def origins_of(space: Space) -> Origins:
    """What `with_origins` made this space with."""
    return [(path, leaf.origin.tolist()) for path, leaf in leaves(space) if isinstance(leaf, Shifted)]


class ActionLayout:
    """Where the parts of an environment's action are in the array that agents choose: flattened, numbers before
    choices, each in the order of `trees`.

    space: the environment's. each: its leaves as agents see them, in that order.
    """

    def __init__(self, space: Space, each: Sequence[Space]):
        self._own, self._alone = space, not parts(space)
        self._shapes = [tuple(leaf.shape or ()) for leaf in each]
        if self._alone:
            self.space: Space = _flat(each[0])
            return
        boxes = [leaf for leaf in each if isinstance(leaf, Box)]
        nvec = [n for leaf in each for n in choices(leaf)]
        low, high = (np.concatenate([[], *(getattr(leaf, end).ravel() for leaf in boxes)]) for end in ("low", "high"))
        numbers = Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)
        both = Hybrid(numbers, MultiDiscrete(nvec)) if nvec and len(low) else None
        self.space = both or (MultiDiscrete(nvec) if nvec else numbers)
        number, choice = 0, len(low)
        self._places = []
        for leaf, shape in zip(each, self._shapes, strict=True):
            size = math.prod(shape)
            start = number if isinstance(leaf, Box) else choice
            number, choice = (number + size, choice) if isinstance(leaf, Box) else (number, choice + size)
            self._places.append(slice(start, start + size))

    def split(self, action: np.ndarray) -> list[np.ndarray]:
        """Actions [n, ...] of agents as those of each leaf, in its own shape."""
        own = [action] if self._alone else [action[:, place] for place in self._places]
        each = zip(own, self._shapes, strict=True)
        return [part if part.shape[1:] == shape else part.reshape(-1, *shape) for part, shape in each]

    def join(self, each: Sequence[np.ndarray]) -> np.ndarray:
        """The inverse of `split`."""
        if self._alone:
            return each[0].reshape(len(each[0]), *(self.space.shape or ()))
        found = np.empty((len(each[0]), *self.space.shape), self.space.dtype)  # type: ignore[misc]
        for place, part in zip(self._places, each, strict=True):
            found[:, place] = part.reshape(len(part), -1)
        return found

    def tree(self, each: Sequence[Any]) -> Tree:
        """What belongs to each leaf, in the dicts and tuples of the environment's space."""
        return tree_of(self._own, iter(each))


def tree_of(space: Space, each: Iterator[Any]) -> Tree:
    """What belongs to each leaf of a space, in dicts and tuples as its values are."""
    inner = parts(space)
    if not inner:
        return next(each)
    found = {key: tree_of(part, each) for key, part in inner}
    return found if isinstance(space, Dict) else tuple(found.values())


def _flat(space: Any) -> Any:
    """A space of actions with one axis; Discrete as it is."""
    if isinstance(space, Box):
        return Box(space.low.ravel(), space.high.ravel(), dtype=space.dtype.type)
    if isinstance(space, MultiDiscrete):
        return MultiDiscrete(space.nvec.ravel(), dtype=space.dtype.type)
    return MultiBinary(math.prod(space.shape)) if isinstance(space, MultiBinary) else space


def choices(space: Space) -> list[int]:
    """Among how many each place of an action chooses, in the order of `leaves`; [] for Box ones."""
    if inner := parts(space):
        return [n for _, part in inner for n in choices(part)]
    if isinstance(space, Discrete):
        return [int(space.n)]
    if isinstance(space, Hybrid):
        return choices(space.choices)
    if isinstance(space, MultiDiscrete):
        return [int(n) for n in space.nvec.ravel()]
    return [2] * math.prod(space.shape or ()) if isinstance(space, MultiBinary) else []


GREY = 16  # pixels: uint8 arrays of two dimensions are grey images where both are at least as long


def is_image(space: Space) -> TypeGuard[Box]:
    """Whether a space holds images: uint8 with three dimensions, with four (stacked images), or with two that are long
    enough. See `networks.encoding.Image` for their order."""
    if not isinstance(space, Box) or space.dtype != np.uint8:
        return False
    return len(space.shape) in (3, 4) or (len(space.shape) == 2 and min(space.shape) >= GREY)


def is_float_image(space: Space) -> bool:
    """Whether a space looks as if it held images of floats, one or a stack: two sides of at least 8 pixels. They are
    vectors for all networks but `Conv`."""
    if not isinstance(space, Box) or space.dtype.kind != "f" or len(space.shape) not in (3, 4):
        return False
    return sum(side >= 8 for side in space.shape[-3:]) >= 2


def zeros(space: Space, *batch: int) -> Tree:
    """A tree of zero arrays of shape `[*batch, ...]` that can hold values of `space`."""
    if isinstance(space, Dict):
        return {key: zeros(part, *batch) for key, part in parts(space)}
    if isinstance(space, Tuple):
        return tuple(zeros(part, *batch) for _, part in parts(space))
    return np.zeros((*batch, *(space.shape or ())), storage_dtype(space))


def storage_dtype(space: Space) -> np.dtype:
    """The dtype in which values of a space are kept: float64 becomes float32, other dtypes stay."""
    if space.dtype == np.float64:
        return np.dtype(np.float32)
    return np.dtype(space.dtype)


def limits(space: Space) -> list[tuple[Any, Any]]:
    """The least and the greatest value of each leaf, in the order of `trees.leaves`, as agents see the space; None
    where they are not the space's own to say: observations leave the bounds of a Box by rounding."""
    inner = parts(space)
    if inner:
        return [found for _, part in inner for found in limits(part)]
    if isinstance(space, Discrete):
        return [(0, int(space.n) - 1)]
    if isinstance(space, MultiDiscrete):
        return [(0, space.nvec - 1)]
    if isinstance(space, Hybrid):
        anything = np.full(space.numbers.shape, np.inf)
        return [(np.append(-anything, np.zeros(space.choices.shape)), np.append(anything, space.choices.nvec - 1))]
    return [(0, 1)] if isinstance(space, MultiBinary) else [(None, None)]


def scale(space: Box) -> tuple[np.ndarray, np.ndarray, Box]:
    """(middle, half width, the canonical space) of Box actions: `middle + half width * canonical action` is the
    environment's. Elements with two bounds are chosen from [-1, 1]; with one, they are counted from it; others are as
    they are. The largest float32 is no bound."""
    largest = np.finfo(np.float32).max
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    below, above = low > -largest, high < largest
    first, last = np.where(below, low, 0.0), np.where(above, high, 0.0)
    both = below & above
    half = np.where(both & (last > first), (last - first) / 2, 1.0)
    middle = np.where(both, first + (last - first) / 2, first + last)
    least = np.where(below, np.where(above, -1.0, 0.0), -np.inf)
    most = np.where(above, np.where(below, 1.0, 0.0), np.inf)
    return middle, half, Box(least.astype(np.float32), most.astype(np.float32), space.shape, np.float32)


def bounded(space: Space) -> bool:
    """Whether every number of Box actions has two finite bounds; True for other spaces."""
    return not isinstance(space, Box) or bool(np.isfinite([space.low, space.high]).all())


def clipped_to(space: Space) -> tuple[np.ndarray, np.ndarray] | None:
    """The bounds (low, high) that environments clip Box actions to; None where nothing is clipped."""
    if not isinstance(space, Box) or not (np.isfinite(space.low) | np.isfinite(space.high)).any():
        return None
    return space.low, space.high


def within(space: Space, action: np.ndarray) -> np.ndarray:
    """Actions [..., *shape] as environments execute them, clipped to the bounds of the agent's space."""
    bounds = clipped_to(space)
    return action if bounds is None else np.clip(action, *bounds)


def from_zero(space: Space) -> Space:
    """The same space as agents see it: counted from 0, and without float64."""
    if isinstance(space, Dict):
        return Dict({key: from_zero(part) for key, part in parts(space)})
    if isinstance(space, Tuple):
        return Tuple([from_zero(part) for _, part in parts(space)])
    if isinstance(space, Discrete):
        return Discrete(int(space.n))
    if isinstance(space, MultiDiscrete) and not isinstance(space, Tokens):
        return MultiDiscrete(space.nvec, dtype=space.dtype.type)
    if isinstance(space, Box) and space.dtype == np.float64:
        with np.errstate(over="ignore"):  # a bound beyond float32 is no bound
            return Box(space.low.astype(np.float32), space.high.astype(np.float32), space.shape, np.float32)
    return space


def describe(space: Space) -> str:
    """A space in a few words for messages: `Box(3,) float32`, `Discrete(4)`, `Dict(position: Box(2,) float32)`."""
    if isinstance(space, Hybrid):
        return f"{describe(space.numbers)} and {describe(space.choices)}"
    if isinstance(space, Box):
        return f"Box{space.shape} {space.dtype}"
    if isinstance(space, Discrete):
        return f"Discrete({space.n})" if space.start == 0 else f"Discrete({space.n}, start={space.start})"
    if isinstance(space, Tokens):
        return repr(space)
    if isinstance(space, MultiDiscrete):
        alike = space.nvec.ndim == 1 and len(space.nvec) > 8 and np.all(space.nvec == space.nvec[0])
        return f"MultiDiscrete({f'[{space.nvec[0]}] * {len(space.nvec)}' if alike else space.nvec.tolist()})"
    if isinstance(space, MultiBinary):
        return f"MultiBinary({space.n})"
    if isinstance(space, Dict):
        return "Dict(" + ", ".join(f"{key}: {describe(part)}" for key, part in parts(space)) + ")"
    if isinstance(space, Tuple):
        return "Tuple(" + ", ".join(describe(part) for _, part in parts(space)) + ")"
    return type(space).__name__


def to_json(space: Space) -> dict[str, Any]:
    """A space as plain data, fit for JSON."""
    if isinstance(space, Hybrid):
        return {"hybrid": [to_json(space.numbers), to_json(space.choices)]}
    if isinstance(space, Shifted):
        return to_json(space.given)
    if isinstance(space, Box):
        bounds = [float(x.flat[0]) if np.all(x == x.flat[0]) else x.tolist() for x in (space.low, space.high)]
        return {"box": {"low": bounds[0], "high": bounds[1], "shape": list(space.shape), "dtype": str(space.dtype)}}
    if isinstance(space, Discrete):
        return {"discrete": {"n": int(space.n), "start": int(space.start)}}
    if isinstance(space, Tokens):
        return {"tokens": {"vocabulary": list(space.vocabulary), "context": space.context}}
    if isinstance(space, MultiDiscrete):
        start = {"start": space.start.tolist()} if np.any(space.start) else {}
        return {"multi_discrete": {"nvec": space.nvec.tolist(), **start}}
    if isinstance(space, MultiBinary):
        return {"multi_binary": {"n": space.n if isinstance(space.n, int) else [int(n) for n in space.n]}}
    if isinstance(space, Dict):
        return {"dict": {key: to_json(part) for key, part in parts(space)}}
    if isinstance(space, Tuple):
        return {"tuple": [to_json(part) for _, part in parts(space)]}
    raise SpaceError(
        f"etude cannot use a {type(space).__name__} space; expected Box, Discrete, MultiDiscrete, MultiBinary, or "
        "Dict and Tuple of these. Convert it with a gymnasium wrapper."
    )


def from_json(data: dict[str, Any]) -> Space:
    """The space that `to_json` described."""
    kind, value = next(iter(data.items()))
    if kind == "box":
        dtype = np.dtype(value["dtype"])
        low, high = np.asarray(value["low"], dtype), np.asarray(value["high"], dtype)
        shape = tuple(value["shape"])
        return Box(np.broadcast_to(low, shape), np.broadcast_to(high, shape), shape, dtype.type)
    if kind == "discrete":
        return Discrete(value["n"], start=value["start"])
    if kind == "multi_discrete":
        return MultiDiscrete(value["nvec"], start=value.get("start"))
    if kind == "tokens":
        return Tokens(value["vocabulary"], value["context"])
    if kind == "multi_binary":
        return MultiBinary(value["n"])
    if kind == "hybrid":
        return Hybrid(*(from_json(part) for part in value))  # type: ignore[arg-type]
    if kind == "dict":
        return Dict({key: from_json(part) for key, part in value.items()})
    return Tuple([from_json(part) for part in value])


__all__ = [
    "ACTION_MASK", "ActionLayout", "Box", "Dict", "Discrete", "Hybrid", "MultiBinary", "MultiDiscrete", "Origins",
    "Shifted", "Space", "Spaces", "Tokens", "Tuple", "choices", "describe", "from_json", "from_zero", "is_image",
    "leaves", "limits", "origins_of", "parts", "storage_dtype", "to_json", "with_origins", "zeros",
]  # fmt: skip
