"""What a run tells those who listen. The library itself is silent: reporters and callbacks read these."""

from __future__ import annotations

from dataclasses import dataclass, field

from etude.base.data import EpisodeEnd


@dataclass(frozen=True, slots=True)
class Started:
    """The run begins or goes on: what it is, in words and numbers (algorithm, environment, engine, device,
    total...)."""

    step: int
    description: dict


@dataclass(frozen=True, slots=True)
class Collected:
    """Environment steps were taken. `step` counts all of them since the run began."""

    step: int
    episodes: tuple[EpisodeEnd, ...]
    seconds: float  # spent collecting


@dataclass(frozen=True, slots=True)
class Learned:
    """Gradient steps were taken: means over this learn call. `gradient_steps` counts those since the run began."""

    step: int
    gradient_steps: int
    losses: dict[str, float]
    metrics: dict[str, float]
    seconds: float


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The agent was evaluated on environments of its own."""

    step: int
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    best: bool  # whether the mean return is the highest so far
    cut_off: int = 0  # episodes that had not ended after as many steps as an evaluation plays
    returns_by_agent: dict[str, tuple[float, ...]] = field(default_factory=dict)  # of several agents, those of each

    @property
    def mean(self) -> float:
        return sum(self.returns) / len(self.returns)

    @property
    def mean_by_agent(self) -> dict[str, float]:
        return {agent: sum(returns) / len(returns) for agent, returns in self.returns_by_agent.items()}


@dataclass(frozen=True, slots=True)
class Adjusted:
    """A hyperparameter was changed while the run goes on."""

    step: int
    name: str
    before: float
    after: float
    reason: str


@dataclass(frozen=True, slots=True)
class Warned:
    """Something the user should know and that did not stop the run (a worker replaced, a save that failed...)."""

    step: int
    message: str


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
    """The run stopped: `reason` is "steps", "target" (the return that was asked for is reached) or "interrupted"."""

    step: int
    reason: str
    seconds: float
    totals: dict = field(default_factory=dict)  # episodes, updates, workers replaced, ...


Event = Started | Collected | Learned | Evaluated | Adjusted | Warned | Saving | Saved | Finished
