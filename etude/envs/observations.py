"""Observations as agents see them.

Those of n environments are gathered into one array per leaf: float64 becomes float32, a Discrete or MultiDiscrete that
starts elsewhere is counted from 0, a `Shifted` Box from its origin, and an action mask becomes the key `action_mask` of
a Dict: all ones where an info has none. Every value is checked against its space for shape, kind of dtype and
finiteness, and where it is counted for its range, once per leaf and vector step and not per environment."""

from __future__ import annotations

import copy
import functools
import math
import operator
import string
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Text

from etude import ops
from etude.base import trees
from etude.base.errors import SpaceError
from etude.base.spaces import (
    ACTION_MASK,
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Origins,
    Shifted,
    Space,
    Tuple,
    choices,
    describe,
    from_zero,
    leaves,
    limits,
    parts,
    storage_dtype,
)
from etude.base.trees import Tree

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


class Finite:
    """One pass without a temporary: a weighted sum is finite only if every element is.

    The weights keep the sum of large finite elements in range, and are large enough that no product is subnormal.
    """

    def __init__(self, dtype: np.dtype | type = np.float32):
        self._weight = np.sqrt(np.finfo(dtype).tiny)
        self._weights = np.empty(0, dtype)

    def __call__(self, array: np.ndarray) -> bool:
        flat = array.ravel()
        if flat.size > self._weights.size:
            self._weights = np.full(flat.size, self._weight, self._weights.dtype)
        return math.isfinite(flat.dot(self._weights[: flat.size])) or bool(np.isfinite(flat).all())


LATE_MASK = (
    "comes for the first time, and observations have no place for it: neither a reset nor random play before the run "
    "showed one. Return one from every reset, all ones where every action is allowed"
)


class Mismatch(Exception):
    """One environment returned what does not belong to its space."""

    def __init__(self, position: int, key: str, message: str):
        super().__init__(message)
        self.position: int = position
        self.key: str = key
        self.message: str = message


COARSE = 1e-3  # between float32 numbers from 16,384 on
GOALS = ("achieved_goal", "desired_goal")  # of which `compute_reward` wants to know where they are


def origins_in(space: Space, observation: Any) -> Origins:
    """Where numbers of 64 bits are so large that float32 would not tell near ones apart: what they are in this
    observation, an environment's own; 0 for numbers beside them."""
    found = []
    for path, leaf in leaves(space):
        if not isinstance(leaf, Box) or leaf.dtype.itemsize < 8 or set(GOALS) & set(path):
            continue
        try:
            value = np.asarray(functools.reduce(operator.getitem, path, observation))
            far = np.spacing(np.abs(value).astype(np.float32)) > COARSE
        except (LookupError, TypeError, ValueError):  # it is reported where the run comes to it
            return []
        if value.shape == leaf.shape and far.any():
            found.append((path, np.where(far, value, 0).tolist()))
    return found


class Precision:
    """Finds a number whose first values differ, and are one float32.

    looks: how many vector steps are still looked at; 0 from the start for spaces whose values float32 holds.
    """

    def __init__(self, space: Space):
        self._normalised = isinstance(space, Shifted)
        self.looks = 32 if isinstance(space, Box) and (self._normalised or space.dtype.itemsize == 8) else 0
        self._least, self._most = np.full(space.shape or (), np.inf), np.full(space.shape or (), -np.inf)

    def look(self, array: np.ndarray, what: str) -> str | None:
        """What is wrong with the values so far, after the last look. array: [n, ...] as `what`, an observation, came
        from the environment."""
        self.looks -= 1
        self._least, self._most = np.minimum(self._least, array.min(0)), np.maximum(self._most, array.max(0))
        if self.looks:
            return None
        one = self._least.astype(np.float32) == self._most.astype(np.float32)
        coarse = np.flatnonzero(one & (self._most - self._least >= 0.01))  # bodies at rest move less
        if not coarse.size:
            return None
        least, most = (float(seen.flat[coarse[0]]) for seen in (self._least, self._most))
        way = "Subtract a constant, or scale it, in the environment"
        if not self._normalised:
            way += ", or give normalize_observation=True: running moments of what is left of the first observation"
        return (
            f"{what}[{coarse[0]}] went from {least} to {most}, and agents see float32, in which these are one value, "
            f"{float(np.float32(most))}. {way}."
        )


