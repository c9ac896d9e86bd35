"""Trials of a study: what each learns with, how far it is and how well it did; what the study was asked for; and what
its schedulers see and decide."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from etude.base import checks
from etude.base.errors import CheckpointError, ConfigError
from etude.checkpoint.config_json import from_json
from etude.training.assembly.described import plain_config
from etude.tuning.space import Space


@dataclass(frozen=True)
class Genome:
    """What a trial learns with: all that a study, or evolution, may change.

    algorithm: a name from `etude list`, or that of an agent of one's own. config: its config, which holds the
    hyperparameters, the network specs and the optimizer. seed: of the run.
    """

    algorithm: str
    config: Any
    seed: int

    def to_json(self) -> dict[str, Any]:
        """Plain data from which `genome_from_json` makes it again. Functions in the config are named, not stored."""
        config, functions = plain_config(self.config)
        return {"algorithm": self.algorithm, "config": config, "functions": functions, "seed": self.seed}


def genome_from_json(data: Any, base: Any) -> Genome:
    """The genome that `to_json` described. CheckpointError where the data is damaged.

    base: a config of the same class. Fields that are equal in it are taken from it: functions are not stored, and a
        default network gives way to convolutions over images only where it is the default itself.
    """
    try:
        algorithm, plain, seed = data["algorithm"], dict(data["config"]), data["seed"]
        own = {place.partition(".")[0] for place in data["functions"]}
        config = from_json(type(base), {name: value for name, value in plain.items() if name not in own})
    except (ConfigError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(f"The genome of a trial cannot be read: {error} The journal was changed.") from error
    fields = [field.name for field in dataclasses.fields(base) if field.init and field.name not in own]
    changed = {name: getattr(config, name) for name in fields if getattr(config, name) != getattr(base, name)}
    return Genome(str(algorithm), dataclasses.replace(base, **changed), int(seed))


Status = Literal["queued", "running", "paused", "finished", "stopped", "failed"]
OVER: tuple[Status, ...] = ("finished", "stopped", "failed")


class Score(NamedTuple):
    """An evaluation of a trial: the undiscounted returns of its episodes.

    step: of the trial. cost: environment steps that the evaluation took.
    """

    step: int
    returns: tuple[float, ...]
    cost: int = 0

    @property
    def mean(self) -> float:
        """The mean return; minus infinity where it is no number."""
        mean = statistics.fmean(self.returns) if self.returns else math.nan
        return -math.inf if math.isnan(mean) else mean


@dataclass
class Trial:
    """One run of a study. Schedulers read trials, and only the study changes them.

    configuration: its number; trials of one configuration differ in their seeds alone. parent: the trial from whose
    checkpoint it starts; None: it starts anew. first: the step that it starts at, as the scheduler counts. until: the
    step that it was last sent to. step: environment steps so far, those of its parent included; algorithms that learn
    from whole episodes end past `until`. change: what made it of its parent, as plain data. reason: why it is over.
    """

    number: int
    genome: Genome
    configuration: int
    parent: int | None = None
    first: int = 0
    until: int = 0
    step: int = 0
    status: Status = "queued"
    scores: list[Score] = field(default_factory=list)
    change: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    checkpoint: str = ""  # the name of that of its present step; "" where there is none
    started: int = 0  # the step of the checkpoint that it starts from

    @property
    def over(self) -> bool:
        """Whether it will take no further step."""
        return self.status in OVER

    @property
    def rests(self) -> bool:
        """Whether it waits for a decision."""
        return self.status == "paused"

    @property
    def taken(self) -> int:
        """Environment steps that the study spent on it, without evaluations."""
        return self.step - self.started

    def add(self, score: Score) -> None:
        """Take in a score, unless it is there: a segment that is repeated reports its scores again."""
        if not self.scores or score.step > self.scores[-1].step:
            self.scores.append(score)

    def score(self) -> float:
        """The mean of its last evaluation; minus infinity where it failed, or was not evaluated yet."""
        return -math.inf if self.status == "failed" or not self.scores else self.scores[-1].mean

    def score_at(self, step: int) -> float:
        """Of its first evaluation at this step or later; of its last one where it ended before. Minus infinity where it
        failed."""
        if self.status == "failed" or not self.scores:
            return -math.inf
        return next((score for score in self.scores if score.step >= step), self.scores[-1]).mean


class Configuration(NamedTuple):
    """The trials that differ in their seeds alone."""

    number: int
    trials: tuple[Trial, ...]

    @property
    def until(self) -> int:
        """The step that one of its trials was sent to, at most."""
        return max(trial.until for trial in self.trials)

    @property
    def over(self) -> bool:
        """Whether none of its trials will take a further step."""
        return all(trial.over for trial in self.trials)

    @property
    def finished(self) -> bool:
        """Whether all of its trials took all steps, or reached the target."""
        return all(trial.status == "finished" for trial in self.trials)

    @property
    def failed(self) -> bool:
        """Whether one of its trials failed: its score is minus infinity then."""
        return any(trial.status == "failed" for trial in self.trials)

    def reached(self, step: int) -> bool:
        """Whether all of its trials have come to this step, or are over."""
        return all(trial.over or trial.rests and trial.until >= step for trial in self.trials)

    def score(self) -> float:
        """The mean over its seeds of their last evaluations."""
        return statistics.fmean(trial.score() for trial in self.trials)

    def score_at(self, step: int) -> float:
        """The mean over its seeds of their scores at a step."""
        return statistics.fmean(trial.score_at(step) for trial in self.trials)


def configurations_of(trials: Iterable[Trial]) -> list[Configuration]:
    """The trials by configuration, in the order of their numbers."""
    found: dict[int, list[Trial]] = {}
    for trial in trials:
        found.setdefault(trial.configuration, []).append(trial)
    return [Configuration(number, tuple(found[number])) for number in sorted(found)]


def lineage(trials: Sequence[Trial], number: int) -> list[Trial]:
    """A trial and its ancestors, the oldest first."""
    found: list[Trial] = []
    parent: int | None = number
    while parent is not None:
        found.insert(0, trials[parent])
        parent = trials[parent].parent
    return found


def failures(trials: Iterable[Trial]) -> str:
    """The end of a message that nothing was evaluated: which trials failed, and why; "" where none did."""
    reasons = [f"trial {trial.number}: {trial.reason.rstrip('.')}" for trial in trials if trial.status == "failed"]
    return f", and these failed: {'; '.join(reasons)}" if reasons else ""


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
        whole = all(type(seed) is int and seed >= 0 for seed in self.seeds)
        if not (self.seeds and whole and len(set(self.seeds)) == len(self.seeds)):
            raise ConfigError(f"seeds = {self.seeds}; expected whole numbers of at least 0, each once.")
        if self.steps % self.evaluate_every:
            raise ConfigError(
                f"evaluate_every = {self.evaluate_every:,} does not divide steps = {self.steps:,}, so that the last "
                f"steps would not be evaluated. Give one that does, such as {evaluate_every(self.steps):,}."
            )
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
