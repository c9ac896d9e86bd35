"""What rewrites collected steps between collecting and storing: functions, and objects with state; and whether what
they return can be learned from in the place of what was collected."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from etude.agent import Agent
from etude.base import trees
from etude.base.checks import Stored
from etude.base.data import Steps
from etude.base.errors import CallbackError, NumericalError
from etude.base.spaces import Spaces, limits
from etude.base.trees import Tree
from etude.envs.faults import explain_error
from etude.protocols import Engine


class Rewriter:
    """The base of rewriters with state: write `__call__`, and `state` and `restore` where a resumed run needs them.

    It is called once with each `Steps` that is collected, in the order of the run, in the process that learns.
    """

    def __call__(self, steps: Steps) -> Steps:
        """The steps to learn from, such as `dataclasses.replace(steps, reward=...)`. steps: read-only arrays. Raise
        before anything of the state changes: the same steps come again when the run goes on."""
        raise NotImplementedError(f"{type(self).__name__} defines no __call__(steps).")

    def set_progress(self, step: int, total: int) -> None:
        """Called before each `__call__`, for schedules. step: environment steps of the run before the steps that come.
        total: those that its schedules are stretched over."""

    def metrics(self) -> dict[str, float]:
        """Numbers to report with each learning phase; names must not be those of the agent's metrics."""
        return {}

    def state(self) -> dict[str, Any]:
        """Arrays, numbers and text, in dicts and lists, from which `restore` goes on with the same numbers."""
        return {}

    def check_state(self, saved: Stored) -> None:
        """Raise CheckpointError where `restore` cannot continue from this; nothing is changed. By default it takes what
        has the names, kinds and shapes of `state()`."""
        saved.like(self.state())

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which `check_state` has passed."""


@dataclass(frozen=True)
class RewriterContext:
    """What a rewriter is built from.

    name: of the rewriter in the run, unique there. environments: N, from which the run collects. seed: for its
    generators. make_engine: an engine of the run's framework for an agent and a seed.
    """

    name: str
    spaces: Spaces
    environments: int
    seed: int
    make_engine: Callable[[Agent, int], Engine]


class RewriterSpec:
    """The base of rewriters as data: frozen dataclasses that checkpoints hold, and that every run builds anew."""

    name: ClassVar[str]  # of its state and of its metrics

    def build(self, context: RewriterContext) -> Rewriter:
        """The rewriter of one run. Raises ConfigError where it cannot rewrite steps of these spaces."""
        raise NotImplementedError


class Rewriters:
    """The rewriters of a run, one after the other, by name. spaces: of the steps."""

    def __init__(self, rewriters: dict[str, Callable[[Steps], Steps]], spaces: Spaces):
        self._rewriters, self._spaces = rewriters, spaces
        self._stateful = {name: own for name, own in rewriters.items() if isinstance(own, Rewriter)}

    def __call__(self, parts: Iterable[Steps], step: int, total: int) -> tuple[Steps, ...]:
        """The rewritten parts of what was collected at environment step `step` of a run of `total` steps.

        Raises CallbackError with the name of the rewriter that raised, or returned what cannot be learned from.
        """
        for rewriter in self._stateful.values():
            rewriter.set_progress(step, total)
        return tuple(self._rewritten(part, step) for part in parts)

    def _rewritten(self, steps: Steps, step: int) -> Steps:
        for name, rewriter in self._rewriters.items():
            before = steps.read_only()
            try:
                steps = rewriter(before)
            except NumericalError as error:
                raise NumericalError(f"Rewriter {name}: {error}") from error
            except Exception as error:
                raised = f"Rewriter {name} raised {explain_error(error)} at step {step:,}."
                raise CallbackError(raised, error) from None
            if problem := problem_of(before, steps, self._spaces):
                raise CallbackError(f"Rewriter {name} returned {problem[0]} at step {step:,}; expected {problem[1]}")
        return steps

    def metrics(self) -> dict[str, float]:
        """The metrics of all rewriters."""
        return {name: value for own in self._stateful.values() for name, value in own.metrics().items()}

    def state(self) -> dict[str, Any]:
        """The states of the rewriters that have one, by name."""
        return {name: own.state() for name, own in self._stateful.items()}

    def check_state(self, saved: Stored) -> None:
        """Raise CheckpointError where `restore` cannot continue from this; a rewriter that it lacks begins anew."""
        for name, held in saved.table().items():
            if name not in self._stateful:
                known = ", ".join(self._stateful) or "none with state"
                saved.refuse(f"the state of one of this run's rewriters ({known}); rewrite=None drops them", repr(name))
            self._stateful[name].check_state(held)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which `check_state` has passed."""
        for name, own in state.items():
            self._stateful[name].restore(own)