class _Leaf:
    """One array of an observation."""

    def __init__(self, space: Space, key: str):
        self.source, self.key = (space.given if isinstance(space, Shifted) else space), key
        self.shape = tuple(space.shape or ())
        self.dtype = storage_dtype(space)
        self._cast_to = self.dtype.name  # which takes NumPy microseconds to find
        self._finite = Finite(self.dtype) if self.dtype.kind == "f" else None
        self.start = space.start if isinstance(space, Discrete | MultiDiscrete) and np.any(space.start != 0) else None
        self._origin = space.origin if isinstance(space, Shifted) else None
        self.space: Space = from_zero(space)
        self.most = limits(self.space)[0][1]  # None: of a Box
        self._precision = Precision(space)

    def converted(self, x: Any) -> Any:
        x = ops.cast(x if self._origin is None else x - self._origin, self._cast_to)
        return x if self.start is None else ops.cast(x - self.start, self._cast_to)

    def gather(self, values: Sequence[Any] | np.ndarray) -> np.ndarray:
        try:
            array = np.array(values)
        except (ValueError, TypeError, RuntimeError):  # shapes differ; a tensor that requires grad
            array = np.empty(0)
        if self._origin is not None and array.shape[1:] == self.shape and array.dtype.kind in "iuf":
            array = array - self._origin
        given = array
        if array.shape != (len(values), *self.shape) or array.dtype is not self.dtype:
            array = self._cast(array, values)
        if self._finite is not None and not self._finite(array):
            raise self._not_finite(array, given)
        if self._precision.looks:
            what = f"The observation {self.key!r}" if self.key else "The observation"
            if text := self._precision.look(given, what):
                warnings.warn(text, stacklevel=2)
        if self.start is not None:
            array = (array - self.start).astype(self.dtype)
        if self.most is not None and (outside := (array < 0) | (array > self.most)).any():
            position = int(np.argmax(outside.reshape(len(outside), -1).any(1)))
            message = f"is {values[position]}, which is outside of {self.source}. Make what you return and "
            raise Mismatch(position, self.key, message + "observation_space agree")
        return array

    batch = gather  # iterating over a batched array gives its rows

    def _cast(self, array: np.ndarray, values: Sequence[Any] | np.ndarray) -> np.ndarray:
        if array.shape == (len(values), *self.shape) and np.can_cast(array.dtype, self.dtype, "same_kind"):
            return array.astype(self.dtype)
        for position, value in enumerate(values):
            try:
                given = np.array(value)
            except (ValueError, TypeError):
                given = np.array(None)
            except RuntimeError as problem:
                raise Mismatch(position, self.key, f"is a {type(value).__name__}: {problem}") from None
            if given.shape != self.shape or not np.can_cast(given.dtype, self.dtype, "same_kind"):
                raise Mismatch(position, self.key, self._explain(value, given))
        raise Mismatch(0, self.key, f"cannot be put in one array with the others; expected {describe(self.source)}")

    def _explain(self, value: Any, given: np.ndarray) -> str:
        expected = f"expected {describe(self.source)}"
        if given.dtype == object:
            return f"is a {type(value).__name__}: {str(value)[:80]}; {expected}"
        if given.shape != self.shape:
            return f"has shape {given.shape}; {expected}. Make what you return and observation_space agree"
        return f"has dtype {given.dtype}; {expected}. Return it with .astype(np.{self.source.dtype})"

    def _not_finite(self, array: np.ndarray, given: np.ndarray) -> Mismatch:
        flat = array.reshape(len(array), -1)
        position, index = (int(i) for i in np.argwhere(~np.isfinite(flat))[0])
        value = given.reshape(len(array), -1)[position, index]
        wanted = "every value must be finite"
        if np.isfinite(value):
            wanted = "agents see float32, which ends at 3.4e38: scale it"
        return Mismatch(position, self.key, f"is {value} at flat index {index}; {wanted}")


class _Dict:
    """A Dict observation: a plain dict of what its parts gather."""

    def __init__(self, space: Dict, key: str):
        self.key = key
        self.parts = {name: _gatherer(part, f"{key}.{name}" if key else name) for name, part in parts(space)}
        self.space: Space = Dict({name: part.space for name, part in self.parts.items()})

    def gather(self, values: list[Any]) -> Tree:
        try:
            columns = {name: [value[name] for value in values] for name in self.parts}
        except (KeyError, TypeError, IndexError):
            self._explain(values)
            raise
        return {name: part.gather(columns[name]) for name, part in self.parts.items()}

    def batch(self, tree: Any) -> Tree:
        if not isinstance(tree, dict) or not set(self.parts) <= set(tree):
            raise Mismatch(0, self.key, f"is {str(tree)[:80]}; expected a dict with {sorted(self.parts)}")
        return {name: part.batch(tree[name]) for name, part in self.parts.items()}

    def converted(self, tree: Any) -> Tree:
        return {name: part.converted(tree[name]) for name, part in self.parts.items()}

    def _explain(self, values: list[Any]) -> None:
        for position, value in enumerate(values):
            if not isinstance(value, dict):
                raise Mismatch(position, self.key, f"is a {type(value).__name__}; expected a dict") from None
            missing = sorted(set(self.parts) - set(value))
            if missing:
                raise Mismatch(position, self.key, f"lacks the key {missing[0]!r}; it has {sorted(value)}") from None


