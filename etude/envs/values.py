"""What is wrong with one value that an environment returned, more strictly than running needs. For `check`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Dict, Tuple

from etude.base.spaces import Space, describe, parts
from etude.envs.texts import is_text


class Found(NamedTuple):
    """A mistake by name, with its fix."""

    name: str
    message: str


def check_observation(value: Any, space: Space, key: str = "") -> Found | None:
    """The first thing that is wrong with an observation."""
    what = f"The observation {key!r}" if key else "The observation"
    if isinstance(space, Dict):
        if not isinstance(value, dict) or set(value) != set(space.spaces):
            got = f"the keys {sorted(value)}" if isinstance(value, dict) else type(value).__name__
            return Found("structure", f"{what} is {got}. Return a dict with the keys {sorted(space.spaces)}.")
    elif isinstance(space, Tuple):
        if not isinstance(value, tuple) or len(value) != len(space.spaces):
            return Found("structure", f"{what} is {type(value).__name__}. Return a tuple of {len(space.spaces)}.")
    else:
        return _check_leaf(value, space, what)
    checks = (
        check_observation(value[name], part, f"{key}.{name}" if key else str(name)) for name, part in parts(space)
    )
    return next((found for found in checks if found is not None), None)


def _check_leaf(value: Any, space: Space, what: str) -> Found | None:
    if is_text(space):
        if not isinstance(value, str):
            return Found("dtype", f"{what} is a {type(value).__name__}, its space {space}. Return a text.")
        text = f"{what} is {value[:80]!r}, outside of {space}. Widen the space, or return another text."
        return None if space.contains(value) else Found("bounds", text)
    if not isinstance(value, np.ndarray | np.generic | int):
        return Found("dtype", f"{what} is a {type(value).__name__}. Return np.array(..., dtype=np.{space.dtype}).")
    array = np.asarray(value)
    if array.shape != space.shape:
        fix = "Make what you return and observation_space agree"
        return Found("shape", f"{what} has shape {array.shape}, its space {describe(space)}. {fix}.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return Found("finite", f"{what} holds {_first(array, ~np.isfinite(array))}. Every value must be finite.")
    if array.dtype != space.dtype and not isinstance(value, int):
        return Found(
            "dtype", f"{what} is {array.dtype}, its space {space.dtype}. Return it with .astype(np.{space.dtype})."
        )
    if isinstance(space, Box) and not space.contains(array):
        outside = (array < space.low) | (array > space.high)
        bounds = f"{_first(space.low, outside)} to {_first(space.high, outside)}"
        fix = "Widen observation_space, or clip what you return"
        return Found("bounds", f"{what} holds {_first(array, outside)} where its space has {bounds}. {fix}.")
    if not isinstance(space, Box) and not space.contains(value):
        return Found("bounds", f"{what} is {value}, outside {describe(space)}. Make the space larger.")
    return None


def _first(array: np.ndarray, where: np.ndarray) -> Any:
    return array[where].flat[0]


def check_reward(reward: Any) -> Found | None:
    """A reward is one finite number."""
    if isinstance(reward, np.ndarray) or not isinstance(reward, int | float | np.number | np.bool_):
        kind = f"an array of shape {reward.shape}" if isinstance(reward, np.ndarray) else f"a {type(reward).__name__}"
        return Found("reward", f"The reward is {kind}. Return one number: float(reward).")
    if not np.isfinite(reward):
        return Found("reward", f"The reward is {reward}. It must be finite: guard what can divide by zero or overflow.")
    return None


def check_flag(name: str, value: Any) -> Found | None:
    """`terminated` and `truncated` are bools."""
    if isinstance(value, bool | np.bool_):
        return None
    return Found("done", f"{name} is {value!r}, a {type(value).__name__}. Return a bool: bool({name}).")


def check_copied(kept: Any, copied: Any) -> Found | None:
    """Whether an observation that was kept changed when the environment took its next step."""
    if isinstance(kept, np.ndarray) and not np.array_equal(kept, copied, equal_nan=kept.dtype.kind == "f"):
        text = "An observation changed after it was returned. Return a copy of what step changes: self.state.copy()."
        return Found("copy", text)
    return None
