"""One call of `train`: episodes until they are done, the criterion is reached, or a callback or signal stops it; and
training whose effects are undone."""

from __future__ import annotations

import copy
import dataclasses
import statistics
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from etude.base.errors import ConfigError, EtudeError, NumericalError
from etude.base.events import Collected, Event, Finished, Saved, Warned
from etude.base.interrupt import obeying_signals
from etude.protocols import ProcessGroup, Weights
from etude.solo.callbacks import Callbacks, EndTraining
from etude.solo.engines import load_weights, weights
from etude.solo.session import History, Session, SessionKey, SessionState, state_of
from etude.solo.settings import Options, StrategyArguments, options_from
from etude.training.loop import Loop
from etude.training.schedule import Schedule

FOREVER = 2**62  # environment steps: training ends for other reasons


class Training:
    """Runs the loop for one call of `train`.

    save_if_due: writes a checkpoint where one is due, and returns its path and kind; called after every episode, and
        with True when training ends.
    warn: takes warnings for the user.
    follows: whether the agent has an `update_param` of its own.
    """

    def __init__(
        self,
        session: Session,
        history: History,
        callbacks: Callbacks,
        save_if_due: Callable[[bool], tuple[str, str] | None],
        warn: Callable[[str], None],
        follows: bool = False,
    ):
        self._session, self._history, self._callbacks = session, history, callbacks
        self._save_if_due, self._warn, self._follows = save_if_due, warn, follows
        self._episode, self._gradient_steps = 0, 0
        self._interrupted = False  # by a signal, in this process

    def run(self, episodes: int | None, options: Options) -> None:
        """So many episodes, without end where None. KeyboardInterrupt, once all is saved, where a signal ended it."""
        session, learner, history = self._session, self._session.learner, self._history
        learner.configure(options, self._callbacks)
        before, calls = learner.progress.seconds, learner.follow_calls
        weights = {} if session.told else learner.engine.weights()
        began = self._gradient_steps = learner.progress.gradient_steps
        history.stop = False
        wanted = {"episodes": episodes, "num_store": options.num_store, "callbacks": self._callbacks.want_batches}
        if session.group is not None:
            _check_alike(session, session.group, wanted)
        collection = session.open(options)
        loop = Loop(learner, collection, session.overlaps(options), lambda kind: self._saved(True))

        def interrupt() -> None:
            """Stop after the episode at hand; several processes agree on that when it ends."""
            self._interrupted = True
            if session.group is None:
                loop.stop("interrupted")

        self._callbacks.call("on_train_begin", **history.logs)
        self._callbacks.call("on_episode_begin", 0, **history.logs)
        try:
            with obeying_signals(interrupt, loop.request_save):
                for event in loop.steps(FOREVER, Schedule()):
                    self._callbacks.report(event)
                    if isinstance(event, Collected):
                        self._end_episode(event, loop, episodes)
                    elif isinstance(event, Warned):
                        self._warn(event.message)
                    elif isinstance(event, Finished):
                        self._interrupted = event.reason == "interrupted"  # in any of the processes
        except (KeyboardInterrupt, Exception) as error:
            computed = isinstance(error, NumericalError | EndTraining)  # from what all processes have
            in_all = computed or (isinstance(error, EtudeError) and error.in_all_processes)
            if session.group is not None and not in_all:
                session.group.leave(f"{type(error).__name__}: {error}")
            if isinstance(error, KeyboardInterrupt):
                session.collection.give_up()  # a second Ctrl-C does not wait for workers
            raise
        finally:
            session.collection.close()
            history.seconds += learner.progress.seconds - before
        for adjusted in learner.adjusted:  # since the last learning phase
            self._callbacks.report(adjusted)
        learner.adjusted = []
        if learner.progress.gradient_steps == began and session.chief:
            self._warn(learner.why_untrained(self._episode))
        elif not session.told and session.chief:
            self._tell_of_others(weights, learner.follow_calls - calls)
        self._callbacks.call("on_train_end", **history.logs)
        if self._interrupted:
            raise KeyboardInterrupt(f"train was interrupted after {self._episode} episodes. Call it again to go on.")

    def _tell_of_others(self, before: Weights, calls: int) -> None:
        """Warn once of networks that neither a loss nor `update_param` has changed in this call of `train`."""
        session, engine, follows = self._session, self._session.learner.engine, self._follows
        if session.learner.settings.follows_each_step:
            calls = self._gradient_steps
        if not calls and follows:
            return
        session.told = True
        if (told := engine.left_alone(before, calls if follows else 0)) is not None:
            self._warn(told)

    def _end_episode(self, event: Collected, loop: Loop, episodes: int | None) -> None:
        """Called when every environment has ended an episode and all of it is learned from."""
        history, learner, group = self._history, self._session.learner, self._session.group
        history.rewards.append(statistics.mean(end.total for end in event.episodes))
        if learner.progress.gradient_steps > self._gradient_steps:
            assert learner.loss is not None
            self._gradient_steps = learner.progress.gradient_steps
            history.losses.append(learner.loss)
        self._callbacks.call("on_episode_end", self._episode, **history.logs)
        self._episode += 1
        reason = self._reason_to_stop(episodes)
        if group is not None:  # that any of the processes has
            reasons = group.gather("reasons to stop", reason)
            reason = next((found for found in reasons if found is not None), None)
        if reason is None:
            for saved in self._saved(False):
                self._callbacks.report(saved)
            self._callbacks.call("on_episode_begin", self._episode, **history.logs)
        else:
            loop.stop(reason)

    def _reason_to_stop(self, episodes: int | None) -> str | None:
        settings, rewards = self._session.learner.settings, self._history.rewards
        if self._interrupted:
            return "interrupted"
        if self._history.stop:
            return "stopped"
        recent = rewards[-(settings.trial_count or 1) :]
        full = len(recent) == settings.trial_count
        if settings.criterion is not None and full and statistics.mean(recent) >= settings.criterion:
            return "criterion"
        return "episodes" if self._episode == episodes else None

    def _saved(self, ending: bool) -> Iterator[Event]:
        written = self._save_if_due(ending)
        if written is not None:
            yield Saved(self._session.learner.progress.step, *written)


