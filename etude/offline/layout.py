"""Columns by the names that they have in files, checked against the spaces.

D4RL's names: `observations`, `actions`, `rewards`, `terminals`, `timeouts`, and, where it is there,
`next_observations`. The parts of a Dict or Tuple observation are `observations/<key>`, nested to any depth. Every other
column with a row for each transition is an extra, such as `log_prob`; what is below `infos/` and `metadata/` is left
alone.
"""

from __future__ import annotations

import numpy as np

from etude.base.errors import DataError
from etude.base.spaces import Box, Space, Spaces, describe, parts, storage_dtype
from etude.base.trees import Tree
from etude.offline import canonical
from etude.offline.columns import Columns
from etude.offline.limits import LEFT_ALONE

Arrays = dict[str, np.ndarray]
OBSERVATIONS, NEXT = "observations", "next_observations"
REQUIRED = ("actions", "rewards", "terminals", "timeouts")


def to_arrays(columns: Columns, spaces: Spaces) -> Arrays:
    """Canonical columns as the arrays of a file, in the values of `spaces`."""
    arrays: Arrays = {}
    for name, tree in ((OBSERVATIONS, columns.observation), (NEXT, columns.next_observation)):
        for path, space, leaf in _with_spaces(spaces.observation, tree, name):
            arrays[path] = canonical.counted_from_start(space, leaf)
    arrays["actions"] = canonical.actions_out(spaces.action, columns.action)
    arrays |= {"rewards": columns.reward, "terminals": columns.terminal, "timeouts": columns.timeout}
    return arrays | columns.extras


def to_columns(arrays: Arrays, spaces: Spaces, file: str) -> Columns:
    """The arrays of a file as canonical columns. Raises DataError with the file, the column and the row."""
    _check_names(arrays, spaces, file)
    rows = _check_lengths(arrays, file)
    known = {*REQUIRED, *_paths(spaces.observation, OBSERVATIONS), *_paths(spaces.observation, NEXT)}
    extras = {}
    for name, values in arrays.items():
        if name not in known and not name.startswith(LEFT_ALONE):
            if values.dtype.kind not in "biuf":
                raise DataError(
                    f"{file}: column {name!r} has dtype {values.dtype}; expected numbers. Remove the column, or put it "
                    "below infos/."
                )
            extras[name] = _finite(values, name, file)
    action = _inside(_fitted(arrays["actions"], spaces.action, "actions", file), spaces.action, "actions", file)
    reward = arrays["rewards"].reshape(rows, -1)
    if reward.shape[1] != 1 or reward.dtype.kind not in "biuf":
        raise DataError(f"{file}: column 'rewards' has shape {arrays['rewards'].shape} and dtype {reward.dtype}; "
                        f"expected one number for each of {rows} rows.")  # fmt: skip
    return Columns(
        observation=_tree(arrays, spaces.observation, OBSERVATIONS, file),
        action=canonical.actions_in(spaces.action, action),
        reward=_finite(_single(reward[:, 0]), "rewards", file),
        terminal=_flags(arrays["terminals"], "terminals", file),
        timeout=_flags(arrays["timeouts"], "timeouts", file),
        next_observation=_tree(arrays, spaces.observation, NEXT, file) if _has(arrays, NEXT) else None,
        extras=extras,
    )


def _has(arrays: Arrays, name: str) -> bool:
    return any(key == name or key.startswith(f"{name}/") for key in arrays)


def _paths(space: Space, name: str) -> list[str]:
    inner = parts(space)
    return [path for key, part in inner for path in _paths(part, f"{name}/{key}")] if inner else [name]


def _with_spaces(space: Space, tree: Tree, name: str) -> list[tuple[str, Space, np.ndarray]]:
    inner = parts(space)
    if not inner:
        return [(name, space, tree)]
    return [found for key, part in inner for found in _with_spaces(part, tree[key], f"{name}/{key}")]


def _check_names(arrays: Arrays, spaces: Spaces, file: str) -> None:
    wanted = [*_paths(spaces.observation, OBSERVATIONS), *REQUIRED]
    if _has(arrays, NEXT):
        wanted += _paths(spaces.observation, NEXT)
    missing = [name for name in wanted if name not in arrays]
    if missing:
        raise DataError(
            f"{file}: column {missing[0]!r} is missing; it has {', '.join(sorted(arrays)) or 'no columns'}. Expected "
            f"{', '.join(wanted)} for observations in {describe(spaces.observation)}."
        )


def _check_lengths(arrays: Arrays, file: str) -> int:
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


def _tree(arrays: Arrays, space: Space, name: str, file: str) -> Tree:
    inner = parts(space)
    if not inner:
        values = _fitted(arrays[name], space, name, file)
        # Boxes are not held against their bounds: observations leave them by rounding, and in careless environments.
        values = values if isinstance(space, Box) else _inside(values, space, name, file)
        return _finite(canonical.counted_from_zero(space, values), name, file)
    found = {key: _tree(arrays, part, f"{name}/{key}", file) for key, part in inner}
    return found if isinstance(inner[0][0], str) else tuple(found.values())


def _fitted(values: np.ndarray, space: Space, name: str, file: str) -> np.ndarray:
    """Values in the shape of the space. Parquet has no shapes beyond a row of numbers, and some files keep single
    numbers as rows of one: the numbers of a row have to be as many as the space has."""
    shape = tuple(space.shape or ())
    same = values.shape[1:] == shape or (values.ndim <= 2 and values[0].size == int(np.prod(shape, dtype=int)))
    if not same:
        raise DataError(
            f"{file}: column {name!r} has rows of shape {values.shape[1:]}; expected {describe(space)}. Give the "
            "spaces that the file was recorded with."
        )
    whole = storage_dtype(space).kind in "iu"
    if values.dtype.kind not in ("biu" if whole else "biuf"):
        raise DataError(
            f"{file}: column {name!r} has dtype {values.dtype}; expected {'whole ' if whole else ''}numbers, for "
            f"{describe(space)}."
        )
    return _finite(values.reshape(len(values), *shape), name, file)


def _inside(values: np.ndarray, space: Space, name: str, file: str) -> np.ndarray:
    wrong = canonical.outside(space, values)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(
            f"{file}: column {name!r}, row {row}: {values[row]} is not in {space}. The file should hold the "
            "environment's own values: give the spaces that it was recorded with."
        )
    return values


def _finite(values: np.ndarray, name: str, file: str) -> np.ndarray:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values).reshape(len(values), -1).all(1)))
        raise DataError(
            f"{file}: column {name!r}, row {row}: {values[row]} is not finite. Repair the row, or remove its episode."
        )
    return values


def _single(values: np.ndarray) -> np.ndarray:
    """As float32; infinite where it cannot hold a number."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


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
