"""Episodes put together step by step: from a simulator, a device, or a log, that etude does not step itself."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from etude.base import trees
from etude.base.data import Episode
from etude.base.errors import ConfigError, DataError
from etude.base.spaces import Space, Spaces, describe, parts, storage_dtype, tree_of
from etude.base.trees import Tree
from etude.offline import canonical
from etude.offline.dataset import Dataset
from etude.offline.writer import Writer


class Builder:
    """Takes one step at a time, in the values of the environment's own spaces.

        builder.add(observation, action, reward, log_prob=-0.7)
        builder.end(final_observation, terminated=True)

    spaces: those of the environment: `Spaces(observation_space, action_space)`. environment: its id, for files.
    output: writes episodes as they end; None keeps them for `dataset`.
    """

    def __init__(self, spaces: Spaces, environment: str | None = None, output: Writer | None = None):
        self.source: Spaces = spaces
        self._environment, self._output = environment, output
        self._open: dict[Hashable, list[tuple[Tree, np.ndarray, np.float32, dict[str, np.ndarray]]]] = {}
        self._names: frozenset[str] | None = None  # of extras
        self._episodes: list[Episode] = []
        if output is not None:
            output.begin(spaces, environment)

    def add(self, observation: Any, action: Any, reward: Any, *, episode: Hashable = None, **extras: Any) -> None:
        """One step: what was observed, what was done then, and the reward that followed.

        episode: which one, where several go on at a time. extras: numbers or arrays of the step, such as the
            `log_prob` of the action, by the same names in every step.
        Raises DataError for values that do not belong to the spaces, and has then added nothing.
        """
        seen = _observed(self.source.observation, observation, "observation")
        own = _leaves(self.source.action, action, "action")
        if any(canonical.outside(leaf, value[None]).any() for _, leaf, value in own):
            raise DataError(f"action = {action!r}; expected a value of {self.source.action}.")
        earned = np.asarray(reward)
        if earned.ndim or earned.dtype.kind not in "biuf" or not np.isfinite(np.float32(earned)):
            raise DataError(f"reward = {reward!r}; expected a finite number.")
        names = frozenset(extras)
        if self._names is not None and names != self._names:
            raise DataError(f"A step with the extras {sorted(names)}; expected {sorted(self._names)}, as before.")
        kept = {name: np.asarray(value) for name, value in extras.items()}
        if wrong := [name for name, value in kept.items() if value.dtype.kind not in "biuf"]:
            raise DataError(f"{wrong[0]} = {extras[wrong[0]]!r}; expected a number or an array of numbers.")
        self._names = names
        done = canonical.actions_in(self.source.action, [value[None] for _, _, value in own])[0]
        self._open.setdefault(episode, []).append((seen, done, np.float32(earned), kept))

    def end(
        self, observation: Any, *, terminated: bool = False, truncated: bool = False, episode: Hashable = None
    ) -> None:
        """End an episode with its final observation. terminated: nothing follows, and nothing is bootstrapped: the
        observation may be None, as in a log of decisions, and the last one stands for it. truncated: it was cut off.
        One of them is true.

        Raises DataError where the observation does not belong to its space, or there are no steps.
        """
        if bool(terminated) == bool(truncated):
            raise ConfigError("An episode ends with terminated=True or with truncated=True, and not with both.")
        known = observation is not None or truncated
        final = _observed(self.source.observation, observation, "observation") if known else None
        if episode not in self._open:
            raise DataError(f"The episode {episode!r} has no steps to end; expected add before end.")
        steps = self._open.pop(episode)
        final = final if known else steps[-1][0]
        built = Episode(
            observation=trees.stack([*(step[0] for step in steps), final]),
            action=np.stack([step[1] for step in steps]),
            reward=np.array([step[2] for step in steps], np.float32),
            terminated=bool(terminated),
            truncated=bool(truncated),
            extras={name: _column([step[3][name] for step in steps], name) for name in sorted(self._names or ())},
        )
        if self._output is None:
            self._episodes.append(built)
        else:
            self._output.write([built])

    def drop(self, episode: Hashable = None) -> None:
        """Forget an open episode."""
        self._open.pop(episode, None)

    def dataset(self) -> Dataset:
        """The episodes that have ended, for `offline.write` or a run's `data=`."""
        return Dataset(tuple(self._episodes), self.source, self._environment)


def _column(values: list[np.ndarray], name: str) -> np.ndarray:
    if any(value.shape != values[0].shape for value in values):
        raise DataError(f"{name} has several shapes in an episode, which is dropped; expected {values[0].shape}.")
    column = np.stack(values)
    return column.astype(np.float32) if column.dtype == np.float64 else column


def _observed(space: Space, value: Any, where: str) -> Tree:
    """An observation as agents see it."""
    found = []
    for name, leaf, own in _leaves(space, value, where):
        if own.dtype.kind != "f" and canonical.outside(leaf, own[None]).any():
            raise DataError(f"{name} = {own.tolist()}; expected a value of {leaf}.")
        found.append(canonical.counted_from_zero(leaf, own[None])[0])
    return tree_of(space, iter(found))


def _leaves(space: Space, value: Any, where: str) -> list[tuple[str, Space, np.ndarray]]:
    """The leaves of a space with their names, and what they are in a value of it."""
    inner = parts(space)
    if not inner:
        return [(where, space, _fitted(space, value, where))]
    named = isinstance(inner[0][0], str)
    if not isinstance(value, dict if named else tuple) or len(value) != len(inner):
        raise DataError(f"{where} is {value!r:.200}; expected {describe(space)}.")
    if named and set(value) != {key for key, _ in inner}:
        raise DataError(f"{where} has the keys {sorted(map(str, value))}; expected {describe(space)}.")
    return [leaf for key, part in inner for leaf in _leaves(part, value[key], f"{where}[{key!r}]")]


def _fitted(space: Space, value: Any, where: str) -> np.ndarray:
    found, kind = np.asarray(value), storage_dtype(space)
    allowed = "biuf" if kind.kind == "f" else "biu"
    if found.shape != (space.shape or ()) or found.dtype.kind not in allowed or not np.isfinite(found).all():
        raise DataError(f"{where} = {value!r:.200}; expected finite numbers of {describe(space)}.")
    return found
