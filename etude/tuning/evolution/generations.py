"""The scheduler of evolution: after every generation a tournament, and mutated copies in the place of the losers."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from etude.base import checks
from etude.base.errors import ConfigError
from etude.base.seeding import generator
from etude.tuning.evolution.mutations import Mutations
from etude.tuning.evolution.structure import NONE, Mutation
from etude.tuning.plan import Copy, Decision, Go, New, Stop, StudyState
from etude.tuning.trial import Genome, Trial, lineage

FAILED = -math.inf  # the fitness of a member that diverged or failed


def fitness_of(history: Sequence[float], over_last: int) -> float:
    """The mean of the last fitness values; minus infinity where one of them is NaN, or there is none."""
    last = list(history)[-over_last:]
    return FAILED if not last or any(math.isnan(value) for value in last) else statistics.fmean(last)


@dataclass(frozen=True)
class Tournament:
    """Tournament selection: each place of the next generation goes to the best of `size` members that are drawn with
    replacement. Goldberg & Deb 1991, "A comparative analysis of selection schemes used in genetic algorithms".
    """

    size: int = 2
    elitism: bool = True  # the best member goes on unchanged
    over_last: int = 1  # fitness is the mean of so many last evaluations

    def __post_init__(self) -> None:
        checks.declared(self)
        checks.counts(self, "size", "over_last")

    def fitness(self, histories: Sequence[Sequence[float]]) -> list[float]:
        """The fitness of each member, from all of its fitness values so far."""
        return [fitness_of(history, self.over_last) for history in histories]

    def best(self, histories: Sequence[Sequence[float]]) -> int:
        """The best member; of equally good ones the first."""
        return int(np.argmax(self.fitness(histories)))

    def __call__(self, histories: Sequence[Sequence[float]], rng: np.random.Generator) -> list[int]:
        """The parent of each member of the next generation, as many as there are. With elitism the first one is the
        best member, which is to go on unchanged. Of equally good ones the first that was drawn wins; a member without
        fitness wins only where no other was drawn."""
        fitness, n = self.fitness(histories), len(histories)
        chosen = [self.best(histories)] if self.elitism else []
        while len(chosen) < n:
            drawn = rng.integers(n, size=self.size)
            chosen.append(int(drawn[np.argmax([fitness[i] for i in drawn])]))
        return chosen


@dataclass(frozen=True)
class Generations:
    """Takes all members of a population `every` steps on, compares them, and replaces members by mutated copies.

    The best member goes on as it is (with elitism), and so does a parent of which a copy without mutation is due, if
    its place is free. Every other place goes to a mutated copy with a seed of its own. Results do not depend on how
    many trials run at a time: a generation is compared when all of it is there, and what it draws is derived from the
    study's seed and its number.
    """

    grows: ClassVar[tuple[str, ...]] = ("steps",)  # members are those of the beginning

    every: int  # environment steps of each member in a generation
    mutations: Mutations = Mutations()
    tournament: Tournament = Tournament()

    def __post_init__(self) -> None:
        checks.declared(self)
        checks.counts(self, "every")

    def check(self, state: StudyState) -> None:
        """Raise ConfigError where the mutations do not suit the config, or a generation ends between evaluations."""
        if state.plan.evaluate_every != self.every or len(state.plan.seeds) < 2:
            raise ConfigError(
                f"Generations: every = {self.every:,}, evaluate_every = {state.plan.evaluate_every:,}, "
                f"{len(state.plan.seeds)} seeds; expected one evaluation in each generation, and two members or more, "
                "one for each seed."
            )
        if state.plan.shared_replay and "buffer_size" in self.mutations.select:
            raise ConfigError(
                "Mutations: select names buffer_size, which members with shared_replay = True have alike."
            )
        self.mutations.check(state.space.base)

    def decide(self, state: StudyState) -> Sequence[Decision]:
        """See `Scheduler`."""
        if state.unproposed:
            return [New(self.every)]
        members = population(state.trials)
        if state.in_flight:
            return []
        if any(trial.status == "finished" for trial in members):
            reached = next(trial.number for trial in members if trial.status == "finished")
            return [Stop(trial.number, f"trial {reached} is finished") for trial in members if trial.rests]
        if all(trial.status == "failed" for trial in members):
            return []
        return self._next(state, members)

    def _next(self, state: StudyState, members: list[Trial]) -> list[Decision]:
        """The next generation. Members that failed have no children."""
        done = max(trial.until for trial in members)
        rng = generator(state.plan.seed, "evolution", done // self.every)
        histories = [fitness_values(state.trials, trial, self.every) for trial in members]
        best = self.tournament.best(histories)
        fitness = self.tournament.fitness(histories)
        parents = [i if fitness[i] > FAILED else best for i in self.tournament(histories, rng)]
        until, going = min(done + self.every, state.plan.steps), dict[int, Decision]()
        born: list[tuple[Trial, Genome, Mutation]] = []
        for place, i in enumerate(parents):
            elite = place == 0 and self.tournament.elitism
            genome, mutation = (members[i].genome, Mutation()) if elite else self._child(members[i].genome, rng)
            if mutation.kind == NONE and i not in going:
                going[i] = Go(members[i].number, until)
            else:
                born.append((members[i], genome, mutation))
        replaced = [trial for i, trial in enumerate(members) if i not in going]
        copies = [
            Copy(parent.number, genome, old.number, until, dataclasses.asdict(mutation))
            for old, (parent, genome, mutation) in zip(replaced, born, strict=True)
        ]
        return [*copies, *going.values()]  # copies begin where their parents are now

    def _child(self, parent: Genome, rng: np.random.Generator) -> tuple[Genome, Mutation]:
        config, mutation = self.mutations(parent.config, rng)
        return dataclasses.replace(parent, config=config, seed=int(rng.integers(2**31))), mutation


def population(trials: Sequence[Trial]) -> list[Trial]:
    """The members of the present generation."""
    return [trial for trial in trials if trial.status != "stopped"]


def fitness_values(trials: Sequence[Trial], member: Trial, every: int) -> list[float]:
    """The fitness of a member and of its ancestors, generation by generation; nothing where it failed."""
    if member.status == "failed":
        return []
    line = lineage(trials, member.number)
    ends = [each.first for each in line[1:]] + [member.until]
    counts = [(end - each.first) // every for each, end in zip(line, ends, strict=True)]
    return [score.mean for each, count in zip(line, counts, strict=True) for score in each.scores[:count]]
