"""What users add to a run: callbacks, which are functions of an event, such as reporters, or objects with a method for
each kind of event; and custom metrics, which are functions of collected steps."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from etude.base.data import EpisodeEnd, Steps, info_extra
from etude.base.errors import CallbackError, ConfigError
from etude.base.events import (
    Collected,
    Estimated,
    Evaluated,
    Event,
    Finished,
    Learned,
    Saved,
    Started,
    Warned,
    WorkerReplaced,
)
from etude.envs.faults import explain_error

METHODS: dict[type, str] = {
    Started: "on_train_begin",
    Collected: "on_steps_collected",
    Learned: "on_update",
    Evaluated: "on_evaluation",
    Estimated: "on_estimate",
    Saved: "on_save",
    WorkerReplaced: "on_worker_replaced",
    Finished: "on_train_end",
}
EPISODE = "on_episode_end"


class Callback:
    """The base of callbacks with state: override what you need. `run` is the `Run` that trains.

    A callback may read and change the run (`run.learner`, `run.engine`, `run.metric(...)`), evaluate it, save it, and
    stop it: `run.stop()` ends it after the step at hand. None is called per environment step: `on_steps_collected` gets
    all steps that were collected since the last call as arrays.
    """

    def on_train_begin(self, run: Any, event: Started) -> None:
        """Before the first step of a call of `train`."""

    def on_steps_collected(self, run: Any, event: Collected) -> None:
        """After steps were collected and, where an update was due, learned from. `event.steps` are read-only arrays,
        valid during the call."""

    def on_episode_end(self, run: Any, episode: EpisodeEnd) -> None:
        """For each training episode that ended, after `on_steps_collected`."""

    def on_update(self, run: Any, event: Learned) -> None:
        """After a learning phase, with its losses and metrics."""

    def on_evaluation(self, run: Any, event: Evaluated) -> None:
        """After an evaluation."""

    def on_estimate(self, run: Any, event: Estimated) -> None:
        """After the policy was estimated from recorded episodes."""

    def on_save(self, run: Any, event: Saved) -> None:
        """After a checkpoint was written."""

    def on_worker_replaced(self, run: Any, event: WorkerReplaced) -> None:
        """After a worker process died or hung and was replaced."""

    def on_train_end(self, run: Any, event: Finished) -> None:
        """After the last step, its evaluation and its checkpoint."""


def stopped_by(error: Exception, run: Any) -> Exception:
    """What ends the run where this ended its loop. For a CallbackError the exception that a user's function raised,
    with a note on which it was and how to go on; where it returned what it must not, an error that says both."""
    if not isinstance(error, CallbackError):
        return error
    text, ending = _with_way_on(str(error), run), error.raised
    if ending is None:
        ending = CallbackError(text)
    else:
        ending.add_note(text)
    ending.in_all_processes = error.in_all_processes  # type: ignore[attr-defined]
    return ending


def _with_way_on(text: str, run: Any) -> str:
    path = run.directory and str(run.directory.path)
    again = "It can go on: run.train." if path is None else f"It is saved: etude.load({path!r}) continues it."
    return f"{text} The run stopped. {again}"


def as_list(callbacks: Any) -> list[Any]:
    """One callback, or an iterable of them, as a list."""
    several = isinstance(callbacks, Iterable) and not isinstance(callbacks, str) and not callable(callbacks)
    return list(callbacks) if several else [callbacks]


class CallbackList:
    """Calls the callbacks of a run with events. One that cannot write (OSError: a full disk) costs a warning, once, and
    not the run; one that raises anything else is not called again."""

    def __init__(self, callbacks: Iterable[Any], run: Any):
        """Raises ConfigError for what is no callback."""
        self._run, self._called = run, [_Called(each, run) for each in callbacks]

    def __call__(self, event: Event) -> None:
        """Call every callback with the event, and with the warning about one that cannot write. What one raises is
        raised, with a note on which it was."""
        for called in self._called:
            if called.failed:
                continue
            try:
                called.function(event)
            except OSError as error:
                if not called.warned:
                    called.warned = True
                    text = f"{called.name} cannot write: {error}. The run goes on without its records."
                    self(Warned(event.step, text))
            except Exception as error:
                called.failed = True
                where = f"at step {event.step:,}, on {type(event).__name__}"
                error.add_note(
                    _with_way_on(f"Callback {called.name} raised {explain_error(error)} {where}.", self._run)
                )
                raise

    def after_failure(self, events: Iterable[Event]) -> None:
        """The events of a checkpoint that is written because one of these callbacks failed, to the others."""
        if any(called.failed for called in self._called):
            for event in events:
                with contextlib.suppress(Exception):
                    self(event)


class _Called:
    """One callback as a function of an event."""

    def __init__(self, callback: Any, run: Any):
        self.name = getattr(callback, "__name__", type(callback).__name__)
        self.warned = self.failed = False
        self.function: Callable[[Event], None]
        if isinstance(callback, Callback):
            self.function = _by_method(callback, run)
        elif isinstance(callback, type):
            raise ConfigError(f"callbacks: {callback.__name__} is a class; make one: {callback.__name__}().")
        elif callable(callback):
            self.function = callback
        else:
            raise ConfigError(
                f"callbacks = {callback!r}; expected a reporter, or a list of them: callables that get every event, "
                "such as etude.report.Progress(), or objects of classes derived from etude.Callback."
            )


def _by_method(callback: Callback, run: Any) -> Callable[[Event], None]:
    """Calls the methods that a callback overrides. ConfigError for a method `on_...` that nothing calls."""
    kind = type(callback)
    known = {*METHODS.values(), EPISODE}
    if unknown := sorted(name for name in dir(kind) if name.startswith("on_") and name not in known):
        raise ConfigError(
            f"{kind.__name__} has {', '.join(unknown)}, which a run does not call. It calls {', '.join(sorted(known))}."
        )
    methods = {of: method for of, name in METHODS.items() if (method := _overridden(callback, name)) is not None}
    each = _overridden(callback, EPISODE)

    def call(event: Event) -> None:
        method = methods.get(type(event))
        if method is not None:
            method(run, event)
        if each is not None and isinstance(event, Collected):
            for episode in event.episodes:
                each(run, episode)

    return call


def _overridden(callback: Callback, name: str) -> Callable[..., None] | None:
    """A method of a callback; None where it is that of the base class, which does nothing."""
    method = getattr(callback, name)
    return None if getattr(method, "__func__", method) is getattr(Callback, name) else method


Metric = Callable[[Steps], Any]
RESERVED = ("ep_len", "ep_rew", "episodes")  # names under `rollout/` that are taken


class Metrics:
    """The metrics of collected steps, by name.

    kept: names of numbers of `info` that travel with the steps. Each is a metric: its value at the last step of each
    episode that ended, so that the mean of a flag such as `success` is the rate of success.
    """

    def __init__(self, kept: Iterable[str]):
        self.functions: dict[str, Metric] = {name: functools.partial(_at_episode_end, name) for name in kept}

    def set(self, name: str, function: Metric | None) -> None:
        """Add a metric, replace the one of this name, or remove it (None). ConfigError for what is none."""
        if not isinstance(name, str) or not name.strip() or name != name.strip() or name in RESERVED:
            raise ConfigError(
                f"metric name = {name!r}; expected a text such as 'pole_angle', other than {', '.join(RESERVED)}."
            )
        if function is None:
            if name not in self.functions:
                known = ", ".join(self.functions) or "none"
                raise ConfigError(f"There is no metric {name!r} to remove; the run has: {known}.")
            del self.functions[name]
        elif callable(function):
            self.functions[name] = function
        else:
            raise ConfigError(
                f"metric {name!r} = {function!r}; expected a function of steps, or None to remove the metric."
            )

    def __call__(self, parts: tuple[Steps, ...], step: int) -> dict[str, np.ndarray]:
        """The values of all metrics, [V] float64 each, without NaN; only of those that have any. step: of the run.

        Raises CallbackError where a function raises, or returns something else than `Run.metric` says.
        """
        found = {}
        for name, function in self.functions.items():
            values = [_values(name, function, steps, step) for steps in parts]
            joined = values[0] if len(values) == 1 else np.concatenate(values)
            if joined.size:
                found[name] = joined
        return found


def _at_episode_end(name: str, steps: Steps) -> np.ndarray:
    """A kept number of `info` at the last step of each episode."""
    kept = steps.extras.get(info_extra(name))  # missing in steps that a run without it had collected ahead
    return np.empty(0) if kept is None else kept[steps.final_index[:, 0], steps.final_index[:, 1]]


def _values(name: str, function: Metric, steps: Steps, step: int) -> np.ndarray:
    try:
        result = function(steps)
    except Exception as error:
        raise CallbackError(f"Metric {name!r} raised {explain_error(error)} at step {step:,}.", error) from None
    try:
        array = None if result is None else np.asarray(result, np.float64)
    except (TypeError, ValueError):
        array = None
    ended = len(steps.final_index)
    if array is None or array.shape not in ((), steps.shape, (ended,)):
        got = f"shape {array.shape}" if array is not None else f"{str(result)[:80]}, a {type(result).__name__}"
        raise CallbackError(
            f"Metric {name!r} returned {got} at step {step:,}; expected a number, an array [T, N] = {steps.shape}, or "
            f"one number for each of the {ended} episodes that ended: ({ended},)."
        )
    array = array.reshape(-1)
    return array[~np.isnan(array)]
