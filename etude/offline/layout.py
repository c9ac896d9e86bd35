"""Columns by the names that they have in files, checked against the spaces.

D4RL's names: `observations`, `actions`, `rewards`, `terminals`, `timeouts`, and, where it is there,
`next_observations`. The parts of a Dict or Tuple observation are `observations/<key>`, nested to any depth, and those
of an action `actions/<key>`.
`normalized_actions`, where it is there, holds the actions that `actions` were scaled from, which rounding does not give
back; or `sampled_action` does, what the policy sampled before that was clipped. Every other column with a row for each
transition is an extra, such as `log_prob`; what is below `infos/` and `metadata/` is left alone. `infos/text`, which is
for people, holds the text of each episode of tokens in its last row."""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from etude.base import trees
from etude.base.data import CLIPPED, INFO, LOG_PROB, SAMPLED_ACTION
from etude.base.errors import ConfigError, DataError
from etude.base.spaces import (
    Box,
    Discrete,
    Space,
    Spaces,
    Tokens,
    describe,
    leaves,
    parts,
    storage_dtype,
    tree_of,
    within,
)
from etude.base.trees import Tree
from etude.offline.blocks import Columns, EpisodeBlock
from etude.offline.dataset import (
    actions_in,
    actions_out,
    canonical_spaces,
    counted_from_start,
    counted_from_zero,
    outside,
)
from etude.replay import storage

LEFT_ALONE = ("infos/", "metadata/")  # columns that are not read
TEXT = "infos/text"  # one of them: what episodes of tokens say, for people
RATIO = 1100  # of numbers to their compressed bytes: deflate reaches 1032
SLACK = 2**20  # bytes that need none: Parquet keeps a column of equal numbers in a few
BLOCK = 2**22  # bytes of numbers that are read at a time where a file is not read as a whole
COPIES = 2  # of the numbers of a file that are in memory at a time, at least


def require_regular(path: Path) -> None:
    """Raise DataError where this is no regular file: a pipe would be waited for, a device read without an end."""
    if not path.is_file():
        raise DataError(f"{path}: {'it is no regular file' if path.exists() else 'there is no such file'}.")


@contextmanager
def reading(path: Path, kind: str, *errors: Any) -> Iterator[None]:
    """What is raised while a file of this kind is read, by its library, as DataError. errors: of the library."""
    require_regular(path)
    try:
        yield
    except DataError:
        raise
    except (LookupError, MemoryError, OSError, OverflowError, ValueError, *errors) as error:
        text = f"{path}: it is no {kind} file, or is incomplete ({error}). Record or download it again."
        raise DataError(text) from None


def require_stored(path: Path, name: str, claimed: int, stored: int) -> None:
    """Raise DataError where a column claims more bytes than those that are stored can hold."""
    if claimed > RATIO * stored + SLACK or claimed > 0 == stored:
        raise DataError(
            f"{path}: column {name!r} claims {claimed:,} bytes, of which {stored:,} are stored: it is damaged, or was "
            "never written. Record or download it again."
        )


def require_memory(path: Path, claimed: int) -> None:
    """Raise DataError where so many bytes of numbers do not fit into memory."""
    try:
        storage.require_memory(COPIES * claimed, f"{path}: its data", "Split the file.")
    except ConfigError as error:
        raise DataError(str(error)) from None


Arrays = dict[str, np.ndarray]
OBSERVATIONS, NEXT, ACTIONS, NORMALIZED = "observations", "next_observations", "actions", "normalized_actions"
PROPENSITIES = "propensities"  # of the actions, in the place of the extra `log_prob`
FLAGS = ("terminals", "timeouts")
REQUIRED = ("rewards", *FLAGS)


def to_arrays(columns: Columns, spaces: Spaces, exact: bool = False) -> Arrays:
    """Canonical columns as the arrays of a file, in the values of `spaces`; without next observations, none of them.

    exact: with the column `normalized_actions`, where actions are scaled and it is known of no samples before.
    """
    arrays = observation_arrays(columns.observation, spaces, OBSERVATIONS)
    if columns.next_observation is not None:
        arrays |= observation_arrays(columns.next_observation, spaces, NEXT)
    arrays |= zip(paths(spaces.action, ACTIONS), actions_out(spaces.action, columns.action), strict=True)
    if exact and _has_numbers(spaces.action) and SAMPLED_ACTION not in columns.extras:
        arrays[NORMALIZED] = columns.action
    arrays |= {"rewards": columns.reward, "terminals": columns.terminal, "timeouts": columns.timeout}
    if columns.next_observation is not None:
        last = np.flatnonzero(columns.terminal | columns.timeout)
        arrays |= text_arrays(trees.rows(columns.next_observation, last), last, len(columns.reward), spaces)
    return arrays | columns.extras


