"""Custom metrics of a run: functions of collected steps, and the numbers of `info` that it keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from etude.base.data import Steps, info_extra
from etude.base.errors import CallbackError, ConfigError
from etude.envs.faults import explain_error

Metric = Callable[[Steps], Any]
RESERVED = ("ep_len", "ep_rew", "episodes")  # names under `rollout/` that are taken


class Metrics:
    """The metrics of collected steps, by name.

    kept: names of numbers of `info` that travel with the steps. Each is a metric: its value at the last step of each
    episode that ended, so that the mean of a flag such as `success` is the rate of success.
    """

    def __init__(self, kept: Iterable[str]):
        self._functions: dict[str, Metric] = {name: _AtEpisodeEnd(name) for name in kept}

    def set(self, name: str, function: Metric | None) -> None:
        """Add a metric, replace the one of this name, or remove it (None). ConfigError for what is none."""
        if not isinstance(name, str) or not name.strip() or name != name.strip() or name in RESERVED:
            raise ConfigError(
                f"metric name = {name!r}; expected a text such as 'pole_angle', other than {', '.join(RESERVED)}."
            )
        if function is None:
            if name not in self._functions:
                known = ", ".join(self._functions) or "none"
                raise ConfigError(f"There is no metric {name!r} to remove; the run has: {known}.")
            del self._functions[name]
        elif callable(function):
            self._functions[name] = function
        else:
            raise ConfigError(
                f"metric {name!r} = {function!r}; expected a function of steps, or None to remove the metric."
            )

    def __call__(self, parts: tuple[Steps, ...], step: int) -> dict[str, np.ndarray]:
        """The values of all metrics, [V] float64 each, without NaN; only of those that have any. step: of the run.

        Raises CallbackError where a function raises, or returns something else than `Run.metric` says.
        """
        found = {}
        for name, function in self._functions.items():
            values = [_values(name, function, steps, step) for steps in parts]
            joined = values[0] if len(values) == 1 else np.concatenate(values)
            if joined.size:
                found[name] = joined
        return found


class _AtEpisodeEnd:
    """A kept number of `info` at the last step of each episode."""

    def __init__(self, name: str):
        self._extra = info_extra(name)

    def __call__(self, steps: Steps) -> np.ndarray:
        kept = steps.extras.get(self._extra)  # missing in steps that a run without it had collected ahead
        return np.empty(0) if kept is None else kept[steps.final_index[:, 0], steps.final_index[:, 1]]


def _values(name: str, function: Metric, steps: Steps, step: int) -> np.ndarray:
    try:
        result = function(steps)
    except Exception as error:
        raise CallbackError(f"Metric {name!r} raised {explain_error(error)} at step {step:,}.", error) from None
    try:
        array = None if result is None else np.asarray(result, np.float64)
    except (TypeError, ValueError):
        array = None
    ended = len(steps.final_index)
    if array is None or array.shape not in ((), steps.shape, (ended,)):
        got = f"shape {array.shape}" if array is not None else f"{str(result)[:80]}, a {type(result).__name__}"
        raise CallbackError(
            f"Metric {name!r} returned {got} at step {step:,}; expected a number, an array [T, N] = {steps.shape}, or "
            f"one number for each of the {ended} episodes that ended: ({ended},)."
        )
    array = array.reshape(-1)
    return array[~np.isnan(array)]
