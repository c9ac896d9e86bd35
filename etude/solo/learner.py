"""The learner of an agent of one's own: stores episodes in the replay, then learns minibatches from it, by a regime
that says which old transitions it samples and drops."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np

from etude.base import trees
from etude.base.checks import Stored
from etude.base.data import Batch, CollectRequest, PolicyVersion, Steps, Update
from etude.base.errors import ConfigError
from etude.base.events import Adjusted, Learned
from etude.base.seeding import check_generator, generator_state, restore_generator
from etude.explore import EpsGreedyQPolicy, MaxBoltzmannQPolicy
from etude.networks.dense import DenseActor
from etude.protocols import Weights
from etude.replay import Buffer, Passes, Prioritised, Uniform
from etude.replay.buffer import Selector
from etude.rollout import FollowingActor
from etude.solo.callbacks import Callbacks
from etude.solo.settings import Options, Settings, Trimming, cut
from etude.training.learner import add_to_means
from etude.training.schedule import RunProgress, check_progress

EPSILON_GREEDY = EpsGreedyQPolicy | MaxBoltzmannQPolicy


def epsilons(policies: Sequence[Any]) -> dict[str, float]:
    """The present `eps` of the policies that have it, by position."""
    return {str(i): policy.eps for i, policy in enumerate(policies) if isinstance(policy, EPSILON_GREEDY)}


def follow_epsilons(policies: Sequence[Any], version: PolicyVersion) -> None:
    """Give the policies the `epsilons` that come with the weights of this version."""
    for place, epsilon in version.hyper.items():
        policies[int(place)].eps = epsilon


def acting_in_worker(actor: DenseActor, policies: Sequence[Any]) -> FollowingActor:
    """Acts as a copy of `actor`. policies: those that explore in the same process, and follow the weights."""
    return FollowingActor(copy.deepcopy(actor), partial(follow_epsilons, policies))


WINDOWS = ("window_size", "window_size_")
MOST_MINIBATCHES = 64  # in one call of the engine


class Regime(Protocol):
    """How the learner and the rollout treat old transitions.

    at_once: minibatches that are drawn together; 1 where each depends on the errors of those before.
    """

    @property
    def at_once(self) -> int: ...

    @property
    def selector(self) -> Callable[[int], Selector]:
        """Makes the selector of the replay, given the rows of its ring."""

    @property
    def may_overlap(self) -> bool:
        """Whether workers may act with weights that are older than those that learn."""

    @property
    def update_priorities(self) -> Callable[[Buffer, Batch, Update], None]:
        """Sets the priorities of batches to what their loss reported."""

    def trimming(self, options: Options) -> Trimming:
        """What is dropped when transitions are stored."""

    def target_updates(self, due: int, minibatches: int) -> int:
        """How many of the `due` calls of `update_param` a learning phase of so many minibatches makes. Where it makes
        none, they stay due."""

    def after_target_update(self, buffer: Buffer, options: Options) -> None:
        """Drop transitions after a call of `update_param`."""


@dataclass(frozen=True)
class OffPolicy:
    """Learns from transitions of any policy.

    windows: the options that limit the replay; the first that is set counts.
    """

    selector: Callable[[int], Selector]
    update_priorities: Callable[[Buffer, Batch, Update], None]
    windows: tuple[str, ...] = WINDOWS
    at_once: int = MOST_MINIBATCHES
    may_overlap: ClassVar[bool] = True

    def trimming(self, options: Options) -> Trimming:
        """See `Regime`."""
        return Trimming(options.first(*self.windows), options.clearing_freq)

    def target_updates(self, due: int, minibatches: int) -> int:
        """All."""
        return due

    def after_target_update(self, buffer: Buffer, options: Options) -> None:
        """Keep all."""


@dataclass(frozen=True)
class OnPolicy:
    """Learns from transitions of the old policy, which stays fixed during a learning phase."""

    selector: Callable[[int], Selector]
    update_priorities: Callable[[Buffer, Batch, Update], None]
    drop: Callable[[Buffer, Options], None]
    at_once: int = MOST_MINIBATCHES
    may_overlap: ClassVar[bool] = False

    def trimming(self, options: Options) -> Trimming:
        """See `Regime`."""
        return Trimming(options.first(*WINDOWS), options.clearing_freq)

    def target_updates(self, due: int, minibatches: int) -> int:
        """One at most, and none before there is a minibatch: what the pool holds would be dropped unlearned."""
        return min(due, minibatches, 1)

    def after_target_update(self, buffer: Buffer, options: Options) -> None:
        """See `regime_of`."""
        self.drop(buffer, options)


def regime_of(settings: Settings) -> Regime:
    """What PPO and PR ask for. PPO alone empties the replay when the old policy is updated; with PR it is only cut,
    as priorities choose what to learn from and ratios correct it."""
    drawn: Callable[[int], Selector] = _every_transition if settings.num_updates is None else _any_transition
    by_error = partial(Prioritised, alpha=settings.alpha, initial_error=settings.initial_TD)
    if settings.PPO and settings.PR:
        by_both = partial(by_error, initial_ratio=settings.initial_ratio, mix=settings.lambda_)
        return OnPolicy(by_both, partial(_prioritise, expected=("TD", "ratio")), _cut, 1)
    if settings.PPO:
        return OnPolicy(drawn, _ignore_errors, _empty)
    if settings.PR:
        return OffPolicy(
            partial(by_error, mix=1.0), partial(_prioritise, expected=("TD",)), ("window_size_pr", *WINDOWS), 1
        )
    return OffPolicy(drawn, _ignore_errors)


def _every_transition(rows: int) -> Selector:
    return Passes()


def _any_transition(rows: int) -> Selector:
    return Uniform()


def _ignore_errors(buffer: Buffer, batches: Batch, update: Update) -> None:
    """Nothing is sampled by priorities."""


def _prioritise(buffer: Buffer, batches: Batch, update: Update, expected: tuple[str, ...]) -> None:
    reported = {"TD": update.td_error, "ratio": update.ratio}
    errors = [error for name in expected if (error := reported[name]) is not None]
    if len(errors) < len(expected):
        names = ", ".join(expected)
        raise ConfigError(
            f"PR=True draws transitions by what the loss reports, and it did not report {names}. Call "
            f"self.prioritized_replay.update({names}) in __call__, with one number per example each."
        )
    buffer.update(batches, *errors)


def _empty(buffer: Buffer, options: Options) -> None:
    buffer.clear()


def _cut(buffer: Buffer, options: Options) -> None:
    """Without a window, to the newer half."""
    window = options.first("window_size_ppo", "window_size_pr", *WINDOWS)
    cut(buffer, 0.5 if window is None else window)


class EpisodeLearner:
    """Learns after every collection: `num_updates` minibatches, or as many as make one pass over the replay.

    regime: what is sampled and what is dropped. count: environments. hyper: what views read (gamma). rng: picks columns
        of the ring, with `random`.
    """

    explores_anew = False  # layers are the user's, and so is their noise

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
        self.settings: Settings = settings
        self.regime: Regime = regime
        self.engine: Any = engine
        self.buffer: Buffer = buffer
        self.count: int = count
        self.hyper: Callable[[], dict[str, float]] = hyper
        self._rng = rng
        self.progress: RunProgress = RunProgress()
        self._counts: dict[str, tuple[int, int]] = {}  # by name: as it was given, and as it was adjusted
        self.policies: Sequence[Any] = ()  # what explores, in the order in which the user gave it
        self.before_phase: Callable[[], object] = lambda: None  # may adjust hyperparameters
        self.adjusted: list[Adjusted] = []  # since the last learning phase
        self.configure(Options(), Callbacks([], None))
        self.loss: float | None = None  # the mean over the last learning phase
        self.follow_calls: int = 0  # of update_param
        self.batches: int = 0  # minibatches learned since the agent was made
        self._followed = (0, 0)  # environment steps and minibatches up to which calls of update_param were due
        self._collections = 0
        self._received = np.zeros(count, np.int64)  # rows that each column of the ring ever got

    def configure(self, options: Options, callbacks: Callbacks) -> None:
        """Train with these options from now on."""
        self.callbacks: Callbacks = callbacks
        self.options: Options = options
        self.trimming: Trimming = self.regime.trimming(options)

    def count_of(self, name: str) -> int | None:
        """The present value of batch, num_updates, num_store, update_steps or update_batches; None where it was not
        given."""
        given, adjusted = self._given(name), self._counts.get(name)
        return given if adjusted is None or adjusted[0] != given else adjusted[1]

    def set_count(self, name: str, value: float) -> None:
        """Adjust one of these until another value is given. Target networks follow from here on as often as it says."""
        given = self._given(name)
        assert given is not None
        self._counts[name] = given, int(value)
        if name in ("update_steps", "update_batches"):
            self._followed = self.progress.step, self.batches

    def _count(self, name: str) -> int:
        """The same, of one that is always given."""
        value = self.count_of(name)
        assert value is not None
        return value

    def _given(self, name: str) -> int | None:
        return self.options.num_store if name == "num_store" else getattr(self.settings, name)

    def collect_request(self, left: int, after: int = 0) -> CollectRequest:
        """Whole episodes, one of every environment."""
        return CollectRequest(None)

    def take(self, *parts: Any) -> None:
        """Store collected steps and count them."""
        for steps in parts:
            self.progress.count(steps)
            self.buffer.add(placed := self._placed(steps))
            self._received[placed.columns] += placed.shape[0]
            before = len(self.buffer)
            self.trimming.after_storing(self.buffer, len(steps), self.progress.step)
            self._note_window(before)

    def _placed(self, steps: Steps) -> Steps:
        """A whole episode may go into any column of the ring: the one that got the fewest rows, or a random one, so
        that workers with short and with long episodes share the ring, and all overwrite the oldest rows."""
        ended = (steps.terminated | steps.truncated)[-1]
        if steps.shape[1] != 1 or not ended[0] or self.count == 1:
            return steps
        column = self._rng.integers(self.count) if self.options.random else int(np.argmin(self._received))
        return dataclasses.replace(steps, columns=np.array([column]), restarted=np.zeros(1, bool))

    def learn_if_due(self) -> Learned | None:
        """A learning phase, after every `num_store` collections; nothing is learned before the replay holds
        one batch."""
        began = time.perf_counter()
        self._collections += 1
        if self._collections % self._count("num_store"):
            return None
        if len(self.buffer) >= self._count("batch"):
            self.before_phase()
        size = self._count("batch")
        wanted = self.count_of("num_updates") or len(self.buffer) // size
        minibatches = wanted if len(self.buffer) >= size else 0
        losses = self._learn(minibatches)
        if not minibatches:
            return None
        self.loss = losses["loss"]
        self.progress.gradient_steps += minibatches
        adjusted, self.adjusted = tuple(self.adjusted), []
        seconds = time.perf_counter() - began
        return Learned(self.progress.step, self.progress.gradient_steps, losses, {}, seconds, adjusted)

    def why_untrained(self, collections: int) -> str:
        """What a call of `train` that took no gradient step in so many collections tells."""
        held, size, cut = len(self.buffer), self._count("batch"), self.trimming.window is not None
        reason = f"a learning phase follows every num_store = {self._count('num_store')} collections. Lower num_store"
        if held < size:
            reason = f"the pool holds {held} transitions at the end, and a batch is {size}. Lower batch"
            reason += cut * ", let window_size keep more"
        return f"No gradient step was taken in {collections} episodes: {reason}, or play more episodes."

    def _learn(self, minibatches: int) -> dict[str, float]:
        """Learn so many minibatches and call `update_param` as often as is due, evenly spread over them."""
        due = self._due_target_updates(minibatches)
        means: dict[str, float] = {}
        done = 0
        for call in range(1, due + 1):
            done = self._learn_until(done, minibatches * call // due, minibatches, means)
            self.engine.update_param()
            self.follow_calls += 1
            before = len(self.buffer)
            self.regime.after_target_update(self.buffer, self.options)
            self._note_window(before)
        self._learn_until(done, minibatches, minibatches, means)
        return means

    def _note_window(self, before: int) -> None:
        """Report that `window_size_func` has left fewer than `before` transitions."""
        after = len(self.buffer)
        if self.options.window_size_func is not None and after < before:
            self.adjusted.append(Adjusted(self.progress.step, "window", before, after, "window_size_func"))

    def _due_target_updates(self, minibatches: int) -> int:
        """How many calls of `update_param` belong to this phase."""
        before, now = self._followed, (self.progress.step, self.batches + minibatches)
        each = self.count_of("update_steps"), self.count_of("update_batches")
        due = sum(b // every - a // every for every, a, b in zip(each, before, now, strict=True) if every is not None)
        made = self.regime.target_updates(due, minibatches)  # of neither, the engine calls it after every minibatch
        if made or not due:
            self._followed = now
        return made

    def _learn_until(self, done: int, end: int, total: int, means: dict[str, float]) -> int:
        """Learn minibatches from number `done` up to `end` of `total`; returns `end`."""
        each_batch, drawn_for = self.callbacks.want_batches, None
        drawn: list[Batch] = []
        while done < end:
            if each_batch:
                self.callbacks.call("on_batch_begin", done)
            if not drawn or (self.hyper(), self._count("batch")) != drawn_for:
                drawn_for = self.hyper(), self._count("batch")
                drawn = self._draw(min(self.regime.at_once, end - done), each_batch)
            batches = drawn.pop(0)
            k = len(batches.weight)
            update = self.engine.learn(batches, {})
            self.regime.update_priorities(self.buffer, batches, update)
            add_to_means(means, update.losses, k, total)
            means["loss"] = float(np.mean([means[name] for name in update.losses]))
            if each_batch:
                self.callbacks.call("on_batch_end", done, loss=float(np.mean(list(update.losses.values()))))
            done += k
            self.batches += k
        return end

    def _draw(self, k: int, apart: bool) -> list[Batch]:
        """k minibatches, drawn together, as generators of views go on by calls; apart: not stacked."""
        self.buffer.view.adjust(self.hyper())
        batches = self.buffer.sample(k, self._count("batch"))
        if k == 1 or not apart:
            return [batches]
        parts = {each.name: getattr(batches, each.name) for each in dataclasses.fields(Batch)}
        return [Batch(**trees.rows(parts, slice(i, i + 1))) for i in range(k)]

    def follow_moments(self) -> bool:
        """There is no normaliser."""
        return False

    def exploring_policy(self) -> tuple[Weights, PolicyVersion]:
        """The weights that workers act with, none where this process acts for them; and the epsilons of policies."""
        actor = self.engine.actor()
        weights = {} if actor is None else self.engine.weights(actor.names)
        return weights, PolicyVersion(0, epsilons(self.policies))

    def trained_weights(self) -> Weights:
        """What `param` holds, by name."""
        return self.engine.parameters()

    def state(self, replay: bool) -> dict[str, Any]:
        """Arrays and plain data from which `restore` continues. replay: whether the replay is part of it."""
        counted: dict[str, Any] = {"batches": self.batches, "followed": list(self._followed)}
        counted |= {"collections": self._collections, "loss": self.loss}
        counted |= {"received": self._received.tolist(), "generator": generator_state(self._rng)}
        kept = {"replay": self.buffer.state()} if replay else {}
        return {"engine": self.engine.state(), "progress": {**dataclasses.asdict(self.progress), **counted}, **kept}

    def check_state(self, stored: dict[str, Stored]) -> None:
        """Raise CheckpointError where `restore` cannot continue from these components; nothing is changed."""
        self.engine.check_state(stored["engine"])
        counted = ("batches", "followed", "collections", "loss", "received", "generator")
        progress = check_progress(stored["progress"], counted)
        for number in (progress["batches"], progress["collections"], *progress["followed"].items(2)):
            number.whole()
        if progress["loss"].value is not None:
            progress["loss"].number()
        for number in progress["received"].items(self.count):
            number.whole()
        check_generator(progress["generator"])
        if "replay" in stored:
            self.buffer.check_state(stored["replay"])

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`; without its replay, with an empty one."""
        self.engine.restore(state["engine"])
        counted = dict(state["progress"])
        self.batches, self._followed = counted.pop("batches"), tuple(counted.pop("followed"))
        self._collections, self.loss = counted.pop("collections"), counted.pop("loss")
        self._received[:] = counted.pop("received")
        restore_generator(self._rng, counted.pop("generator"))
        self.progress = RunProgress(**counted)
        if "replay" in state:
            self.buffer.restore(state["replay"])
