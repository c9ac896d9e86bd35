"""What a study was asked for, and what its schedulers see of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from etude.base import checks
from etude.base.errors import ConfigError
from etude.tuning.space import Space
from etude.tuning.trial import Configuration, Genome, Trial, configurations_of

EVALUATIONS = (20, 10, 25, 16, 12, 8, 5, 4, 2, 1)  # of a trial, where nobody says how many: the first that fits


@dataclass(frozen=True)
class StudyPlan:
    """How long trials last, when they are evaluated, and on which seeds. Steps are environment steps of a trial
    (gradient steps, where it learns from recorded data)."""

    steps: int
    evaluate_every: int
    configurations: int  # how many are tried
    seeds: tuple[int, ...] = (0,)  # of the trials of each configuration
    seed: int = 0  # of what the study draws
    evaluate_episodes: int = 10
    evaluate_seed: int | None = None  # of the episodes of evaluations; None: each trial its own
    target: float | None = None  # a trial is finished when the mean return of an evaluation reaches this
    save_every: int | None = None  # None: a tenth of a trial
    shared_replay: bool = False  # trials, one after the other, store into one replay

    def __post_init__(self) -> None:
        checks.declared(self)
        checks.counts(self, "steps", "evaluate_every", "configurations", "evaluate_episodes")
        checks.not_negative(self, "seed")
        object.__setattr__(self, "seeds", tuple(self.seeds))
        if not self.seeds or any(type(seed) is not int or seed < 0 for seed in self.seeds):
            raise ConfigError(f"seeds = {self.seeds}; expected whole numbers of at least 0, one for each repetition.")
        if len(set(self.seeds)) != len(self.seeds):
            raise ConfigError(f"seeds = {self.seeds}; expected each number once: a seed that is repeated says nothing.")
        if self.steps % self.evaluate_every:
            raise ConfigError(
                f"evaluate_every = {self.evaluate_every:,} does not divide steps = {self.steps:,}, so that the last "
                f"steps would not be evaluated. Give one that does, such as {evaluate_every(self.steps):,}."
            )
        if self.save_every is not None:
            checks.counts(self, "save_every")

    def rounded(self, step: float) -> int:
        """The next multiple of `evaluate_every`, so that trials rest where they were just evaluated."""
        return min(self.steps, max(1, -(-int(step) // self.evaluate_every)) * self.evaluate_every)


def study_plan(
    space: Space, steps: int | None, trials: int | None, seeds: int | Iterable[int], every: int | None, **rest: Any
) -> StudyPlan:
    """The plan that the arguments of a study stand for; ConfigError where something has to be given."""
    if steps is None:
        raise ConfigError("steps is not given, and there is no preset: say how long trials last, as in steps=100_000.")
    if trials is None:
        if not space.domains:
            raise ConfigError("The space is empty: name at least one hyperparameter, as in {'learning_rate': [1e-3]}.")
        if not space.is_grid:
            raise ConfigError("trials is not given, and the space is no grid: say how many to try, as in trials=20.")
        trials = len(space.grid())
    seeds = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    every = evaluate_every(steps) if every is None and type(steps) is int and steps > 0 else every
    return StudyPlan(steps, every or 1, trials, seeds, **rest)


def evaluate_every(steps: int) -> int:
    """How often to evaluate a trial of so many steps: 20 times, or another number that divides them."""
    return next(steps // count for count in EVALUATIONS if steps % count == 0)


class StudyState(NamedTuple):
    """What a scheduler decides from. It changes nothing in it."""

    plan: StudyPlan
    space: Space
    trials: Sequence[Trial]

    @property
    def configurations(self) -> list[Configuration]:
        """The trials by configuration, in the order in which they were proposed."""
        return configurations_of(self.trials)

    @property
    def unproposed(self) -> int:
        """How many configurations are still to be proposed."""
        return self.plan.configurations - len({trial.configuration for trial in self.trials if trial.parent is None})

    @property
    def in_flight(self) -> bool:
        """Whether some trial is on its way to a step."""
        return any(trial.status in ("queued", "running") for trial in self.trials)


class Go(NamedTuple):
    """Take a trial up to a step."""

    trial: int
    until: int


class New(NamedTuple):
    """Propose the next configuration, and take its trials up to a step."""

    until: int


class Stop(NamedTuple):
    """End a trial."""

    trial: int
    reason: str


class Copy(NamedTuple):
    """Begin a trial from the newest checkpoint of another one, with another genome, and take it up to a step.

    replaces: the trial that ends for it. change: what made the genome of the parent's, as plain data.
    """

    parent: int
    genome: Genome
    replaces: int
    until: int
    change: dict[str, Any]


Decision = Go | New | Stop | Copy


class Scheduler(Protocol):
    """Decides which trials go on, stop, are copied or changed. A frozen dataclass of plain data: what it decides
    follows from the trials alone, and what it draws from the seed of the study, so that there is no state to save.

    grows: what of a plan may be more where a study goes on, of `steps` and `configurations`.
    """

    grows: ClassVar[tuple[str, ...]]

    def check(self, state: StudyState) -> None:
        """Raise ConfigError where it cannot be used for a study."""

    def decide(self, state: StudyState) -> Sequence[Decision]:
        """What to do next, with a place free for a trial; nothing: wait for the trials that are under way. The study
        is over when there is nothing to do and none of them is."""


class Search(Protocol):
    """Proposes configurations. A frozen dataclass of plain data, as schedulers are."""

    def propose(self, number: int, state: StudyState) -> dict[str, Any]:
        """The values of configuration `number`, by field."""
