"""What `RL.set`, `RL.train` and `RL.distributed_training` are given, checked as a whole before anything is trained."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from etude.base import checks
from etude.base.errors import ConfigError
from etude.protocols import Explorer
from etude.replay import Buffer, Passes, Prioritised, Selector, Uniform


@dataclass(frozen=True)
class Settings:
    """The arguments of `RL.set`: how an agent explores, what its pool keeps, and what one learning phase is.

    policy, noise: an explorer of `etude.explore`; a list gives one to each process, or to each agent.
    pool_size, batch: transitions kept, and in a minibatch.
    num_updates: minibatches after each episode; None: one shuffled pass over the pool.
    num_steps: transitions of so many steps.
    update_steps, update_batches: call `update_param` every so many environment steps, or minibatches; neither:
        after every minibatch, with PPO and PR after every phase. With PPO=True the pool is emptied then (with
        PR=True, cut).
    trial_count, criterion: training ends when the mean reward of the last trial_count episodes reaches criterion.
    HER: relabel goals in hindsight, by the agent's `reward_done_func(next_goal, goal)`.
    TRL: triplets of three times of one trajectory. MARL: several agents.
    PR: prioritised replay; the loss calls `self.prioritized_replay.update(TD)`, or with PPO `update(TD, ratio)`.
    IRL: rewards come from a learned model, the agent's `reward_model(inputs, a, next_s, d)`; see `solo.learner`.
    initial_TD, initial_ratio: the first priorities. lambda_: of |TD| against |ratio - 1|. alpha: their exponent.
    epsilon: sets the policy's. pool_folder: memory-map the pool there when it exceeds RAM.
    """

    policy: Explorer | Sequence[Explorer] | None = None
    noise: Explorer | Sequence[Explorer] | None = None
    pool_size: int = 10_000
    batch: int = 64
    num_updates: int | None = None
    num_steps: int | None = None
    update_batches: int | None = None
    update_steps: int | None = None
    trial_count: int | None = None
    criterion: float | None = None
    PPO: bool = False
    HER: bool = False
    TRL: bool = False
    MARL: bool = False
    PR: bool = False
    IRL: bool = False
    epsilon: float | None = None
    initial_ratio: float = 1.0
    initial_TD: float = 7.0
    lambda_: float = 0.5
    alpha: float = 0.7
    pool_folder: Path | str | None = None

    def __post_init__(self) -> None:
        checks.declared(self, {"Path | str | None": ((Path, str, type(None)), "a folder or None")})
        checks.counts(self, "pool_size", "batch", "num_updates", "num_steps", "update_batches", "update_steps")
        checks.counts(self, "trial_count")
        checks.fractions(self, "lambda_", "epsilon")
        checks.not_negative(self, "alpha", "initial_ratio", "initial_TD")
        for wrong, reason in self._contradictions():
            if wrong:
                raise ConfigError(f"set: {reason}")

    def _contradictions(self) -> list[tuple[bool, str]]:
        """(whether it holds, what is wrong and what to do)."""
        targets = self.update_steps is not None, self.update_batches is not None
        several_steps = self.num_steps is not None
        return [
            (
                self.policy is not None and self.noise is not None,
                "policy and noise were given. Keep the policy for discrete actions, the noise for continuous ones.",
            ),
            (
                self.epsilon is not None and self.policy is None,
                "epsilon belongs to a policy, and none was given. Add policy=EpsGreedyQPolicy().",
            ),
            (
                self.batch > self.pool_size,
                f"batch = {self.batch} is larger than pool_size = {self.pool_size}. Nothing is learned before the pool "
                "holds one batch: raise pool_size.",
            ),
            (all(targets), "update_steps and update_batches both say when update_param is called. Keep one."),
            (
                self.PPO and not any(targets),
                "PPO=True empties the pool whenever update_param is called; say when, with update_steps or "
                "update_batches.",
            ),
            (
                self.criterion is not None and self.trial_count is None,
                "criterion is compared with the mean return of the last trial_count episodes. Give trial_count.",
            ),
            (self.HER and self.PPO, "HER=True relabels the past, PPO=True learns from the present policy. Keep one."),
            (self.HER and self.MARL, "HER=True relabels the goal of one agent; MARL=True has several. Keep one."),
            (
                self.TRL and (self.HER or self.MARL or self.IRL or several_steps),
                "TRL=True makes batches of its own kind, of triplets. Leave HER, MARL, IRL and num_steps off.",
            ),
            (
                self.IRL and (self.HER or self.MARL or several_steps),
                "IRL=True takes the rewards of single steps from a learned model. Leave HER, MARL and num_steps off.",
            ),
        ]

    @property
    def follows_each_step(self) -> bool:
        """Whether `update_param` is a part of every gradient step."""
        return self.update_steps is None and self.update_batches is None

    @property
    def explorer(self) -> Explorer | Sequence[Explorer] | None:
        """The policy or the noise, whichever was given."""
        return self.noise if self.policy is None else self.policy


WINDOWS = ("window_size", "window_size_")
_IN_ORDER = ("global_batch_size", "optimizer", "strategy", "episodes")


@dataclass(frozen=True)
class StrategyArguments:
    """What `distributed_training` is given beside the options of `train`.

    global_batch_size: examples in a minibatch, over all replicas; None: `batch` of `set`.
    """

    strategy: Any
    optimizer: Any = None
    episodes: int | None = None
    global_batch_size: int | None = None

    def __post_init__(self) -> None:
        if self.strategy is None:
            raise ConfigError(
                "distributed_training needs a strategy of tf.distribute, such as tf.distribute.MirroredStrategy(): "
                "distributed_training(optimizer, strategy, episodes). To train without one, call train."
            )
        checks.whole_number("global_batch_size", self.global_batch_size, none=True)


def strategy_arguments(arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[StrategyArguments, dict[str, Any]]:
    """Positional and named arguments of `distributed_training`, in which the batch size may be missing, as (its own,
    the options of `train`); ConfigError for too many, and for one that is given twice."""
    names = _IN_ORDER if arguments and isinstance(arguments[0], int) else _IN_ORDER[1:]
    named = dict(named)
    if len(arguments) > len(names):
        raise ConfigError(
            f"distributed_training got {len(arguments)} arguments without a name; expected at most {', '.join(names)}. "
            "Name the others."
        )
    own = dict(zip(names, arguments, strict=False))
    if named.get("num_episodes") is not None:
        named["episodes"] = named["num_episodes"]
    named.pop("num_episodes", None)
    for name in set(_IN_ORDER) & named.keys():
        if name in own:
            raise ConfigError(f"distributed_training got {name} twice. Give it once.")
        own[name] = named.pop(name)
    return StrategyArguments(**{"strategy": None, **own}), named


WindowFunction = Callable[[int], "int | None"]  # from the number of a process to how many of its oldest rows to drop


class _ProcessWindows(NamedTuple):
    """What each process of the pool drops of its own part."""

    function: WindowFunction

    def kept(self, filled: np.ndarray) -> np.ndarray:
        """How many of the rows of each process stay, [N]; at least 1. ConfigError where the function returns no number
        for one."""
        kept = filled.copy()
        for p in np.flatnonzero(filled > 1).tolist():
            dropped = self.function(p)
            if dropped is not None and not isinstance(dropped, int | float | np.number):
                raise ConfigError(
                    f"window_size_func({p}) returned a {type(dropped).__name__}; expected how many of the oldest "
                    "transitions of this process to drop, or None for none."
                )
            kept[p] = filled[p] - min(max(int(dropped or 0), 0), filled[p] - 1)
        return kept


# Rows to keep, the fraction to keep, the first from how many there are, or what processes drop.
Window = int | float | Callable[[int], int] | _ProcessWindows | None


@dataclass(frozen=True)
class Options:
    """The arguments of `RL.train` besides loss, optimizer and episodes.

    pool_network, processes: so many worker processes collect; none where pool_network is False or processes None. Those
        that would only step, as the network is evaluated in this process, are left out where that is faster.
    parallel_store_and_training: workers that act by themselves collect the next episodes while this process learns.
    num_store: collections before each learning phase.
    window_size, window_size_: what is kept of the pool when it is cut: transitions (an int), the fraction (a float), or
        a function from how many there are to how many to keep. window_size_ counts where window_size is None,
        window_size_pr before both with PR=True, window_size_ppo before all with PPO=True and PR=True.
    window_size_func: from the number of a process to how many of its oldest transitions to drop, before all others; the
        agent's own attribute where train is given none.
    clearing_freq: stored transitions between two cuts; None: the pool is cut when it is full.
    jit_compile: for TensorFlow, whether XLA compiles.
    random: episodes go into random columns of the pool; else into the one that holds least.
    save_data: whether `save` keeps the pool. callbacks: see `solo.callbacks`.
    p: episodes between two printed lines; None: about ten lines in all; 0: none.
    processes_her, processes_pr, shuffle: taken, and without effect. A minibatch is drawn in less time than it takes to
        send it to a process, and a pass over the pool is always shuffled.
    """

    pool_network: bool = True
    processes: int | None = None
    parallel_store_and_training: bool = True
    num_store: int = 1
    processes_her: int | None = None
    processes_pr: int | None = None
    window_size: Window = None
    window_size_func: WindowFunction | None = None
    clearing_freq: int | None = None
    window_size_: Window = None
    window_size_ppo: Window = None
    window_size_pr: Window = None
    jit_compile: bool = True
    random: bool = False
    shuffle: bool = True
    save_data: bool = True
    callbacks: Sequence[Any] = ()
    p: int | None = None

    def __post_init__(self) -> None:
        checks.declared(self)
        checks.counts(self, "num_store", "processes", "processes_her", "processes_pr", "clearing_freq")
        if self.p is not None and self.p < 0:
            raise ConfigError(f"train: p = {self.p}; expected the episodes between two lines, 0 for none, or None.")
        for name in (*WINDOWS, "window_size_ppo", "window_size_pr"):
            window = getattr(self, name)
            if window is None or callable(window):
                continue
            if isinstance(window, bool) or not (0 < window <= 1 if isinstance(window, float) else window >= 1):
                raise ConfigError(
                    f"{name} = {window!r}; expected how many transitions to keep (an int), the fraction to keep (a "
                    "float from 0 to 1), or a function from how many there are to how many to keep."
                )

    @property
    def workers(self) -> int:
        """Processes that collect; 0: none but this one."""
        return (self.processes or 0) if self.pool_network else 0

    def first(self, *windows: str) -> Window:
        """The window of each process, or the first of these options that was given, or None."""
        if self.window_size_func is not None:
            return _ProcessWindows(self.window_size_func)
        given = (getattr(self, name) for name in windows)
        return next((window for window in given if window is not None), None)


class ReplayKind(NamedTuple):
    """How the learner and the rollout treat old transitions.

    selector: makes the selector of the replay, given the rows of its ring. reports: what the loss says of each example,
        of which the replay makes priorities; () without them. windows: the options that limit the replay; the first
        that is set counts. drop: called after each call of `update_param`, where transitions are those of the old
        policy, which stays fixed during a learning phase; None: they are of any policy, and stay.
    """

    selector: Callable[[int], Selector]
    reports: tuple[str, ...] = ()
    windows: tuple[str, ...] = WINDOWS
    drop: Callable[[Buffer, Options], None] | None = None

    def window(self, options: Options) -> Window:
        """What is kept when the replay is cut; None: it never is."""
        window = options.first(*self.windows)
        if options.clearing_freq is not None and window is None:
            raise ConfigError("clearing_freq says how often the pool is cut; give window_size, what to keep of it.")
        return window


def replay_kind_of(settings: Settings) -> ReplayKind:
    """What PPO and PR ask for. PPO alone empties the replay when the old policy is updated; with PR it is only cut,
    as priorities choose what to learn from and ratios correct it: without a window, to the newer half."""

    def cut_to_window(buffer: Buffer, options: Options) -> None:
        window = options.first("window_size_ppo", "window_size_pr", *WINDOWS)
        cut(buffer, 0.5 if window is None else window)

    by_error = partial(Prioritised, alpha=settings.alpha, initial_error=settings.initial_TD)
    if settings.PPO and settings.PR:
        by_both = partial(by_error, initial_ratio=settings.initial_ratio, mix=settings.lambda_)
        return ReplayKind(by_both, ("TD", "ratio"), drop=cut_to_window)
    if settings.PR:
        return ReplayKind(partial(by_error, mix=1.0), ("TD",), ("window_size_pr", *WINDOWS))
    drawn: Callable[[int], Selector] = lambda rows: Passes() if settings.num_updates is None else Uniform()  # noqa: E731
    return ReplayKind(drawn, drop=(lambda buffer, options: buffer.clear()) if settings.PPO else None)


def settings_from(named: dict[str, Any]) -> Settings:
    """The settings with these names, of which MA is MARL; ConfigError for names that `set` does not take."""
    given = {name: value for name, value in named.items() if name != "MA"}
    given["MARL"] = given.get("MARL", False) or named.get("MA", False)
    _check_names("set", Settings, given)
    targets = given.get("update_steps"), given.get("update_batches")
    if given.get("PPO") and given.get("PR") and targets == (None, None):
        given["update_steps"] = 1
        warnings.warn(
            "set: PPO=True and PR=True without update_steps or update_batches: update_param is called at the end "
            "of each learning phase, and the pool is cut then. To have it called less often, give update_steps.",
            stacklevel=3,
        )
    return Settings(**given)


def options_from(agent: Any, named: dict[str, Any]) -> Options:
    """The options of the agent's `train` with these names; ConfigError for names that it does not take."""
    named = {"window_size_func": agent.window_size_func, **named}
    _check_names("train", Options, named)
    return Options(**{name: value for name, value in named.items() if not (name == "callbacks" and value is None)})


def _check_names(method: str, kind: Any, named: dict[str, Any]) -> None:
    known = kind.__dataclass_fields__
    if unknown := sorted(set(named) - set(known)):
        raise ConfigError(f"{method} takes no argument {', '.join(unknown)}; it takes {', '.join(known)}.")


def cut_if_due(buffer: Buffer, window: Window, every: int | None, rows: int, stored: int) -> None:
    """Cut the replay after so many `rows`, of all that were ever `stored`, every so many rows; None: when it is
    full."""
    if buffer.full if every is None else (stored - rows) // every != stored // every:
        cut(buffer, window)


def cut(buffer: Buffer, window: Window) -> None:
    """Drop all but the window; nothing without one."""
    held = len(buffer)
    if isinstance(window, _ProcessWindows):
        buffer.trim(window.kept(buffer.ring.filled))
    elif window is not None:
        kept = window(held) if callable(window) else held * window if isinstance(window, float) else window
        buffer.trim(max(1, min(held, int(kept))))
