"""Numbers of `info` that a run keeps with its steps, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

STATISTICS = "episode"  # the key of Gymnasium's RecordEpisodeStatistics


class WrongInfo(Exception):
    """A kept value of `info` is no number. position: of its environment, among those that were stepped."""

    def __init__(self, position: int, text: str):
        super().__init__(text)
        self.position = position


class KeptInfo:
    """Reads these numbers from the infos of a step: [n, K] float32, NaN where one is missing.

    A dot in a name leads into a dict of `info`: "left.score" of `info["left"]["score"]`. note: takes the warning about
    a name that is missing.
    """

    def __init__(self, names: Sequence[str], note: Callable[[str], None]):
        self.names: tuple[str, ...] = tuple(names)
        self._note = note

    def of_infos(self, infos: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """From one dict for each environment. Raises WrongInfo."""
        names = self.names
        try:
            found = np.array([[info[name] for name in names] for info in infos], np.float32)
        except (KeyError, TypeError, ValueError):
            found = None
        if found is None or found.shape != (len(infos), len(names)):
            found = np.array([[self._number(i, info, name) for name in names] for i, info in enumerate(infos)])
        return found.astype(np.float32, copy=False)

    def of_simulator(self, infos: Mapping[str, Any], ended: np.ndarray) -> np.ndarray:
        """From the arrays of a vectorised simulator, which says with `_name` for which environments they are; for those
        that ended within the step, from `final_info`, and what RecordEpisodeStatistics of Gymnasium puts beside it."""
        last = infos.get("final_info")
        found = self._of_arrays(infos, len(ended), last is None)
        if isinstance(last, Mapping) and ended.any():
            beside = {STATISTICS: infos[STATISTICS]} if STATISTICS in infos else {}
            found[ended] = self._of_arrays({**beside, **last}, len(ended), True)[ended]
        return found

    def _of_arrays(self, infos: Mapping[str, Any], n: int, note: bool) -> np.ndarray:
        found = np.full((n, len(self.names)), np.nan, np.float32)
        for k, name in enumerate(self.names):
            values: Any = _look_up(infos, name)
            if values is None:
                if note:
                    self._missing(name, infos)
                continue
            try:
                numbers = np.asarray(values, np.float32)
            except (TypeError, ValueError):
                numbers = None
            if numbers is None or numbers.shape != (n,):
                raise WrongInfo(0, f"info[{name!r}] is {str(values)[:80]}; expected {n} numbers, for keep_info")
            found[:, k] = np.where(_present(infos, name), numbers, np.nan)
        return found

    def _number(self, position: int, info: Mapping[str, Any], name: str) -> float:
        value = _look_up(info, name)
        if value is None:
            self._missing(name, info)
            return np.nan
        try:
            if isinstance(value, str | bytes):
                raise TypeError
            return float(np.asarray(value, np.float64).reshape(()))
        except (TypeError, ValueError):
            text = f"info[{name!r}] is {str(value)[:80]}, a {type(value).__name__}; expected one number, for keep_info"
            raise WrongInfo(position, text) from None

    def _missing(self, name: str, info: Mapping[str, Any]) -> None:
        known = ", ".join(sorted(str(key) for key in info if not str(key).startswith("_"))) or "nothing"
        self._note(
            f"info holds no {name!r}, which keep_info names; it is NaN there. At this step info holds: {known[:200]}."
        )


def _present(infos: Any, name: str) -> Any:
    """For which environments the arrays of a simulator hold a value, [n] or one for all: flags are beside each key."""
    first, _, rest = (name, "", "") if name in infos else name.partition(".")
    own = np.asarray(infos.get(f"_{first}", True), bool)
    return own & _present(infos[first], rest) if rest else own


def _look_up(info: Any, name: str) -> Any:
    if isinstance(info, Mapping) and name in info:
        return info[name]
    first, dot, rest = name.partition(".")
    return _look_up(info.get(first), rest) if dot and isinstance(info, Mapping) else None