def text_arrays(finals: Tree, last: np.ndarray, rows: int, spaces: Spaces) -> Arrays:
    """A column of texts, those of final observations in the last rows of episodes; none where they are no tokens."""
    if not (texts := texts_of(finals, spaces.observation)):
        return {}
    found = np.full(rows, "", object)
    found[last] = texts
    return {TEXT: found}


def texts_of(observations: Tree, space: Space) -> list[str]:
    """The texts of observations [M, ...] of tokens; [] of others."""
    for path, leaf in leaves(space):
        if isinstance(leaf, Tokens):
            return [leaf.text(row) for row in functools.reduce(operator.getitem, path, observations)]
    return []


def observation_arrays(observation: Tree, spaces: Spaces, name: str) -> Arrays:
    """Canonical observations [M, ...] as the arrays of a file, whose names begin with `name`."""
    found = _with_spaces(spaces.observation, observation, name)
    return {path: counted_from_start(space, leaf) for path, space, leaf in found}


def by_episode(block: EpisodeBlock, spaces: Spaces) -> Iterator[Arrays]:
    """Each episode as the arrays of a file, with one more row of observations than of actions, and no flags."""
    arrays = to_arrays(block.columns(following=False), spaces, exact=True)
    finals = observation_arrays(block.final_observation, spaces, OBSERVATIONS)
    for i, stop in enumerate((block.last + 1).tolist()):
        here = slice(stop - int(block.lengths[i]), stop)
        found = {name: values[here] for name, values in arrays.items() if name not in FLAGS}
        found |= {name: np.concatenate([found[name], final[i : i + 1]]) for name, final in finals.items()}
        final = trees.rows(block.final_observation, slice(i, i + 1))
        yield found | text_arrays(final, np.array([-1]), int(block.lengths[i]), spaces)


def from_episode(arrays: Arrays, terminated: bool) -> Arrays:
    """The columns of one episode in the layout of `by_episode`, whose rewards are [L]. Raises ValueError where a column
    of observations does not have L + 1 rows."""
    length = len(arrays["rewards"])
    flags = np.zeros((2, length), bool)
    flags[0 if terminated else 1, -1:] = True
    found = {"terminals": flags[0], "timeouts": flags[1]}
    for name, values in arrays.items():
        if name == OBSERVATIONS or name.startswith(f"{OBSERVATIONS}/"):
            if values.ndim == 0 or len(values) != length + 1:
                raise ValueError(f"{name!r} has {values.shape[:1]} rows for {length} rewards; expected {length + 1}")
            found[name], found[NEXT + name.removeprefix(OBSERVATIONS)] = values[:-1], values[1:]
        else:
            found[name] = values
    return found


def pass_over(name: str, what: str, file: Any) -> None:
    """Warn that a column without numbers is not read; DataError for one that is needed."""
    if name.partition("/")[0] in (OBSERVATIONS, NEXT, ACTIONS, NORMALIZED, SAMPLED_ACTION, LOG_PROB, *REQUIRED):
        raise DataError(f"{file}: column {name!r} has {what}; expected numbers, or rows of as many numbers each.")
    warnings.warn(f"{file}: column {name!r} has {what}, and is passed over: only numbers are read.", stacklevel=2)


