"""Population based training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from etude.base import checks
from etude.base.errors import ConfigError
from etude.base.seeding import generator
from etude.checkpoint.config_json import to_json
from etude.tuning.plan import Copy, Decision, Go, New, StudyState
from etude.tuning.space import Choices, Space, with_values
from etude.tuning.trial import Genome, Trial

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
        if self.every is not None:
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
