"""The learning half of an agent of one's own: episodes into the pool, then minibatches out of it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from etude.base.checks import Stored
from etude.base.data import CollectRequest, Steps
from etude.base.events import Learned
from etude.base.seeding import check_generator, generator_state, restore_generator
from etude.protocols import Weights
from etude.replay import Buffer
from etude.solo.callbacks import Callbacks
from etude.solo.options import Options
from etude.solo.regimes import Regime
from etude.solo.settings import Settings
from etude.training.progress import Progress, check_progress

PORTION = 64  # minibatches in one call, at most


class EpisodeLearner:
    """Plays episodes, then learns: `num_updates` minibatches, or as many as make one pass over the pool.

    regime: what is drawn and what is forgotten. count: environments. hyper: what views read (gamma). rng: picks
        columns, where that is asked for.
    """

    def __init__(
        self,
        settings: Settings,
        regime: Regime,
        engine: Any,
        buffer: Buffer,
        count: int,
        hyper: Callable[[], dict[str, float]],
        rng: np.random.Generator,
    ):
        self.settings, self.regime, self.engine, self.buffer, self.count = settings, regime, engine, buffer, count
        self._hyper, self._rng = hyper, rng
        self.progress = Progress()
        self.follow(Options(), Callbacks([], None))
        self.loss: float | None = None  # the mean over the last learning phase
        self.batches = 0  # minibatches learned since the agent was made
        self._targets = 0  # calls of update_param so far
        self._rounds = 0
        self._received = np.zeros(count, np.int64)  # rows that each column of the ring was ever given

    def follow(self, options: Options, callbacks: Callbacks) -> None:
        """Train with these options from now on."""
        self.callbacks, self.options, self.trimming = callbacks, options, self.regime.trimming(options)

    def collect_request(self, left: int, after: int = 0) -> CollectRequest:
        """Whole episodes, one of every environment."""
        return CollectRequest(None)

    def take(self, steps: Steps) -> None:
        """Store collected steps and count them."""
        self.progress.step += len(steps)
        self.progress.episodes += len(steps.episodes)
        self.buffer.add(spread := self._spread(steps))
        self._received[spread.columns] += spread.shape[0]
        self.trimming.after_storing(self.buffer, len(steps), self.progress.step)

    def _spread(self, steps: Steps) -> Steps:
        """A whole episode may go into any column of the ring: into the one that was given least, or a random one, so
        that processes with short episodes and those with long ones share the pool, and all overwrite what is oldest."""
        ended = (steps.terminated | steps.truncated)[-1]
        if steps.shape[1] != 1 or not ended[0] or self.count == 1:
            return steps
        column = self._rng.integers(self.count) if self.options.random else int(np.argmin(self._received))
        return dataclasses.replace(steps, columns=np.array([column]), restarted=np.zeros(1, bool))

    def learn_if_due(self) -> Learned | None:
        """A learning phase, after every `num_store` collections; nothing is learned before the pool holds one
        batch."""
        began = time.perf_counter()
        self._rounds += 1
        if self._rounds % self.options.num_store:
            return None
        size = self.settings.batch
        wanted = self.settings.num_updates or len(self.buffer) // size
        minibatches = wanted if len(self.buffer) >= size else 0
        losses = self._learn(minibatches)
        if not minibatches:
            return None
        self.loss = losses["loss"]
        self.progress.gradient_steps += minibatches
        return Learned(self.progress.step, self.progress.gradient_steps, losses, {}, time.perf_counter() - began)

    def _learn(self, minibatches: int) -> dict[str, float]:
        """Learn so many minibatches and call `update_param` as often as is due, evenly spread over them."""
        due = self._due_targets(minibatches)
        self.buffer.view.adjust(self._hyper())
        means: dict[str, float] = {}
        done = 0
        for call in range(1, due + 1):
            done = self._learn_until(done, minibatches * call // due, minibatches, means)
            self.engine.update_param()
            self.regime.updated(self.buffer, self.options)
        self._learn_until(done, minibatches, minibatches, means)
        return means

    def _due_targets(self, minibatches: int) -> int:
        """How many calls of `update_param` belong to this phase."""
        settings = self.settings
        if settings.update_steps is not None:
            due = self.progress.step // settings.update_steps - self._targets
        elif settings.update_batches is not None:
            due = (self.batches + minibatches) // settings.update_batches - self._targets
        else:
            due = 0  # the engine calls it after every minibatch
        self._targets += due
        return self.regime.calls(due)

    def _learn_until(self, done: int, end: int, total: int, means: dict[str, float]) -> int:
        """Learn minibatches from number `done` up to `end` of `total`; returns `end`."""
        watched = self.callbacks.want_batches
        while done < end:
            k = 1 if watched else min(PORTION, end - done)
            if watched:
                self.callbacks.call("on_batch_begin", done)
            batches = self.buffer.sample(k, self.settings.batch)
            update = self.engine.learn(batches, {})
            self.regime.told(self.buffer, batches, update)
            for name, value in update.losses.items():
                means[name] = means.get(name, 0.0) + value * k / total
            means["loss"] = float(np.mean([means[name] for name in update.losses]))
            if watched:
                self.callbacks.call("on_batch_end", done, loss=float(np.mean(list(update.losses.values()))))
            done += k
            self.batches += k
        return end

    def follow_moments(self, steps: Steps) -> bool:
        """There is no normaliser."""
        return False

    def exploring_weights(self) -> Weights:
        """What workers need to act; nothing where this process acts for them."""
        actor = self.engine.actor()
        return {} if actor is None else self.engine.weights(actor.names)

    def trained_weights(self) -> Weights:
        """What `param` holds, by name."""
        return self.engine.parameters()

    def state(self, replay: bool) -> dict[str, Any]:
        """Arrays and plain data from which `restore` goes on. replay: whether the pool is part of it."""
        counted = {"batches": self.batches, "targets": self._targets, "rounds": self._rounds, "loss": self.loss}
        counted |= {"received": self._received.tolist(), "generator": generator_state(self._rng)}
        kept = {"replay": self.buffer.state()} if replay else {}
        return {"engine": self.engine.state(), "progress": {**dataclasses.asdict(self.progress), **counted}, **kept}

    def check_state(self, held: dict[str, Stored]) -> None:
        """Raise CheckpointError where `restore` cannot continue from these components; nothing is changed."""
        self.engine.check_state(held["engine"])
        counted = ("batches", "targets", "rounds", "loss", "received", "generator")
        progress = check_progress(held["progress"], counted)
        for name in ("batches", "targets", "rounds"):
            progress[name].whole()
        if progress["loss"].value is not None:
            progress["loss"].number()
        for number in progress["received"].items(self.count):
            number.whole()
        check_generator(progress["generator"])
        if "replay" in held:
            self.buffer.check_state(held["replay"])

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`; without its replay, with an empty pool."""
        self.engine.restore(state["engine"])
        counted = dict(state["progress"])
        self.batches, self._targets = counted.pop("batches"), counted.pop("targets")
        self._rounds, self.loss = counted.pop("rounds"), counted.pop("loss")
        self._received[:] = counted.pop("received")
        restore_generator(self._rng, counted.pop("generator"))
        self.progress = Progress(**counted)
        if "replay" in state:
            self.buffer.restore(state["replay"])