def to_columns(arrays: Arrays, spaces: Spaces, file: str, clip: bool = False) -> Columns:
    """The arrays of a file as canonical columns. Raises DataError with the file, the column and the row.

    clip: move Box actions beyond their bounds onto them.
    """
    wanted = [*paths(spaces.observation, OBSERVATIONS), *paths(spaces.action, ACTIONS), *REQUIRED]
    if _has(arrays, NEXT):
        wanted += paths(spaces.observation, NEXT)
    missing = [name for name in wanted if name not in arrays]
    if missing:
        raise DataError(
            f"{file}: column {missing[0]!r} is missing; it has {', '.join(sorted(arrays)) or 'no columns'}. Expected "
            f"{', '.join(wanted)} for observations in {describe(spaces.observation)}."
        )
    rows_of(arrays, file)
    known = {*REQUIRED, NORMALIZED, *paths(spaces.action, ACTIONS)}
    known.update(path for name in (OBSERVATIONS, NEXT) for path in paths(spaces.observation, name))
    extras = {}
    for name, values in arrays.items():
        if name not in known and not name.startswith(LEFT_ALONE):
            if values.dtype.kind not in "biuf":
                pass_over(name, f"dtype {values.dtype}", file)
                continue
            # NaN is what `keep_info` stores where an environment did not return a number.
            extras[name] = values if name.startswith(INFO) else _finite(values, name, file)
    if PROPENSITIES in extras:
        # The log probabilities [M] of actions from their probabilities
        propensity = extras.pop(PROPENSITIES)
        if ((propensity <= 0) | (propensity > 1)).any():
            row = int(np.argmax((propensity <= 0) | (propensity > 1)))
            raise DataError(
                f"{file}: column {PROPENSITIES!r}, row {row}: {propensity[row]}; expected above 0, and 1 at most."
            )
        extras[LOG_PROB] = np.log(propensity.astype(np.float64)).astype(np.float32)
    own = zip(paths(spaces.action, ACTIONS), (leaf for _, leaf in leaves(spaces.action)), strict=True)
    each = [_inside(_fitted(arrays[path], leaf, path, file), leaf, path, file, clip) for path, leaf in own]
    action = actions_in(spaces.action, each)
    column = SAMPLED_ACTION if SAMPLED_ACTION in arrays else NORMALIZED
    if column in arrays and _has_numbers(spaces.action):
        # What the agent chose, in the shape of canonical actions
        values = arrays[column]
        if values.dtype.kind != "f" or values[0].size != action[0].size:
            raise DataError(
                f"{file}: column {column!r} has rows of shape {values.shape[1:]} and dtype {values.dtype}; expected "
                "as many float numbers as an action has. Remove the column: actions are then scaled."
            )
        drawn = _finite(values.reshape(action.shape).astype(np.float32), column, file)
        if LOG_PROB in extras and CLIPPED not in extras:
            extras[SAMPLED_ACTION] = drawn
        action = within(canonical_spaces(spaces).action, drawn)
    return Columns(
        observation=_tree(arrays, spaces.observation, OBSERVATIONS, file),
        action=action,
        reward=_rewards(arrays["rewards"], spaces, file),
        terminal=_flags(arrays["terminals"], "terminals", file),
        timeout=_flags(arrays["timeouts"], "timeouts", file),
        next_observation=_tree(arrays, spaces.observation, NEXT, file) if _has(arrays, NEXT) else None,
        extras=extras,
    )


def rows_of(arrays: Arrays, file: str) -> int:
    """How many rows each column has; DataError where they have none, or not as many."""
    rows = len(arrays["rewards"]) if arrays["rewards"].ndim else 0
    if not rows:
        raise DataError(f"{file}: there are no transitions in it; expected at least one.")
    for name, values in arrays.items():
        if not name.startswith(LEFT_ALONE) and (values.ndim == 0 or len(values) != rows):
            got = len(values) if values.ndim else "one value and no"
            raise DataError(
                f"{file}: column {name!r} has {got} rows, 'rewards' has {rows}; expected one row for each transition "
                "in every column."
            )
    return rows


def _has(arrays: Arrays, name: str) -> bool:
    return any(key == name or key.startswith(f"{name}/") for key in arrays)


def paths(space: Space, name: str) -> list[str]:
    """The names of the columns of a space, whose names begin with `name`."""
    return ["/".join(map(str, (name, *path))) for path, _ in leaves(space)]


def _has_numbers(space: Space) -> bool:
    """Whether actions of a space are scaled."""
    return any(isinstance(leaf, Box) for _, leaf in leaves(space))


def _with_spaces(space: Space, tree: Tree, name: str) -> list[tuple[str, Space, np.ndarray]]:
    inner = parts(space)
    if not inner:
        return [(name, space, tree)]
    return [found for key, part in inner for found in _with_spaces(part, tree[key], f"{name}/{key}")]


