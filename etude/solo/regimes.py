"""How learning treats old transitions: which it samples, and which it drops when `update_param` is
called. The flags PPO and PR are read here, once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol

from etude.base.data import Batch, Update
from etude.base.errors import ConfigError
from etude.replay import Buffer, Passes, Prioritised, Uniform
from etude.replay.buffer import Selector
from etude.solo.options import Options, Trimming, cut
from etude.solo.settings import Settings

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