FIXED = ("terminated", "truncated", "final_index", "columns", "restarted")
"""What says where episodes end and how rows follow each other: targets bootstrap, and the replay joins rows, by it."""


Problem = tuple[str, str]  # what a rewriter returned that cannot be learned from, and what is expected


def problem_of(before: Steps, after: Any, spaces: Spaces) -> Problem | None:
    """What is wrong with steps that were rewritten; None where they can be learned from. Fields that are the same
    objects as before are not read."""
    if not isinstance(after, Steps):
        return (f"a {type(after).__name__}", "Steps, such as dataclasses.replace(steps, reward=...).")
    for name in FIXED:
        own, new = getattr(before, name), getattr(after, name)
        if new is not own and not (isinstance(new, np.ndarray) and np.array_equal(own, new)):
            return (
                f"steps with another {name!r}",
                "that of the collected steps: targets bootstrap, and the replay joins rows, by where episodes ended. "
                "Rewrite rewards, observations or actions, or wrap the environment.",
            )
    if after.episodes != before.episodes:
        return ("other 'episodes'", "those of the environment: they are what the run reports.")
    bounds = {"observation": limits(spaces.observation), "action": limits(spaces.action)[:1], "reward": [(None, None)]}
    bounds["next_observation"] = bounds["final_observation"] = bounds["observation"]
    for name, bound in bounds.items():
        if problem := _tree_problem(name, getattr(before, name), getattr(after, name), bound):
            return problem
    if (extras := after.extras) is before.extras:
        return None
    if not isinstance(extras, dict) or extras.keys() != before.extras.keys():
        return ("other extras", f"those of the collected steps: {', '.join(before.extras) or 'none'}.")
    for name, own in before.extras.items():
        if (new := extras[name]) is not own and (problem := _array_problem(f"extras[{name!r}]", own, new, None, None)):
            return problem
    return None


def _tree_problem(name: str, before: Tree, after: Tree, bounds: list[tuple[Any, Any]]) -> Problem | None:
    if after is before:
        return None
    own, new = dict(trees.items(before)), dict(trees.items(after))
    if own.keys() != new.keys():
        return (f"{name!r} with the parts {', '.join(new)}", f"the parts {', '.join(own)}.")
    for (path, leaf), (low, high) in zip(own.items(), bounds, strict=True):
        if new[path] is leaf:
            continue
        if problem := _array_problem(f"{name}.{path}" if path else name, leaf, new[path], low, high):
            return problem
    return None


def _array_problem(name: str, before: np.ndarray, after: Any, low: Any, high: Any) -> Problem | None:
    if not isinstance(after, np.ndarray):
        return (f"{name} as a {type(after).__name__}", f"an array of {before.dtype} of shape {before.shape}.")
    if after.shape != before.shape or after.dtype != before.dtype:
        cast = f" Write .astype(np.{before.dtype})." if after.shape == before.shape else ""
        return (
            f"{name} of shape {after.shape}, {after.dtype}",
            f"shape {before.shape}, {before.dtype}, as collected.{cast}",
        )
    if after.dtype.kind == "f":
        wrong = ~np.isfinite(after) & np.isfinite(before)
        if wrong.any():
            return (f"{name} with {after[wrong][0]} at {_place(wrong)}", "finite numbers.")
    if low is not None:
        wrong = (after < low) | (after > high)
        if wrong.any():
            return (f"{name} with {after[wrong][0]} at {_place(wrong)}", "values of its space.")
    return None


def _place(wrong: np.ndarray) -> list[int]:
    return [int(i) for i in np.argwhere(wrong)[0]]
