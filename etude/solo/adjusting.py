"""Hyperparameters of an agent of one's own that adjust themselves: which there are, where each is read and written, how
far each moves, and the methods that adjust them while it trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np

from etude.adapt.rules import DIRECTIONS, Change, UnusableSignal, effective_sample_size, gradient_variance, smoothed
from etude.base.checks import Stored, whole_number
from etude.base.errors import ConfigError, DataError
from etude.base.events import Adjusted
from etude.base.seeding import check_generator, generator_state, restore_generator
from etude.replay import Prioritised, Uniform
from etude.solo.learner import EPSILON_GREEDY, EpisodeLearner

KNOBS = {
    "batch": "batch_size", "alpha": "priority_exponent", "lr": "learning_rate", "eps": "epsilon",
    "freq": "target_update_every", "tau": "tau", "gamma": "gamma", "store": "rollout_length",
    "weight_decay": "weight_decay", "beta1": "beta1", "beta2": "beta2", "clip": "clip_range",
    "beta": "importance_exponent", "num_updates": "gradient_steps",
}  # fmt: skip
"""By the name in `NAME_params`, the hyperparameter of runs that it stands for: it moves in the same direction."""


class _Knob(NamedTuple):
    """One number that may be adjusted. name: as events have it. like: see `KNOBS`. whole: whether it is a count."""

    name: str
    like: str
    whole: bool
    read: Callable[[], float]
    write: Callable[[float], None]


def _knobs(agent: Any, learner: EpisodeLearner, name: str) -> list[_Knob]:
    """The numbers that an argument such as lr_params adjusts: one of each optimizer, or policy, where there are
    several. ConfigError where this agent has no such hyperparameter, or where nobody has."""
    if name not in KNOBS:
        arguments = ", ".join(f"{each}_params" for each in KNOBS)
        raise ConfigError(f"adjust takes no argument {name}_params; expected some of {arguments}.")
    like = KNOBS[name]
    if name in ("lr", "weight_decay", "beta1", "beta2"):
        found = [(setting.read, setting.write) for setting in learner.engine.optimizer_settings(like)]
        if not found:
            raise ConfigError(
                f"{name}_params adjusts {like} of the optimizers, and none of this agent's has one that is a number. "
                "Leave it out, or train with an optimizer that has it, such as AdamW."
            )
    elif name in ("tau", "gamma", "clip", "beta"):
        if not isinstance(getattr(agent, name, None), float):
            raise ConfigError(
                f"{name}_params adjusts the attribute {name} of the agent, and {type(agent).__name__} has no float of "
                "this name. Set it in __init__, and read it in __call__."
            )
        found = [_attribute(agent, name)]
    elif name == "eps":
        found = [_attribute(each, "eps") for each in learner.policies if isinstance(each, EPSILON_GREEDY)]
        if not found:
            raise ConfigError(
                "eps_params adjusts eps of the policies, and none of this agent's has one. Give "
                "set(policy=EpsGreedyQPolicy(...)), or leave eps_params out."
            )
    elif name == "alpha":
        if not isinstance(learner.buffer.selector, Prioritised):
            raise ConfigError(
                "alpha_params adjusts the exponent of priorities. Give set(..., PR=True), or leave it out."
            )
        found = [_attribute(learner.buffer.selector, "alpha")]
    else:
        follows = "update_batches" if learner.settings.update_steps is None else "update_steps"
        own = {"store": "num_store", "freq": follows}.get(name, name)
        if learner.count_of(own) is None:
            raise ConfigError(
                f"{name}_params adjusts {own}, and it is None: {_MEANING[own]}. Give set(..., {own}=...), or leave "
                f"{name}_params out."
            )
        return [_Knob(own, like, True, lambda: float(learner.count_of(own) or 0), partial(learner.set_count, own))]
    labels = [name] if len(found) == 1 else [f"{name}[{i}]" for i in range(len(found))]
    return [_Knob(label, like, False, read, write) for label, (read, write) in zip(labels, found, strict=True)]


def _attribute(holder: Any, name: str) -> tuple[Callable[[], float], Callable[[float], None]]:
    """Reads and writes an attribute."""
    return partial(getattr, holder, name), partial(setattr, holder, name)


_MEANING = {"num_updates": "one pass over the pool", "update_batches": "update_param is called after every minibatch"}
RATE_KEYS, SCALE_KEYS = ("rate", "min", "max", "smooth"), ("scale", "min", "max")
SMOOTH = 0.2  # of the documents


@dataclass
class _Position:
    """Where a hyperparameter is: a factor on what the user gave. value: as it was written last."""

    given: float
    factor: float = 1.0
    value: float | None = None


class Adjuster:
    """Moves the hyperparameters of one agent by signals of its replay and its gradients, and keeps what they have come
    to. The learner reports what changes.

    rng: draws the batches whose gradients are compared. replicas: of a strategy, over which batches are divided.
    """

    def __init__(self, agent: Any, learner: EpisodeLearner, rng: np.random.Generator, replicas: int = 1):
        self._agent, self._learner, self._buffer = agent, learner, learner.buffer
        self._rng, self.replicas = rng, replicas
        self._average: dict[str, float] = {}  # by signal and hyperparameter
        self._target: dict[str, float] = {}  # where the user gave none
        self._position: dict[str, _Position] = {}
        self._unusable: dict[str, str] = {}

    def priorities(self, column: int | None = None) -> np.ndarray:
        """Those of the stored rows, alpha included: of all, or of one process. ConfigError without PR=True."""
        selector = self._buffer.selector
        if not isinstance(selector, Prioritised):
            raise ConfigError(
                "The effective sample size is that of priorities, and this agent draws its transitions without. Give "
                "set(..., PR=True), or adjust by gradient noise: adabatch, or adjust with target_noise."
            )
        if column is None:
            return selector.all_priorities(self._buffer.ring)
        count = self._buffer.ring.environments
        if not 0 <= column < count:
            raise ConfigError(f"adjust_window_size: p = {column}; expected a process from 0 to {count - 1}, or None.")
        return selector.priorities(self._buffer.ring, column)

    def effective_sample_size(self, weight: np.ndarray) -> float:
        """`1 / sum(p**2)` of the priorities [n]."""
        if not self._buffer.selector.reported:  # type: ignore[attr-defined]  # `priorities` has checked what it is
            raise UnusableSignal("all priorities are those of new transitions: no errors have been reported yet")
        return effective_sample_size(weight)

    def gradient_variance(self, batches: int, jit_compile: bool) -> float:
        """The variance of gradients over so many minibatches."""
        ring, size = self._buffer.ring, self._learner.count_of("batch") or 1
        if len(ring) < max(2, size):
            raise UnusableSignal(f"the pool holds {len(ring)} transitions, and a batch is {size}")
        rows, weight = Uniform().select(ring, batches, size, self._rng)
        view = self._buffer.view
        view.adjust(self._learner.hyper())
        return gradient_variance(self._learner.engine.gradients(view(ring, rows, weight), jit_compile))

    def follow(
        self, signal: str, measure: Callable[[], float], smooth: float, target: float | None, params: Mapping[str, Any]
    ) -> tuple[Adjusted, ...]:
        """Move the hyperparameters of `params` by a signal, which `measure` returns now."""
        moves = [move for name, given in params.items() if given is not None
                 for move in self._moves(signal, name.removesuffix("_params"), given, smooth)]  # fmt: skip
        if target is not None and not (np.isfinite(target) and target > 0):
            raise ConfigError(f"adjust: target = {target!r}; expected a positive number.")
        try:
            value = measure()
            if not np.isfinite(value):
                raise UnusableSignal(f"{signal} is {value}")
        except UnusableSignal as error:
            events: Any = tuple(self._unchanged(signal, str(error), knob) for knob, _, _ in moves)
        else:
            events = tuple(event for move in moves for event in self._moved(signal, value, target, *move))
        found = tuple(event for event in events if event is not None)
        self._learner.adjusted += found
        return found

    def _moves(self, signal: str, name: str, given: Any, smooth: float) -> Iterator[tuple[_Knob, Change, float]]:
        """The hyperparameters of one argument, each with its change and the weight of new values in its average."""
        found = _knobs(self._agent, self._learner, name)
        own = _checked(name, found[0], given)
        smooth = own.pop("smooth", None) or (smooth if found[0].whole else SMOOTH)
        if not 0 < smooth <= 1:
            raise ConfigError(f"{name}_params: smooth = {smooth!r}; expected above 0 and at most 1.")
        change = Change(found[0].like, DIRECTIONS[signal][found[0].like], **own)
        for knob in found:
            yield knob, change, smooth

    def _moved(
        self, signal: str, value: float, target: float | None, knob: _Knob, change: Change, smooth: float
    ) -> Iterator[Adjusted]:
        """What the value of a signal does to one hyperparameter."""
        key = f"{signal} {knob.name}"
        self._average[key] = average = smoothed(self._average.get(key), value, smooth)
        target = self._target.setdefault(key, average) if target is None else target
        before, at = knob.read(), self._position.get(knob.name)
        if at is None or at.value != before:  # the user has put it elsewhere since
            at = self._position[knob.name] = _Position(before, value=before)
        if knob.like == "batch_size":
            change = self._of_batch(change, int(at.given))
        if not change.movable(at.given):
            event = self._unchanged(signal, f"it is {before:g}, and moves in proportion to what it is", knob)
            yield from () if event is None else (event,)
        elif target:
            at.factor = change.moved(at.factor, at.given, average / target)
            self._unusable.pop(key, None)
        wanted = change.value(at.factor, at.given)
        if wanted != before:
            knob.write(wanted)
        at.value = knob.read()
        if at.value != before:
            yield Adjusted(self._learner.progress.step, knob.name, before, at.value, f"{signal} {average:.3g}")

    def _of_batch(self, change: Change, given: int) -> Change:
        """The change of a batch size: at most what the pool holds, as nothing is learned before; and always a multiple
        of the number of replicas."""
        replicas, low, high = self.replicas, change.low, change.high
        high = max(1.0, min(4.0 * given if high is None else high, len(self._buffer)))
        if replicas == 1:
            return replace(change, high=high)
        if change.align is not None:
            return replace(change, high=high, align=math.lcm(change.align, replicas))
        parts = given // replicas
        least = given // (parts & -parts)  # halved until the part of a replica is odd
        return replace(change, low=max(least, given / 4 if low is None else low), high=max(least, high))

    def _unchanged(self, signal: str, reason: str, knob: _Knob) -> Adjusted | None:
        """The event of a hyperparameter that stays, once for each reason."""
        key = f"{signal} {knob.name}"
        if self._unusable.get(key) == reason:
            return None
        self._unusable[key] = reason
        return Adjusted(self._learner.progress.step, knob.name, knob.read(), knob.read(), f"unchanged: {reason}")

    def state(self) -> dict[str, Any]:
        """Plain data from which `restore` goes on; empty where nothing was ever adjusted."""
        if not self._average:
            return {}
        return {
            "averages": dict(self._average),
            "targets": dict(self._target),
            "positions": {name: asdict(at) for name, at in self._position.items()},
            "generator": generator_state(self._rng),
        }

    def check_state(self, saved: Stored) -> None:
        """Raise CheckpointError where `restore` cannot continue from this; nothing is changed."""
        held = saved.fields(("averages", "targets", "positions", "generator"))
        for name in ("averages", "targets"):
            for number in held[name].table().values():
                number.number()
        for at in held["positions"].table().values():
            for number in at.fields(("given", "factor", "value")).values():
                number.number()
        check_generator(held["generator"])

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`, which `check_state` has passed: give hyperparameters the values that they had."""
        self._average, self._target = dict(state["averages"]), dict(state["targets"])
        restore_generator(self._rng, state["generator"])
        known: dict[str, _Knob] = {}
        for name in KNOBS:
            with suppress(ConfigError):  # this agent has none of these
                known |= {knob.name: knob for knob in _knobs(self._agent, self._learner, name)}
        for name, at in state["positions"].items():
            if name in known:
                known[name].write(at["value"])
                self._position[name] = _Position(at["given"], at["factor"], known[name].read())


