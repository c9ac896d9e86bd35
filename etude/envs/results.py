"""What `reset` and `step` returned: why it cannot be used."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.envs.faults import FaultLocation


def check_reset(result: Any, where: FaultLocation) -> tuple[Any, dict[str, Any]]:
    """What `reset` returned, as (observation, info)."""
    wrong = explain_reset(result)
    if wrong is None:
        return result
    raise where.fault(wrong)


def explain_reset(result: Any) -> str | None:
    """Why a result of `reset` cannot be used; None where it can."""
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        return None
    got = f"a tuple of {len(result)}" if isinstance(result, tuple) else f"a bare {type(result).__name__}"
    return f"reset returned {got}; expected (observation, info). End it with `return observation, {{}}`"


def explain_step(result: Any) -> str:
    """Why a result of `step` that is not a five-tuple cannot be used."""
    if isinstance(result, tuple) and len(result) == 4 and not isinstance(result[3], dict):
        return "step returned four values; the info is missing: return observation, reward, terminated, truncated, {}"
    if isinstance(result, tuple) and len(result) == 4:
        return (
            "step returned four values, as the old Gym API does; expected (observation, reward, terminated, truncated, "
            "info). Split `done`: terminated where the task ended, truncated where time ran out"
        )
    got = f"{len(result)} values" if isinstance(result, tuple | list) else f"a {type(result).__name__}"
    return f"step returned {got}; expected (observation, reward, terminated, truncated, info)"


def explain_flag(name: str, value: Any) -> str | None:
    """Why a `terminated` or `truncated` cannot be used; None where it is a bool, or a 0 or 1 that stands for one."""
    if isinstance(value, bool | np.bool_) or (isinstance(value, int | float | np.number) and value in (0, 1)):
        return None
    return f"{name} is {repr(value)[:80]}, a {type(value).__name__}; expected one bool, such as `bool(...)` gives"


def as_flag(name: str, value: Any) -> bool:
    """A flag as a bool; TypeError where it cannot be used."""
    wrong = explain_flag(name, value)
    if wrong is not None:
        raise TypeError(wrong)
    return bool(value)
