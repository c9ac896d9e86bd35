"""An agent in training: its pool, its engine and its environments, kept from one call of `train` to the next."""

from __future__ import annotations

import copy
import functools
from typing import Any

from etude.base.checks import Stored
from etude.base.cores import Busy
from etude.protocols import Explorer, Rollout
from etude.rollout import InProcess, Pool, PoolOptions, acting_in_process
from etude.rollout.state import check_rollout
from etude.solo.learner import EpisodeLearner
from etude.solo.options import Options
from etude.training.rollout_lifecycle import RolloutLifecycle


class Session:
    """The parts of one agent's training.

    make_environments: from column numbers to environments. explorer: how they are explored.
    """

    def __init__(self, make_environments: Any, explorer: Explorer, learner: EpisodeLearner, seed: int):
        self.learner = learner
        self._make_environments, self._explorer, self._seed = make_environments, explorer, seed
        self._collection: RolloutLifecycle | None = None
        self._rollout_state: dict[str, Any] | None = None

    def open(self, options: Options) -> RolloutLifecycle:
        """What collects with these options, from where the last one was left."""
        spaces, count = self.learner.engine.spaces, self.learner.count
        make_rollout = functools.partial(self._rollout, options)
        self.learner.engine.share(self._busy(options))
        self._collection = RolloutLifecycle(lambda total: self._explorer, make_rollout, spaces, count, self._seed)
        self._collection.restore(self._rollout_state)
        return self._collection

    def give_up(self) -> None:
        """End what collects at once, without waiting for workers: their open episodes are lost."""
        if self._collection is not None:
            self._collection.give_up()

    def close(self) -> None:
        """End what collects, and remember where its environments are."""
        if self._collection is not None:
            try:
                self._collection.close()
            finally:
                self._rollout_state, self._collection = self._collection.state(), None

    def overlaps(self, options: Options) -> bool:
        """Whether workers collect while this process learns: they must be able to act, and may act on old weights."""
        can = options.workers > 0 and self.learner.engine.exportable
        return can and options.parallel_store_and_training and self.learner.regime.may_overlap

    def _busy(self, options: Options) -> Busy:
        """Workers step right after this process acts, where it acts; or act by themselves while it learns."""
        acting = 0 if self.learner.engine.exportable else options.workers
        return Busy(acting, options.workers if self.overlaps(options) else 0)

    def _rollout(self, options: Options, explorer: Explorer) -> Rollout:
        engine, count = self.learner.engine, self.learner.count
        make, seed = self._make_environments, self._seed
        actor = engine.actor()
        if not options.workers:
            return InProcess(make(range(count)), engine if actor is None else actor, explorer, seed)
        pool = PoolOptions(overlap=self.overlaps(options))
        if actor is None:
            return acting_in_process(make, engine, explorer, seed, count, options.workers, pool)
        return Pool(make, functools.partial(copy.deepcopy, actor), explorer, seed, count, options.workers, pool)

    def state(self, replay: bool) -> dict[str, Any]:
        """Arrays and plain data, by component, from which `restore` goes on. replay: whether the pool is kept."""
        rollout = self._rollout_state if self._collection is None else self._collection.state()
        return {**self.learner.state(replay), "rollout": rollout}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`; CheckpointError, and nothing changed, where it does not fit."""
        held = Stored(state, "training").fields(("engine", "progress", "rollout"), ("replay",))
        self.learner.check_state(held)
        if state["rollout"] is not None:
            check_rollout(held["rollout"], self.learner.count, self.learner.engine.spaces, {})
        self.learner.restore(state)
        self._rollout_state = state["rollout"]