class _Tuple:
    """A Tuple observation: a plain tuple of what its parts gather."""

    def __init__(self, space: Tuple[Any], key: str):
        self.key = key
        self.parts = [_gatherer(part, f"{key}.{i}" if key else str(i)) for i, part in parts(space)]
        self.space: Space = Tuple([part.space for part in self.parts])

    def gather(self, values: list[Any]) -> Tree:
        for position, value in enumerate(values):
            if not isinstance(value, tuple | list) or len(value) != len(self.parts):
                raise Mismatch(position, self.key, f"is {str(value)[:80]}; expected a tuple of {len(self.parts)}")
        return tuple(part.gather([value[i] for value in values]) for i, part in enumerate(self.parts))

    def batch(self, tree: Any) -> Tree:
        if not isinstance(tree, tuple | list) or len(tree) != len(self.parts):
            raise Mismatch(0, self.key, f"is {str(tree)[:80]}; expected a tuple of {len(self.parts)}")
        return tuple(part.batch(values) for part, values in zip(self.parts, tree, strict=True))

    def converted(self, tree: Any) -> Tree:
        return tuple(part.converted(values) for part, values in zip(self.parts, tree, strict=True))


class _Texts:
    """Texts of an observation, as codes."""

    def __init__(self, space: Space, key: str):
        self.key, self._codes = key, Codes(space)
        self.space: Space = self._codes.space

    def gather(self, values: Sequence[Any]) -> np.ndarray:
        rows = []
        for position, value in enumerate(values):
            try:
                rows.append(self._codes(value))
            except ValueError as problem:
                raise Mismatch(position, self.key, str(problem)) from None
        return np.stack(rows)

    batch = gather

    def converted(self, x: Any) -> Any:
        raise SpaceError(f"The observation {self.key!r} is a text, of which arrays hold the codes.")


_Gatherer = _Leaf | _Dict | _Tuple | _Texts


def _gatherer(space: Space, key: str = "") -> _Gatherer:
    if 0 in (space.shape or ()) or (isinstance(space, Dict | Tuple) and not parts(space)):
        part = f", in its part {key!r}," if key else ""
        raise SpaceError(
            f"The observation space{part} is {describe(space)}, which holds nothing; expected at least one number. "
            "Leave the part out, or return what there is to see: a constant 0, Box(0, 1, (1,)), where there is nothing."
        )
    if isinstance(space, Dict):
        return _Dict(space, key)
    if isinstance(space, Tuple):
        return _Tuple(space, key)
    if isinstance(space, Box | Discrete | MultiDiscrete | MultiBinary):
        return _Leaf(space, key)
    if is_text(space):
        return _Texts(space, key)
    raise SpaceError(
        f"etude cannot use the observation space {type(space).__name__}; expected Box, Discrete, MultiDiscrete, "
        "MultiBinary, Text, or Dict and Tuple of these. Convert it with a gymnasium wrapper."
    )


def flat_mask(mask: Any) -> np.ndarray:
    """What is not 0 is legal. Gymnasium masks a MultiDiscrete with a tuple of masks, and Dict and Tuple actions with
    one of each part, None for numbers; agents see them joined."""
    each = [mask[key] for key in sorted(mask)] if isinstance(mask, dict) else mask
    if isinstance(each, tuple | list) and any(isinstance(part, np.ndarray | dict | tuple | list) for part in each):
        return np.concatenate([flat_mask(part) for part in each if part is not None])
    return np.asarray(mask, bool).ravel()


def maskable(action: Space) -> list[int]:
    """Among how many each place of an action chooses; [] where masks do not apply."""
    return [] if isinstance(action, MultiBinary) else choices(action)


