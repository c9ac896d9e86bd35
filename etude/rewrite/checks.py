"""Whether rewritten steps can be learned from in the place of those that were collected."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from etude.base import trees
from etude.base.data import Steps
from etude.base.spaces import Spaces, limits
from etude.base.trees import Tree

FIXED = ("terminated", "truncated", "final_index", "columns", "restarted")
"""What says where episodes end and how rows follow each other: targets bootstrap, and the replay joins rows, by it."""


class Problem(NamedTuple):
    """What a rewriter returned that cannot be learned from, and what is expected."""

    returned: str
    expected: str


def problem_of(before: Steps, after: Any, spaces: Spaces) -> Problem | None:
    """What is wrong with steps that were rewritten; None where they can be learned from. Fields that are the same
    objects as before are not read."""
    if not isinstance(after, Steps):
        return Problem(f"a {type(after).__name__}", "Steps, such as dataclasses.replace(steps, reward=...).")
    for name in FIXED:
        own, new = getattr(before, name), getattr(after, name)
        if new is not own and not (isinstance(new, np.ndarray) and np.array_equal(own, new)):
            return Problem(
                f"steps with another {name!r}",
                "that of the collected steps: targets bootstrap, and the replay joins rows, by where episodes ended. "
                "Rewrite rewards, observations or actions, or wrap the environment.",
            )
    if after.episodes != before.episodes:
        return Problem("other 'episodes'", "those of the environment: they are what the run reports.")
    bounds = {"observation": limits(spaces.observation), "action": limits(spaces.action)[:1], "reward": [(None, None)]}
    bounds["next_observation"] = bounds["final_observation"] = bounds["observation"]
    for name, bound in bounds.items():
        if problem := _tree_problem(name, getattr(before, name), getattr(after, name), bound):
            return problem
    return _extras_problem(before.extras, after.extras)


def _extras_problem(before: dict[str, Any], after: Any) -> Problem | None:
    if after is before:
        return None
    if not isinstance(after, dict) or after.keys() != before.keys():
        return Problem("other extras", f"those of the collected steps: {', '.join(before) or 'none'}.")
    for name, own in before.items():
        if (new := after[name]) is not own and (problem := _array_problem(f"extras[{name!r}]", own, new, None, None)):
            return problem
    return None


def _tree_problem(name: str, before: Tree, after: Tree, bounds: list[tuple[Any, Any]]) -> Problem | None:
    if after is before:
        return None
    own, new = dict(trees.items(before)), dict(trees.items(after))
    if own.keys() != new.keys():
        return Problem(f"{name!r} with the parts {', '.join(new)}", f"the parts {', '.join(own)}.")
    for (path, leaf), (low, high) in zip(own.items(), bounds, strict=True):
        if new[path] is leaf:
            continue
        if problem := _array_problem(f"{name}.{path}" if path else name, leaf, new[path], low, high):
            return problem
    return None


def _array_problem(name: str, before: np.ndarray, after: Any, low: Any, high: Any) -> Problem | None:
    if not isinstance(after, np.ndarray):
        return Problem(f"{name} as a {type(after).__name__}", f"an array of {before.dtype} of shape {before.shape}.")
    if after.shape != before.shape or after.dtype != before.dtype:
        cast = f" Write .astype(np.{before.dtype})." if after.shape == before.shape else ""
        return Problem(
            f"{name} of shape {after.shape}, {after.dtype}",
            f"shape {before.shape}, {before.dtype}, as collected.{cast}",
        )
    if after.dtype.kind == "f":
        wrong = ~np.isfinite(after) & np.isfinite(before)
        if wrong.any():
            return Problem(f"{name} with {after[wrong][0]} at {_place(wrong)}", "finite numbers.")
    if low is not None:
        wrong = (after < low) | (after > high)
        if wrong.any():
            return Problem(f"{name} with {after[wrong][0]} at {_place(wrong)}", "values of its space.")
    return None


def _place(wrong: np.ndarray) -> list[int]:
    return [int(i) for i in np.argwhere(wrong)[0]]