def _checked(name: str, knob: _Knob, given: Any) -> dict[str, Any]:
    """A dict such as lr_params as arguments of `Change`, and `smooth`; ConfigError for what it should not hold."""
    keys: tuple[str, ...] = SCALE_KEYS if knob.whole else RATE_KEYS
    keys = (*keys, "align") if knob.like == "batch_size" else keys
    if not isinstance(given, Mapping) or not given.keys() <= set(keys):
        raise ConfigError(f"{name}_params = {given!r}; expected a dict with some of the keys {', '.join(keys)}.")
    held = {key: value for key, value in given.items() if value is not None}
    for key, value in held.items():
        whole = key == "align" and not isinstance(value, int)
        if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value) or whole:
            raise ConfigError(f"{name}_params: {key} = {value!r}; expected a {'whole ' * whole}number.")
        if value <= 0 and key not in ("min", "max"):
            raise ConfigError(f"{name}_params: {key} = {value!r}; expected above 0.")
    if held.get("min", -np.inf) > held.get("max", np.inf):
        raise ConfigError(f"{name}_params: min = {held['min']!r} is above max = {held['max']!r}.")
    renamed = {"min": "low", "max": "high"}
    own = {renamed.get(key, key): value for key, value in held.items()}
    return own if knob.whole else {"rate": 0.1, **own}