def _tree(arrays: Arrays, space: Space, name: str, file: str) -> Tree:
    found = []
    for path, (_, leaf) in zip(paths(space, name), leaves(space), strict=True):
        values = _fitted(arrays[path], leaf, path, file)
        # Boxes are not held against their bounds: observations leave them by rounding, and in careless environments.
        values = values if isinstance(leaf, Box) else _inside(values, leaf, path, file)
        found.append(_finite(counted_from_zero(leaf, values), path, file))
    return tree_of(space, iter(found))


def _rewards(values: np.ndarray, spaces: Spaces, file: str) -> np.ndarray:
    """[M] float32; [M, agents] of several agents."""
    reward, agents = values.reshape(len(values), -1), 1 if spaces.agents is None else len(spaces.agents)
    if reward.shape[1] != agents or reward.dtype.kind not in "biuf":
        expected = "one number" if agents == 1 else f"{agents} numbers"
        raise DataError(f"{file}: column 'rewards' has shape {values.shape} and dtype {reward.dtype}; expected "
                        f"{expected} for each of {len(values)} rows.")  # fmt: skip
    with np.errstate(over="ignore"):  # infinite where float32 cannot hold a number
        reward = (reward if spaces.agents is not None else reward[:, 0]).astype(np.float32)
    return _finite(reward, "rewards", file)


def _fitted(values: np.ndarray, space: Space, name: str, file: str) -> np.ndarray:
    """Values in the shape of the space. Parquet has no shapes beyond a row of numbers, and some files keep single
    numbers as rows of one: the numbers of a row have to be as many as the space has."""
    shape = tuple(space.shape or ())
    same = values.shape[1:] == shape or (values.ndim <= 2 and values[0].size == int(np.prod(shape, dtype=int)))
    if not same:
        advice = "Give the spaces that the file was recorded with."
        if isinstance(space, Discrete) and values.shape[1:] == (space.n,) and ((values == 0) | (values == 1)).all():
            advice = f"The rows are one-hot: give their numbers, {name}.argmax(1)."
        raise DataError(
            f"{file}: column {name!r} has rows of shape {values.shape[1:]}; expected {describe(space)}. {advice}"
        )
    whole = storage_dtype(space).kind in "iu"
    if whole and values.dtype.kind == "f" and (values == np.rint(values)).all():
        values = values.astype(np.int64)
    if values.dtype.kind not in ("biu" if whole else "biuf"):
        raise DataError(
            f"{file}: column {name!r} has dtype {values.dtype}; expected {'whole ' if whole else ''}numbers, for "
            f"{describe(space)}."
        )
    return _finite(values.reshape(len(values), *shape), name, file)


def _inside(values: np.ndarray, space: Space, name: str, file: str, clip: bool = False) -> np.ndarray:
    if clip and isinstance(space, Box):
        return np.clip(values, space.low, space.high)
    wrong = outside(space, values)
    if wrong.any():
        row = int(np.argmax(wrong))
        ends = ", or clip=True to move them onto the bounds" if isinstance(space, Box) else ""
        raise DataError(
            f"{file}: column {name!r}, row {row}: {values[row]} is not in {space}, as are {wrong.mean():.2%} of the "
            f"rows. The file should hold the environment's own values: give the spaces that it was recorded with{ends}."
        )
    return values


def _finite(values: np.ndarray, name: str, file: str) -> np.ndarray:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values).reshape(len(values), -1).all(1)))
        raise DataError(
            f"{file}: column {name!r}, row {row}: {values[row]} is not finite. Repair the row, or remove its episode."
        )
    return values


def _flags(values: np.ndarray, name: str, file: str) -> np.ndarray:
    flags = values.reshape(-1)
    if flags.dtype.kind not in "biuf" or len(flags) != len(values):
        raise DataError(f"{file}: column {name!r} has shape {values.shape} and dtype {values.dtype}; expected one flag "
                        "in each row, 0 or 1.")  # fmt: skip
    wrong = (flags != 0) & (flags != 1)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(f"{file}: column {name!r}, row {row}: {flags[row]}; expected 0 or 1.")
    return flags.astype(bool)
