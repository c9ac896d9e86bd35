"""A learning-rate ramp on a run of a built-in algorithm."""

from __future__ import annotations

import copy
import dataclasses
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from etude.base import trees
from etude.base.data import Batch, Update
from etude.base.errors import ConfigError, NumericalError
from etude.base.events import Collected
from etude.engines.stacked import FromReturns
from etude.engines.updates import FromRollouts, GradientSource
from etude.run import Run
from etude.training.learner import Learner, add_to_means
from etude.tuning.finding.ramp import RampEnded, RampRecord

RATE = "learning_rate"


class RampedGradients:
    """Takes the gradient steps of another source one by one, each with the learning rate of a ramp. See
    `GradientSource`."""

    def __init__(self, source: GradientSource, record: RampRecord):
        self._source, self._record = source, record

    def learn(self, batches: Batch, hyper: dict[str, float], gradient_steps: int) -> Update:
        """RampEnded after the last update of the ramp."""
        losses: dict[str, float] = {}
        metrics: dict[str, float] = {}
        found, total = [], batches.weight.shape[0]
        for i in range(total):
            rated = {**hyper, RATE: self._record.rate}
            update = self._source.learn(_one(batches, i), rated, gradient_steps + i)
            self._record.add_loss(statistics.fmean(update.losses.values()))
            add_to_means(losses, update.losses, 1, total)
            add_to_means(metrics, update.metrics, 1, total)
            found.append(update)
        errors, ratios = (_joined([getattr(one, name) for one in found]) for name in ("td_error", "ratio"))
        return Update(losses, metrics, errors, total, ratios)


def follow_ramp_with_run(run: Run, record: RampRecord, episodes: int | None, steps: int) -> None:
    """Train with the rates of a ramp, until it ends, so many episodes have ended, or so many environment steps were
    taken; and undo it. Fills the record; what an environment raises is raised here."""
    learner = _rated_learner(run)
    with temporary_run(run):
        source = learner.gradients
        learner.gradients = RampedGradients(source, record)
        played, before = 0, 0
        try:
            for event in run.steps(steps):
                if not isinstance(event, Collected):
                    continue
                if event.episodes:
                    record.add_reward(statistics.fmean(end.total for end in event.episodes), before)
                played, before = played + len(event.episodes), len(record.losses)
                if episodes is not None and played >= episodes:
                    break
        except RampEnded:
            pass
        except NumericalError as error:
            record.problem = str(error)
        finally:
            learner.gradients = source


@contextmanager
def temporary_run(run: Run) -> Iterator[None]:
    """Within this context the run may be trained; afterwards its whole state is what it was, bit for bit. No file is
    written."""
    state, directory = copy.deepcopy(run.state()), run.directory
    run.directory = None
    try:
        yield
    finally:
        run.directory = directory
        run.restore(state)


def _rated_learner(run: Run) -> Learner:
    """The learner whose rate can follow a ramp; ConfigError where there is none."""
    learner: Any = run.learner
    if not isinstance(learner, Learner) or isinstance(learner.gradients, FromRollouts | FromReturns):
        raise ConfigError(
            f"LRFinder needs updates by the losses of one agent, and {run.algorithm} has none here: its policies learn "
            "separately, or its gradients do not come from losses on batches. Tune its learning rate with a study: "
            "etude.Study."
        )
    if RATE not in learner.engine.layout.hyper:
        raise ConfigError(
            f"The config of {run.algorithm} has no learning_rate that is a number. Add the field learning_rate: float "
            "to it."
        )
    return learner


def _one(batches: Batch, i: int) -> Batch:
    """The i-th of stacked batches, as a stack of one."""
    values: dict[str, Any] = {field.name: getattr(batches, field.name) for field in dataclasses.fields(Batch)}
    for name, value in values.items():
        values[name] = None if value is None else trees.rows(value, slice(i, i + 1))
    return Batch(**values)


def _joined(parts: list[np.ndarray | None]) -> np.ndarray | None:
    present = [part for part in parts if part is not None]
    return np.concatenate(present) if present else None


def steps_of_run(train_loss: Any, pool_network: bool, strategy: Any, options: dict[str, Any], default: int) -> int:
    """The environment steps that a finder of runs was given; ConfigError for arguments that are for agents of one's
    own."""
    given = {"train_loss": train_loss, "strategy": strategy, "pool_network": None if pool_network else False, **options}
    refused = [name for name, value in given.items() if value is not None and name != "steps"]
    if refused:
        raise ConfigError(
            f"find of a run takes no {', '.join(refused)}: that is for agents of one's own. A run has its own workers "
            "and devices; give steps, or episodes."
        )
    steps = options.get("steps", default)
    if type(steps) is not int or steps < 1:
        raise ConfigError(f"steps = {steps!r}; expected a whole number of at least 1: environment steps.")
    return steps
