"""The events of a run. The library itself prints nothing: reporters and callbacks read these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from etude.base.data import EpisodeEnd, Estimate, Steps
from etude.base.errors import DataError
from etude.base.spaces import Spaces


@dataclass(frozen=True, slots=True)
class Started:
    """The run begins or goes on: what it is, in words and numbers (algorithm, environment, engine, device,
    total...)."""

    step: int
    description: dict[str, Any]
    _spaces: Callable[[], Spaces] | None = field(default=None, compare=False, repr=False)
    _record_log_prob: Callable[[], None] | None = field(default=None, compare=False, repr=False)

    def record_log_prob(self) -> None:
        """Let collected steps carry the log probabilities of their actions, the extra `log_prob`, until the run is
        started again. They carry none where the explorer does not know them, and of several processes (`devices`)."""
        if self._record_log_prob is not None:
            self._record_log_prob()

    @property
    def spaces(self) -> Spaces | None:
        """Observations as agents see them, and actions as the environment takes them; None where nothing is stepped.
        Makes an environment to look at its action space."""
        return None if self._spaces is None else self._spaces()


@dataclass(frozen=True, slots=True)
class Collected:
    """Environment steps were taken. `step` counts all of them since the run began.

    metrics: the values of custom metrics, and of the numbers of `info` that the run keeps, by name.
    """

    step: int
    episodes: tuple[EpisodeEnd, ...]
    seconds: float  # spent collecting
    metrics: dict[str, np.ndarray] = field(default_factory=dict, compare=False)
    _parts: list[tuple[Steps, ...]] = field(default_factory=lambda: [()], compare=False, repr=False)

    @property
    def steps(self) -> tuple[Steps, ...]:
        """The collected steps, in parts that name their environments in `columns`: read-only views, valid until the
        event is delivered. Copy what you keep. Empty where workers return gradients.

        Raises DataError after the event was delivered.
        """
        if not self._parts:
            raise DataError(
                f"The steps of this event (step {self.step:,}) were released after it was delivered. Copy what you "
                "keep of event.steps in the callback, or in the body of the loop over run.steps()."
            )
        return tuple(part.read_only() for part in self._parts[0])


@dataclass(frozen=True, slots=True)
class Adjusted:
    """A hyperparameter was changed while the run goes on."""

    step: int
    name: str
    before: float
    after: float
    reason: str


@dataclass(frozen=True, slots=True)
class Learned:
    """Gradient steps were taken: means over this learn call. `gradient_steps` counts those since the run began."""

    step: int
    gradient_steps: int
    losses: dict[str, float]
    metrics: dict[str, float]
    seconds: float
    adjusted: tuple[Adjusted, ...] = ()  # what rules changed after it; events of their own as well
    compile_seconds: float = field(default=0.0, compare=False)  # of calls since the last one in which JAX, ... compiled


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The agent was evaluated on environments of its own.

    step: at which it was evaluated. Beside training (`evaluate_workers`), that is before the step of the events around
    this one. metrics: numbers of an evaluation function of one's own, by name, which may return no returns at all.
    """

    step: int
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    best: bool  # whether the mean return is the highest so far
    cut_off: int = 0  # episodes that had not ended after as many steps as an evaluation plays
    returns_by_agent: dict[str, tuple[float, ...]] = field(default_factory=dict)  # of several agents, those of each
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """The mean return; NaN without returns."""
        return sum(self.returns) / len(self.returns) if self.returns else float("nan")

    @property
    def mean_by_agent(self) -> dict[str, float]:
        return {agent: sum(returns) / len(returns) for agent, returns in self.returns_by_agent.items()}


@dataclass(frozen=True, slots=True)
class Estimated:
    """The policy was estimated from recorded episodes of another one."""

    step: int
    estimates: dict[str, Estimate]  # by method
    notes: tuple[str, ...] = ()  # why an estimate may be far off


@dataclass(frozen=True, slots=True)
class Sampled:
    """Episodes of texts were played to be read; `etude.report.Text` reports them."""

    step: int
    texts: tuple[str, ...]
    returns: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Warned:
    """Something the user should know and that did not stop the run (a worker replaced, a save that failed...)."""

    step: int
    message: str


@dataclass(frozen=True, slots=True)
class WorkerReplaced:
    """A worker process died or hung and was replaced; its open episodes are lost. `Warned` comes before, with the
    text for the user."""

    step: int
    worker: int  # its number in the pool
    environments: tuple[int, ...]  # the numbers of its environments
    reason: str


@dataclass(frozen=True, slots=True)
class Saving:
    """A checkpoint is about to be written. What a reporter has to say of the steps before belongs on disk now: a run
    that is killed right after the checkpoint goes on from it."""

    step: int
    kind: str  # "last" or "best"


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint is on disk, complete."""

    step: int
    path: str
    kind: str  # "last" or "best"


@dataclass(frozen=True, slots=True)
class Finished:
    """The run stopped: `reason` is "steps", "target" (the return that was asked for is reached) or "interrupted" (by a
    signal, or by `run.stop()`)."""

    step: int
    reason: str
    seconds: float
    totals: dict[str, int] = field(default_factory=dict)  # episodes and gradient steps

    def __repr__(self) -> str:
        counted = "".join(f", {value:,} {name.replace('_', ' ')}" for name, value in self.totals.items())
        return f"<Finished at step {self.step:,} ({self.reason}) after {self.seconds:.1f} s{counted}>"


Event = (
    Started | Collected | Learned | Evaluated | Estimated | Adjusted | Sampled | Warned | WorkerReplaced | Saving
    | Saved | Finished
)  # fmt: skip
