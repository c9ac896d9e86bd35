"""What rewrites collected steps between collecting and storing: functions, and objects with state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from etude.agent import Agent
from etude.base.checks import Stored
from etude.base.data import Steps
from etude.base.errors import CallbackError, NumericalError
from etude.base.spaces import Spaces
from etude.envs.faults import explain_error
from etude.protocols import Engine
from etude.rewrite.checks import problem_of


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
