"""How learning treats what was collected before: which transitions it draws, and which of them it forgets when
`update_param` is called. The flags PPO and PR are read here, once."""

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


class Regime(Protocol):
    """What the learner and the rollout ask."""

    @property
    def selector(self) -> Callable[[int], Selector]:
        """Makes what draws transitions, from the rows of the ring."""

    @property
    def may_overlap(self) -> bool:
        """Whether workers may act with weights that are older than those that learn."""

    @property
    def told(self) -> Callable[[Buffer, Batch, Update], None]:
        """Hands on what the loss reported of batches."""

    def trimming(self, options: Options) -> Trimming:
        """What is forgotten when transitions are stored."""

    def calls(self, due: int) -> int:
        """Of so many calls of `update_param` that are due, those that are made in one learning phase."""

    def updated(self, buffer: Buffer, options: Options) -> None:
        """Forget what is to be forgotten after a call of `update_param`."""


@dataclass(frozen=True)
class OffPolicy:
    """Learns from what any policy collected. windows: the options that say what is kept; the first that is given
    counts."""

    selector: Callable[[int], Selector]
    told: Callable[[Buffer, Batch, Update], None]
    windows: tuple[str, ...] = WINDOWS
    may_overlap: ClassVar[bool] = True

    def trimming(self, options: Options) -> Trimming:
        """See `Regime`."""
        return Trimming(options.first(*self.windows), options.clearing_freq)

    def calls(self, due: int) -> int:
        """All."""
        return due

    def updated(self, buffer: Buffer, options: Options) -> None:
        """Nothing is forgotten."""


@dataclass(frozen=True)
class OnPolicy:
    """Learns from what the old policy collected; the old policy stays the same for a whole learning phase."""

    selector: Callable[[int], Selector]
    told: Callable[[Buffer, Batch, Update], None]
    forget: Callable[[Buffer, Options], None]
    may_overlap: ClassVar[bool] = False

    def trimming(self, options: Options) -> Trimming:
        """See `Regime`."""
        return Trimming(options.first(*WINDOWS), options.clearing_freq)

    def calls(self, due: int) -> int:
        """One at most."""
        return min(due, 1)

    def updated(self, buffer: Buffer, options: Options) -> None:
        """See `regime_of`."""
        self.forget(buffer, options)


def regime_of(settings: Settings) -> Regime:
    """What PPO and PR ask for: with PPO alone the pool is emptied when the old policy follows; with both it is cut, as
    priorities choose what to learn from and ratios correct it."""
    drawn: Callable[[int], Selector] = _every_transition if settings.num_updates is None else _any_transition
    by_error = partial(Prioritised, alpha=settings.alpha, initial_error=settings.initial_TD)
    if settings.PPO and settings.PR:
        by_both = partial(by_error, initial_ratio=settings.initial_ratio, mix=settings.lambda_)
        return OnPolicy(by_both, partial(_prioritise, expected=("TD", "ratio")), _cut)
    if settings.PPO:
        return OnPolicy(drawn, _pass_over, _empty)
    if settings.PR:
        return OffPolicy(
            partial(by_error, mix=1.0), partial(_prioritise, expected=("TD",)), ("window_size_pr", *WINDOWS)
        )
    return OffPolicy(drawn, _pass_over)


def _every_transition(rows: int) -> Selector:
    return Passes()


def _any_transition(rows: int) -> Selector:
    return Uniform()


def _pass_over(buffer: Buffer, batches: Batch, update: Update) -> None:
    """Nothing is drawn by errors."""


def _prioritise(buffer: Buffer, batches: Batch, update: Update, expected: tuple[str, ...]) -> None:
    reported = {"TD": update.td_error, "ratio": update.ratio}
    wanted, names = [reported[name] for name in expected], ", ".join(expected)
    if any(error is None for error in wanted):
        raise ConfigError(
            f"PR=True draws transitions by what the loss reports, and it did not report {names}. Call "
            f"self.prioritized_replay.update({names}) in __call__, with one number per example each."
        )
    buffer.update(batches, *wanted)


def _empty(buffer: Buffer, options: Options) -> None:
    buffer.clear()


def _cut(buffer: Buffer, options: Options) -> None:
    """Without a window, to the newer half."""
    window = options.first("window_size_ppo", "window_size_pr", *WINDOWS)
    cut(buffer, 0.5 if window is None else window)