def mask_size(action: Space, info: dict[str, Any], masks: bool) -> int:
    """The length of the action masks in infos; 0 where there are none. info: of a reset. masks: whether later infos
    hold one."""
    wanted = sum(maskable(action))
    if info.get(ACTION_MASK) is not None:
        size = len(flat_mask(info[ACTION_MASK]))
        if wanted and size != wanted:
            raise SpaceError(f"The action mask in info has {size} flags; {action} needs {wanted}, one for each choice.")
        return size
    return wanted if masks or ACTION_MASK in info else 0


class Observations:
    """Gathers observations of one space, as the environments return them."""

    def __init__(self, space: Space, flags: int = 0):
        """flags: the length of the action masks that infos may hold; 0 where they hold none."""
        self.source: Space = space  # as the environment has it
        self._root = _gatherer(space)
        self._mask = None
        if flags and not (isinstance(space, Dict) and ACTION_MASK in space.spaces):
            self._mask = _Leaf(MultiBinary(flags), ACTION_MASK)
            self._mask.most = None  # `flat_mask` makes bools of them
        self._all = np.ones(flags, bool)
        self.space: Space = self._root.space
        self._wrapped = self._mask is not None and not isinstance(space, Dict)
        if self._mask is not None:
            inner = {"observation": self.space} if self._wrapped else dict(self.space.spaces)  # type: ignore[attr-defined]
            self.space = Dict({**inner, ACTION_MASK: self._mask.space})
        self.masked: bool = isinstance(self.space, Dict) and ACTION_MASK in self.space.spaces

    @property
    def reads_infos(self) -> bool:
        """Whether infos may hold an action mask."""
        return self._mask is not None

    def gather(self, values: list[Any], infos: list[dict[str, Any]]) -> Tree:
        """Observations [n, ...] from those of n environments, in new arrays. Raises Mismatch."""
        if self._mask is None:
            if not self.masked and any(infos):
                for position, info in enumerate(infos):
                    if ACTION_MASK in info:
                        raise Mismatch(position, ACTION_MASK, LATE_MASK)
            tree = self._root.gather(values)
        else:
            tree = self._join(self._root.gather(values), [info.get(ACTION_MASK) for info in infos])
        return self._check_mask(tree) if self.masked else tree

    def batch(self, values: Any, infos: dict[str, Any]) -> Tree:
        """Observations [n, ...] from a vectorised simulator, in new arrays. Raises Mismatch."""
        tree = self._root.batch(values)
        if self._mask is None:
            if not self.masked and ACTION_MASK in infos:
                raise Mismatch(0, ACTION_MASK, LATE_MASK)
        else:
            tree = self._join(tree, [mask_of(infos, i) for i in range(len(trees.leaves(tree)[0]))])
        return self._check_mask(tree) if self.masked else tree

    def converted(self, tree: Any, mask: Any = None) -> Tree:
        """What `batch` makes of valid arrays [n, ...] and the masks [n, flags] of infos, over `ops`."""
        tree = self._root.converted(tree)
        if self._mask is None:
            return tree
        tree = {"observation": tree} if self._wrapped else tree
        return {ACTION_MASK: self._mask.converted(mask), **tree}

    def gather_final(self, value: Any, info: dict[str, Any]) -> Tree:
        """The last observation of an episode. No action follows: a mask that is missing or empty becomes all ones."""
        tree = self._root.gather([value])
        if self._mask is not None:
            tree = self._join(tree, [info.get(ACTION_MASK)])
        if self.masked and not tree[ACTION_MASK].any():
            tree[ACTION_MASK][:] = 1
        return trees.rows(tree, 0)

    def _join(self, tree: Tree, masks: list[Any]) -> Tree:
        assert self._mask is not None
        tree = {"observation": tree} if self._wrapped else tree
        flat = [self._all if mask is None else flat_mask(mask) for mask in masks]
        return {ACTION_MASK: self._mask.gather(flat), **tree}

    def _check_mask(self, tree: Tree) -> Tree:
        legal = tree[ACTION_MASK].reshape(len(tree[ACTION_MASK]), -1).any(1)
        if not legal.all():
            message = "allows no action at all; end the episode with terminated=True when there is none left"
            raise Mismatch(int(np.argmin(legal)), ACTION_MASK, message)
        return tree


def mask_of(infos: dict[str, Any], i: int) -> Any:
    """The action mask of one environment in the infos of a vectorised simulator; None where it has none."""
    there = infos.get(f"_{ACTION_MASK}")  # Gymnasium's flags of the environments whose info has the key
    return infos[ACTION_MASK][i] if ACTION_MASK in infos and (there is None or there[i]) else None
