"""Schedulers decide which trials go on, stop early, or are replaced by copies; searches, which configurations are
tried."""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from etude.base import checks
from etude.base.errors import ConfigError, needing
from etude.base.seeding import generator
from etude.checkpoint.config_json import to_json
from etude.tuning.space import Choices, LogInterval, Space, with_values
from etude.tuning.trial import Configuration, Copy, Decision, Genome, Go, New, Stop, StudyState, Trial


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
        checks.whole_number("ASHA: reduction", self.reduction, 2)
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
        checks.counts(self, "others", "every", "grace")

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


OF_STATE = ("network", "optimizer", "buffer_size", "rollout_length", "sequence_length", "adapt")


@dataclass(frozen=True)
class PBT:
    """Every configuration is a member of a population. After every `every` steps, the worst share of it is replaced by
    copies of the best, with changed hyperparameters. Jaderberg et al. 2017, arXiv:1711.09846.

    A copy goes on from the checkpoint of its parent: with its weights, optimizer, replay and normalisers, on seeds of
    its own. All members are compared at the same step, so that results do not depend on how many run at a time.

    every: steps between two comparisons, rounded up to evaluations; None: a tenth of a trial.
    share: of the population that is replaced, and that is copied.
    factors: a number is multiplied by one of these, within its interval; a value of a list gives way to a neighbour.
    resample: how often a value is drawn anew instead.
    """

    grows: ClassVar[tuple[str, ...]] = ("steps",)  # members are those of the beginning

    every: int | None = None
    share: float = 0.25
    factors: tuple[float, ...] = (0.8, 1.2)
    resample: float = 0.25

    def __post_init__(self) -> None:
        checks.declared(self)
        checks.fractions(self, "resample")
        object.__setattr__(self, "factors", tuple(self.factors))
        checks.counts(self, "every")
        if not 0 < self.share <= 0.5:
            raise ConfigError(f"PBT: share = {self.share}; expected a number above 0, and 0.5 at most.")
        if not self.factors or not all(factor > 0 for factor in self.factors):
            raise ConfigError(f"PBT: factors = {self.factors}; expected numbers above 0, such as (0.8, 1.2).")

    def check(self, state: StudyState) -> None:
        """Raise ConfigError for several seeds, too few configurations, and fields that a copy cannot change."""
        plan = state.plan
        if len(plan.seeds) > 1 or plan.configurations < 2:
            raise ConfigError(
                f"PBT: {plan.configurations} configurations on {len(plan.seeds)} seeds; expected two configurations or "
                "more, each of which is a member with one seed: trials=8, seeds=1."
            )
        if fixed := [name for name in state.space.domains if name in OF_STATE or name.startswith("network.")]:
            raise ConfigError(
                f"PBT cannot change {', '.join(fixed)}: a copy goes on with the networks, the optimizer and the replay "
                "of its parent. Search it by another scheduler, or evolve networks: etude.evolve."
            )
        if self._every(state) >= plan.steps:
            raise ConfigError(f"PBT: every = {self.every:,} of {plan.steps:,} steps compares nothing. Give less.")

    def _every(self, state: StudyState) -> int:
        return state.plan.rounded(self.every or state.plan.steps / 10)

    def decide(self, state: StudyState) -> Sequence[Decision]:
        """See `Scheduler`."""
        every, plan = self._every(state), state.plan
        if state.unproposed:
            return [New(every)]
        members = [trial for trial in state.trials if trial.status != "stopped"]
        resting = [trial for trial in members if trial.rests]
        if state.in_flight or not resting:
            return []
        done = max(trial.until for trial in resting)
        until = min(plan.steps, done + every)
        ranked = sorted(members, key=lambda trial: -trial.score_at(done))
        count = max(1, int(len(members) * self.share))
        best = [trial for trial in ranked[:count] if trial.checkpoint and trial.status != "failed"]
        worst = [trial for trial in ranked[-count:] if trial.rests or trial.status == "failed"]
        worst += [trial for trial in ranked[:-count] if trial.status == "failed"]
        copies = [self._copy(state, trial, best, done, until) for trial in worst if best]
        replaced = {copy.replaces for copy in copies}
        return [*(Go(trial.number, until) for trial in resting if trial.number not in replaced), *copies]

    def _copy(self, state: StudyState, old: Trial, best: list[Trial], done: int, until: int) -> Copy:
        rng = generator(state.plan.seed, "population based training", done, old.number)
        parent = best[int(rng.integers(len(best)))]
        before = state.space.values(parent.genome.config)
        after = {name: self._changed(state.space, name, value, rng) for name, value in before.items()}
        try:
            config = with_values(parent.genome.config, after)
        except ConfigError:  # values that do not go together
            config, after = parent.genome.config, before
        genome = Genome(parent.genome.algorithm, config, int(rng.integers(2**31)))
        changes = {name: [to_json(before[name]), to_json(after[name])] for name in before}
        return Copy(parent.number, genome, old.number, until, changes)

    def _changed(self, space: Space, name: str, value: Any, rng: np.random.Generator) -> Any:
        if rng.random() < self.resample:
            return space.draw_one(name, rng)
        domain, choice = space.domains[name], int(rng.integers(len(self.factors)))
        if not isinstance(domain, Choices):
            return space.fitted(name, value * self.factors[choice])
        place = domain.values.index(value) + int(rng.choice([-1, 1]))
        return domain.values[min(max(place, 0), len(domain.values) - 1)]