Params = Mapping[str, float | None] | None


class AdjustedParams(TypedDict, total=False):
    """What `adjust` may move. Hyperparameters of the losses, policies and optimizers have the keys rate (the largest
    relative change at once, 0.1), min, max (a tenth and ten times of the value given) and smooth (weight of a new value
    in the moving average of the signal, 0.2). Whole numbers, which are batch, freq, store and num_updates, have scale
    (multiplies the ratio of the signal to its target, 1), min and max (a quarter and four times), and batch has align
    (the batch size is a multiple of it; None: it moves in powers of 2)."""

    batch_params: Params  # minibatch size
    alpha_params: Params  # exponent of the priorities
    lr_params: Params  # learning rate of each optimizer
    eps_params: Params  # eps of each policy
    freq_params: Params  # update_steps or update_batches
    tau_params: Params  # the agent's attribute tau
    gamma_params: Params  # the agent's attribute gamma
    store_params: Params  # num_store, collections before a learning phase
    weight_decay_params: Params  # of each optimizer
    beta1_params: Params  # of each optimizer
    beta2_params: Params  # of each optimizer
    clip_params: Params  # the agent's attribute clip
    beta_params: Params  # the agent's attribute beta
    num_updates_params: Params  # minibatches after each collection


class AdaptiveMethods:
    """`adjust` and what belongs to it. An agent calls these in `adjust_func`, in a callback, or between two calls of
    `train`; each returns the changes. They follow

    - the effective sample size (ESS) `1 / sum(p**2)` of the priorities p, normalised to sum to 1: where it is larger,
      updates become bolder;
    - the noise of gradients, their variance over minibatches: where it is larger, updates become more careful.

    adjust_func: called without arguments before each learning phase. window_size_func: called with the number of each
    process where the pool is cut; returns how many of its oldest transitions to drop, in the place of `window_size`.
    """

    adjust_func: Callable[[], Any] | None = None
    window_size_func: Callable[[int], int | None] | None = None
    _session_state: Any

    def adjust(
        self,
        target_ess: float | None = None,
        target_noise: float | None = None,
        num_samples: int | None = None,
        smooth: float = 0.2,
        *,
        jit_compile: bool = True,
        **params: Unpack[AdjustedParams],
    ) -> tuple[Adjusted, ...]:
        """`adabatch` where target_noise is given, which takes num_samples too; else `adjust_batch_size`."""
        if target_noise is None:
            return self.adjust_batch_size(smooth, target_ess=target_ess, **params)
        if target_ess is not None or num_samples is None:
            raise ConfigError(
                f"adjust: target_ess = {target_ess!r}, num_samples = {num_samples!r} with target_noise; expected "
                "num_samples, the minibatches whose gradients are compared, and no target_ess."
            )
        return self.adabatch(num_samples, target_noise, smooth, jit_compile=jit_compile, **params)

    def adjust_batch_size(
        self, smooth: float = 0.2, *, target_ess: float | None = None, **params: Unpack[AdjustedParams]
    ) -> tuple[Adjusted, ...]:
        """Multiply each hyperparameter in `params` by the ratio of the smoothed ESS of the priorities to target_ess, or
        divide it, as its direction says; see `AdjustedParams`. Nothing changes before errors were reported.

        smooth: weight of a new ESS in its moving average, for whole numbers. target_ess: in transitions; None: the
        first smoothed ESS. Raises ConfigError without PR=True.
        """
        adjuster = self._adjuster("adjust_batch_size")
        measure = partial(adjuster.effective_sample_size, adjuster.priorities())
        return adjuster.follow("ess", measure, smooth, target_ess, dict(params))

    def adabatch(
        self,
        num_samples: int,
        target_noise: float = 1e-3,
        smooth: float = 0.2,
        *,
        jit_compile: bool = True,
        **params: Unpack[AdjustedParams],
    ) -> tuple[Adjusted, ...]:
        """The same by the ratio of the gradient noise to target_noise.

        num_samples: minibatches, drawn uniformly from the pool. target_noise: of the variance of each entry of the
        gradient over them, averaged over entries. jit_compile: for TensorFlow, whether XLA compiles the gradient.
        """
        whole_number("adabatch: num_samples", num_samples, 2, " minibatches")
        adjuster = self._adjuster("adabatch")
        measure = partial(adjuster.gradient_variance, num_samples, jit_compile)
        return adjuster.follow("gradient_variance", measure, smooth, target_noise, dict(params))

    def adjust_window_size(self, p: int | None = None, scale: float = 1.0, ema: float | None = None) -> int:
        """How many of the oldest transitions to drop: `scale * (n - ESS)` of n, rounded down, and never all. 0 where
        the ESS cannot be computed, as for fewer than two transitions.

        p: the number of a process; None: the whole pool. ema: a smoothed ESS, in the place of the present one. Raises
        ConfigError without PR=True.
        """
        weight = self._adjuster("adjust_window_size").priorities(p)
        try:
            size = effective_sample_size(weight) if ema is None else float(ema)
        except UnusableSignal:
            return 0
        wanted = scale * (len(weight) - size)
        if not np.isfinite(wanted):
            raise ConfigError(f"adjust_window_size: scale = {scale!r}, ema = {ema!r}; expected finite numbers.")
        return int(min(max(wanted, 0), max(len(weight) - 1, 0)))

    def compute_ess_from_weights(self, weights: Any) -> float:
        """The effective sample size `1 / sum(p**2)` of weights [n] normalised to p: from 1 to n. DataError for fewer
        than two weights, and where they are negative, not finite, or all 0."""
        try:
            return effective_sample_size(np.asarray(weights))
        except UnusableSignal as error:
            raise DataError(
                f"compute_ess_from_weights: {error}. Give at least two weights, one of them above 0."
            ) from None

    def _adjuster(self, method: str) -> Adjuster:
        session = self._session_state.session
        if session is None:
            raise ConfigError(
                f"{method} adjusts an agent that trains, and {type(self).__name__} has not been trained since it was "
                "made or restored. Call it in adjust_func or in a callback, or after train."
            )
        return session.adjuster