def _check_alike(session: Session, group: ProcessGroup, wanted: dict[str, Any]) -> None:
    """Raise ConfigError where the processes that train the agent do not begin with the same."""
    learner = session.learner
    plain = {k: v for k, v in vars(learner.settings).items() if isinstance(v, int | float | str | None)}
    own = {"agent": type(learner.engine.agent).__name__, "seed": session.seed, **plain, **wanted}
    own |= {"environments": learner.count, "episodes so far": learner.progress.episodes}
    chief, *others = group.gather("settings", own)
    for rank, other in enumerate(others, 1):
        for name in own:
            if other[name] != chief[name]:
                raise ConfigError(
                    f"The workers of a cluster train one agent; {name} is {chief[name]!r} in worker 0 and "
                    f"{other[name]!r} in worker {rank}. Start the same program everywhere, and restore the same file."
                )


_PLAIN = (bool, int, float, complex, str, bytes, type(None))
Train = Callable[[int | None, Sequence[Any]], None]  # episodes and callbacks


@contextmanager
def temporary(agent: Any, named: dict[str, Any], strategy: Any = None, **attributes: Any) -> Iterator[Train]:
    """Within this context the agent may be trained, as `train` with these options would go on now, by what it gives;
    afterwards weights, optimizers, replay, generators, counters and plain attributes are what they were, bit for bit.
    No file is written.

    attributes: of the agent within this context, such as another optimizer; training then begins with an empty replay.
    """
    given = None if strategy is None else StrategyArguments(strategy)
    options = options_from(agent, named)
    own, before, values = state_of(agent), vars(agent) | plain_attributes(agent), weights(agent)
    others = [(each, plain_attributes(each)) for each in _several(own.settings.explorer)]
    session: Any = None
    initial = None

    def train(episodes: int | None, callbacks: Sequence[Any]) -> None:
        called = Callbacks([*options.callbacks, *callbacks], agent)
        training = Training(session, state_of(agent).history, called, lambda ending: None, warnings.warn)
        training.run(episodes, options)

    try:
        vars(agent).update(attributes)
        state = None if attributes else _continued(agent, options, given)
        settings = dataclasses.replace(own.settings, pool_folder=None)
        agent._session_state = SessionState(settings, param=own.param)
        session = agent._session(options, given)
        session.told = True
        initial = copy.deepcopy(session.learner.engine.state())
        others += [(each, plain_attributes(each)) for each in _several(agent.optimizer)]
        if state is not None:
            session.restore(copy.deepcopy(state))
        yield train
    finally:
        vars(agent).clear()
        vars(agent).update(before)
        if session is not None and initial is not None:
            session.learner.engine.restore(initial)
            load_weights(agent, values)  # an engine moves generators of random numbers when it is made
            session.learner.buffer.close()
        for each, plain in others:
            vars(each).update(plain)


def _continued(agent: Any, options: Options, given: StrategyArguments | None) -> dict[str, Any] | None:
    """The state that `train` would continue from; None where it would begin anew."""
    own, key = state_of(agent), SessionKey.of(agent, options, given)
    if own.session is None or own.key != key:
        return own.pending
    return own.session.state(replay=key.settings.pool_folder is None)


def _several(given: Any) -> list[Any]:
    """One, several, or None as a list."""
    return list(given) if isinstance(given, list | tuple) else [] if given is None else [given]


def plain_attributes(each: Any) -> dict[str, Any]:
    """Attributes that are plain data, in copies, as they may be changed in place."""

    def plain(value: Any) -> bool:
        if isinstance(value, dict):
            return all(plain(part) for part in (*value, *value.values()))
        if isinstance(value, list | tuple | set):
            return all(map(plain, value))
        return isinstance(value, _PLAIN) or type(value).__module__.partition(".")[0] == "numpy"

    return {name: copy.deepcopy(value) for name, value in vars(each).items() if plain(value)}
