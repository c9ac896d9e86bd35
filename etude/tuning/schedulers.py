"""Schedulers: which trials go on, and which stop early."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from etude.base import checks
from etude.base.errors import ConfigError
from etude.tuning.plan import Decision, Go, New, Stop, StudyState
from etude.tuning.trial import Configuration


@dataclass(frozen=True)
class Fifo:
    """Every trial takes all of its steps, in the order in which it was proposed."""

    grows: ClassVar[tuple[str, ...]] = ("configurations", "steps")

    def check(self, state: StudyState) -> None:
        """It can be used for every study."""

    def decide(self, state: StudyState) -> Sequence[Decision]:
        """See `Scheduler`."""
        steps = state.plan.steps
        for trial in state.trials:
            if trial.rests and trial.until < steps:
                return [Go(trial.number, steps)]
        return [New(steps)] if state.unproposed else []


@dataclass(frozen=True)
class ASHA:
    """Asynchronous successive halving: of the configurations that have come to a rung, the best 1/`reduction` go on to
    the next one, as soon as there is a place. Li et al. 2020, arXiv:1810.05934, algorithm 2. No more than 1/`reduction`
    of those that came to a rung ever leave it, in whatever order they come, so that a study takes no more steps than
    successive halving does: the delayed promotion of Li et al. 2022, "Hyper-Tune", arXiv:2201.06834.

    min_steps: the first rung; None: so that there are as many rungs as the number of configurations fills. Each further
    rung is `reduction` times as far. Rungs are rounded up to evaluations.
    Results depend on the order in which trials come to their rungs, unless one runs at a time. At the end, the best
    configuration on the highest rung takes all steps, where none got there by itself.
    """

    grows: ClassVar[tuple[str, ...]] = ("configurations",)  # rungs are parts of the steps

    min_steps: int | None = None  # asha: steps before the first comparison; None: by the number of configurations
    reduction: int = 3  # asha: one in so many goes on

    def __post_init__(self) -> None:
        checks.declared(self)
        if self.reduction < 2:
            raise ConfigError(f"ASHA: reduction = {self.reduction}; expected a whole number of at least 2.")
        if self.min_steps is not None:
            checks.counts(self, "min_steps")

    def check(self, state: StudyState) -> None:
        """Raise ConfigError where there is one rung alone."""
        if len(self.rungs(state)) < 2:
            plan = state.plan
            raise ConfigError(
                f"ASHA compares trials before their last step; with steps = {plan.steps:,}, evaluate_every = "
                f"{plan.evaluate_every:,} and {plan.configurations} configurations there is no such step. Evaluate "
                "more often, try more configurations, or give ASHA(min_steps=...)."
            )

    def rungs(self, state: StudyState) -> list[int]:
        """The steps at which configurations are compared; the last one is the whole trial."""
        plan, reduction = state.plan, self.reduction
        least: float = self.min_steps or plan.steps
        while self.min_steps is None and plan.configurations >= reduction * plan.steps / least:
            least /= reduction
        found = {plan.steps}
        while least < plan.steps:
            found.add(plan.rounded(least))
            least *= reduction
        return sorted(found)

    def decide(self, state: StudyState) -> Sequence[Decision]:
        """See `Scheduler`."""
        rungs, configurations = self.rungs(state), state.configurations
        for each in configurations:
            if behind := [trial for trial in each.trials if trial.rests and trial.until < each.until]:
                return [Go(behind[0].number, each.until)]
        for rung, following in reversed(list(zip(rungs, rungs[1:], strict=False))):
            if promoted := self._promoted(configurations, rung):
                return _go(promoted, following)
        if state.unproposed:
            return [New(rungs[0])]
        return [] if state.in_flight else self._finishing(configurations, rungs)

    def _promoted(self, configurations: list[Configuration], rung: int) -> Configuration | None:
        """The best configuration that may go on from a rung."""
        gone = [each for each in configurations if each.until > rung]
        there = gone + [each for each in configurations if each.until == rung and each.reached(rung)]
        places = len(there) // self.reduction
        if len(gone) >= places:
            return None
        best = sorted(there, key=lambda each: (-each.score_at(rung), each.number))[:places]
        return next((each for each in best if each.until == rung and not each.over and not each.failed), None)

    def _finishing(self, configurations: list[Configuration], rungs: list[int]) -> Sequence[Decision]:
        """Where no configuration got to the end, the best one on the highest rung goes there."""
        usable = [each for each in configurations if not each.failed]
        if not usable or any(each.over for each in usable) or max(each.until for each in usable) == rungs[-1]:
            return []
        highest = max(each.until for each in usable)
        best = max((each for each in usable if each.until == highest), key=lambda each: each.score_at(highest))
        return _go(best, rungs[rungs.index(highest) + 1])


@dataclass(frozen=True)
class MedianStopping:
    """Stops a configuration at a step where its best score so far is below the median of the means that the others had
    up to there. Golovin et al. 2017, "Google Vizier", section 3.2.2.

    every: steps between two comparisons; None: every evaluation. grace: steps before the first one; None: `every`.
    others: how many others have to have come that far. Results depend on the order in which trials go on, unless one
    runs at a time.
    """

    grows: ClassVar[tuple[str, ...]] = ("configurations", "steps")

    every: int | None = None
    grace: int | None = None
    others: int = 3

    def __post_init__(self) -> None:
        checks.declared(self)
        checks.counts(self, "others", *(name for name in ("every", "grace") if getattr(self, name) is not None))

    def check(self, state: StudyState) -> None:
        """Raise ConfigError where there are too few configurations to compare."""
        if state.plan.configurations <= self.others:
            raise ConfigError(
                f"MedianStopping compares a configuration with {self.others} others; the study has "
                f"{state.plan.configurations}. Try more, or give MedianStopping(others=...)."
            )

    def decide(self, state: StudyState) -> Sequence[Decision]:
        """See `Scheduler`."""
        plan, configurations = state.plan, state.configurations
        every = plan.rounded(self.every or 1)
        for each in configurations:
            resting = [trial for trial in each.trials if trial.rests]
            if behind := [trial for trial in resting if trial.until < each.until]:
                return [Go(behind[0].number, each.until)]
            if not resting or not each.reached(each.until):
                continue
            if each.until >= (self.grace or every) and (reason := self._behind(each, configurations)):
                return [Stop(trial.number, reason) for trial in resting]
            return _go(each, min(plan.steps, each.until + every))
        return [New(every)] if state.unproposed else []

    def _behind(self, each: Configuration, configurations: list[Configuration]) -> str:
        """Why a configuration stops; '' where it goes on."""
        step = each.until
        there = [other for other in configurations if other.until >= step or other.finished]
        others = [_means(other, step) for other in there if other is not each]
        running = [statistics.fmean(means) for means in others if means]
        if each.failed:
            return "another seed of it failed"
        if len(running) < self.others:
            return ""
        best, median = max(_means(each, step), default=0.0), statistics.median(running)
        return f"best score {best:.4g} below the median {median:.4g} at step {step:,}" if best < median else ""


def _means(each: Configuration, step: int) -> list[float]:
    """The means over the seeds of the evaluations up to a step; nothing where it failed."""
    if each.failed:
        return []
    series = [[score.mean for score in trial.scores if score.step <= step] for trial in each.trials]
    return [statistics.fmean(column) for column in zip(*series, strict=False)]


def _go(each: Configuration, until: int) -> list[Decision]:
    """Take the trials of a configuration that rest up to a step."""
    return [Go(trial.number, until) for trial in each.trials if trial.rests]
