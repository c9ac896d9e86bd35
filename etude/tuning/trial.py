"""Trials of a study: what each learns with, as plain data, how far it is, and how well it did."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from etude.base.errors import CheckpointError, ConfigError
from etude.checkpoint.config_json import from_json
from etude.training.assembly.described import plain_config


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

    def add(self, score: Score) -> bool:
        """Take in a score; whether it is new. A segment that is repeated reports its scores again."""
        if self.scores and score.step <= self.scores[-1].step:
            return False
        self.scores.append(score)
        return True

    def score(self, over_last: int = 1) -> float:
        """The mean over its last evaluations; minus infinity where it failed, or was not evaluated yet."""
        if self.status == "failed" or not self.scores:
            return -math.inf
        return statistics.fmean(score.mean for score in self.scores[-over_last:])

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