@dataclass(frozen=True)
class GridSearch:
    """Every combination of the values in lists, in order; fields that have a distribution are drawn for each."""

    def propose(self, number: int, state: StudyState) -> dict[str, Any]:
        """See `Search`."""
        points = state.space.grid()
        drawn = state.space.draw(generator(state.plan.seed, "random search", number))
        return {**points[number % len(points)], **drawn}


@dataclass(frozen=True)
class RandomSearch:
    """Independent draws; of a list, one of its values. Bergstra & Bengio 2012, JMLR 13."""

    def propose(self, number: int, state: StudyState) -> dict[str, Any]:
        """See `Search`."""
        rng = generator(state.plan.seed, "random search", number)
        return {name: state.space.draw_one(name, rng) for name in state.space.domains}


SAMPLERS = {"tpe": "TPESampler", "gp": "GPSampler", "random": "RandomSampler"}


@dataclass(frozen=True)
class OptunaSearch:
    """A sampler of Optuna proposes configurations by the scores of those before: "tpe" (Bergstra et al. 2011), "gp"
    (Gaussian processes) or "random". Needs the extra `optuna`.

    options: keyword arguments of the sampler. The sampler is told the score of every configuration that waits or is
    over, and is made anew for each proposal, so that a study goes on after it was killed. Proposals depend on the order
    in which trials end, unless one runs at a time.
    """

    sampler: str = "tpe"
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.one_of(self, "sampler", tuple(SAMPLERS))
        to_json(dict(self.options))
        optuna = _optuna()
        try:
            getattr(optuna.samplers, SAMPLERS[self.sampler])(seed=0, **self.options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"OptunaSearch: options = {dict(self.options)!r}: {error}.") from error

    def propose(self, number: int, state: StudyState) -> dict[str, Any]:
        """See `Search`."""
        optuna = _optuna()
        seed = int(generator(state.plan.seed, "optuna", number).integers(2**31))
        sampler = getattr(optuna.samplers, SAMPLERS[self.sampler])(seed=seed, **self.options)
        domains = state.space.domains
        distributions = {name: _distribution(optuna, state, name) for name in domains}
        choices = {name: own.values for name, own in domains.items() if isinstance(own, Choices)}  # told by index
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            study = optuna.create_study(direction="maximize", sampler=sampler)
            for each in state.configurations:
                if all(trial.over or trial.rests for trial in each.trials):
                    values = state.space.values(each.trials[0].genome.config)
                    params = values | {name: own.index(values[name]) for name, own in choices.items()}
                    outcome = {"state": optuna.trial.TrialState.FAIL} if each.failed else {"value": each.score()}
                    told = optuna.trial.create_trial(params=params, distributions=distributions, **outcome)
                    study.add_trial(told)
            asked = study.ask(distributions).params
        finally:
            optuna.logging.set_verbosity(verbosity)
        return {name: choices[name][value] if name in choices else value for name, value in asked.items()}


def _distribution(optuna: Any, state: StudyState, name: str) -> Any:
    domain = state.space.domains[name]
    if isinstance(domain, Choices):
        return optuna.distributions.CategoricalDistribution(tuple(range(len(domain.values))))
    whole = isinstance(state.space.number(name, 0.0), int)
    kind = optuna.distributions.IntDistribution if whole else optuna.distributions.FloatDistribution
    ends = (state.space.number(name, 0.0), state.space.number(name, 1.0))
    return kind(*ends, log=isinstance(domain, LogInterval))


def _optuna() -> Any:
    with needing("OptunaSearch", "optuna"):
        return importlib.import_module("optuna")
