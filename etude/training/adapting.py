"""The rules of a config (`adapt`) at the end of each learning phase."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from etude.adapt.adaptation import Adaptation, LearningPhase, UnusableSignal
from etude.base import trees
from etude.base.data import Batch, Update
from etude.base.errors import ConfigError
from etude.base.events import Adjusted
from etude.config import RolloutConfig
from etude.protocols import Engine, Replay, Weights
from etude.replay import Buffer, Prioritised
from etude.training.schedule import UpdateSchedule


class Adapting:
    """What a learner asks for the present values of hyperparameters, and tells how it learned.

    schedule_for: the schedule of updates that a config describes. sizes: see `Adaptation`.
    """

    def __init__(
        self,
        config: Any,
        engine: Engine,
        schedule_for: Callable[[Any], UpdateSchedule],
        replay: Replay,
        sizes: tuple[str, ...] = (),
    ):
        self.rules: Adaptation = Adaptation(config.adapt, config, engine.layout.hyper, sizes)
        self._config, self._engine = config, engine
        self._schedule_for, self._replay = schedule_for, replay

    def floats(self, given: Mapping[str, float]) -> dict[str, float]:
        """The present values of floats that schedules have at `given`."""
        return self.rules.floats(given)

    def trim(self) -> None:
        """Forget the rows beyond the present `buffer_size`, where a rule changes it."""
        if (keep := self.rules.counts().get("buffer_size")) is not None:
            self._replay.trim(keep)

    def _priorities(self) -> np.ndarray | None:
        """Those of all stored rows; None where rows are drawn without."""
        if isinstance(self._replay, Buffer) and isinstance(self._replay.selector, Prioritised):
            return self._replay.selector.all_priorities(self._replay.ring)
        return None

    def update_schedule(self) -> UpdateSchedule:
        """With the present whole numbers. ConfigError where the config refuses them."""
        return self._schedule_for(dataclasses.replace(self._config, **self.rules.counts()))

    def observe(
        self, step: int, batches: Batch, update: Update, metrics: Mapping[str, float], given: Mapping[str, float]
    ) -> tuple[Adjusted, ...]:
        """The changes after a learning phase. batches: the last [k, n, ...] that were learned from, and their update.
        given: the floats, as schedules have them."""
        errors = batches.extras.get("advantage") if update.td_error is None else update.td_error
        phase = LearningPhase(
            step, metrics, self._priorities, errors, update.ratio,
            lambda parts: self._gradients(batches, parts, self.floats(given)),
        )  # fmt: skip
        return self.rules.observe(phase, given)

    def _gradients(self, batches: Batch, parts: int, hyper: dict[str, float]) -> tuple[list[Weights], int]:
        """The gradients of parts of the first of the batches, and how large a part is, in the units of the
        config's field."""
        size = batches.weight.shape[1] // parts
        if not size:
            raise UnusableSignal(f"a batch of {batches.weight.shape[1]} has no {parts} parts")
        each = (_part(batches, slice(i * size, (i + 1) * size)) for i in range(parts))
        found = [self._engine.gradients(part, hyper)[0] for part in each]
        # `minibatch_size` counts steps, also where examples are sequences or whole rollouts.
        return found, size * (self._config.example_length if isinstance(self._config, RolloutConfig) else 1)


def refuse_rules(config: Any) -> None:
    """Raise ConfigError where a config has rules, for kinds of learning that cannot follow them."""
    if config.adapt:
        raise ConfigError(
            f"{type(config).__name__}: adapt has {len(config.adapt)} rules, and the gradients of this algorithm do not "
            "come from losses on batches. Leave adapt out, or use an algorithm whose learner computes the losses."
        )


def _part(batches: Batch, rows: slice) -> Batch:
    """These rows of the first of stacked batches."""
    values: dict[str, Any] = {field.name: getattr(batches, field.name) for field in dataclasses.fields(Batch)}
    for name, value in values.items():
        values[name] = None if value is None else trees.rows(value, (0, rows))
    return Batch(**values)
