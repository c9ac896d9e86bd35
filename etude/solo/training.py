"""One call of `train`: episodes until they are done, the criterion is reached, or a callback or signal stops it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from etude.base.events import Collected, Event, Finished, Saved, Warned
from etude.base.interrupt import obeying_signals
from etude.protocols import Weights
from etude.solo.callbacks import Callbacks
from etude.solo.session import Session
from etude.solo.settings import Options
from etude.training.loop import Loop
from etude.training.schedule import Schedule

FOREVER = 2**62  # environment steps: training ends for other reasons


@dataclass
class History:
    """Losses and rewards of all training of an agent. An episode here is one episode of every environment."""

    losses: list[float] = field(default_factory=list)  # of every episode learned from: the mean over its minibatches
    rewards: list[float] = field(default_factory=list)  # of every episode: the mean return over the environments
    seconds: float = 0.0
    best: tuple[int, float] | None = None  # trial_count, and the highest mean over so many episodes that was saved
    files: list[int] = field(default_factory=list)  # the episodes of the files that `max_save_files` keeps
    stop: bool = False  # whether the user asked to stop

    @property
    def episodes(self) -> int:
        """Episodes so far."""
        return len(self.rewards)

    @property
    def logs(self) -> dict[str, float]:
        """The logs of callbacks: the latest loss and reward, where there is one."""
        latest = {"loss": self.losses[-1:], "reward": self.rewards[-1:]}
        return {name: values[0] for name, values in latest.items() if values}


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

    def run(self, episodes: int | None, options: Options) -> str:
        """So many episodes, without end where None. Returns why it ended: "episodes", "criterion", "stopped" (by a
        callback), or "interrupted" (by Ctrl-C, SIGTERM or SIGHUP)."""
        session, learner, history = self._session, self._session.learner, self._history
        learner.configure(options, self._callbacks)
        before, reason, calls = learner.progress.seconds, "", learner.follow_calls
        weights = {} if session.told else learner.engine.weights()
        began = self._gradient_steps = learner.progress.gradient_steps
        history.stop = False
        session.check_alike(episodes=episodes, num_store=options.num_store, callbacks=self._callbacks.want_batches)
        lifecycle = session.open(options)
        loop = Loop(learner, lifecycle, session.overlaps(options), self._save)
        self._callbacks.call("on_train_begin", **history.logs)
        self._callbacks.call("on_episode_begin", 0, **history.logs)
        try:
            with obeying_signals(lambda: self._interrupt(loop), loop.request_save):
                for event in loop.steps(FOREVER, Schedule()):
                    self._callbacks.report(event)
                    if isinstance(event, Collected):
                        self._end_episode(event, loop, episodes)
                    elif isinstance(event, Warned):
                        self._warn(event.message)
                    elif isinstance(event, Finished):
                        reason = event.reason
        except KeyboardInterrupt as error:
            session.leave(error)
            session.abort()  # a second Ctrl-C does not wait for workers
            raise
        except Exception as error:
            session.leave(error)
            raise
        finally:
            session.close()
            history.seconds += learner.progress.seconds - before
        for adjusted in learner.adjusted:  # since the last learning phase
            self._callbacks.report(adjusted)
        learner.adjusted = []
        if learner.progress.gradient_steps == began and session.chief:
            self._warn(learner.why_untrained(self._episode))
        elif not session.told and session.chief:
            self._tell_of_others(weights, learner.follow_calls - calls)
        self._callbacks.call("on_train_end", **history.logs)
        return reason

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

    def _interrupt(self, loop: Loop) -> None:
        """Stop after the episode at hand; several processes agree on that when it ends."""
        if self._session.several:
            self._interrupted = True
        else:
            loop.stop("interrupted")

    def _end_episode(self, event: Collected, loop: Loop, episodes: int | None) -> None:
        """Called when every environment has ended an episode and all of it is learned from."""
        history, learner = self._history, self._session.learner
        history.rewards.append(statistics.mean(end.total for end in event.episodes))
        if learner.progress.gradient_steps > self._gradient_steps:
            assert learner.loss is not None
            self._gradient_steps = learner.progress.gradient_steps
            history.losses.append(learner.loss)
        self._callbacks.call("on_episode_end", self._episode, **history.logs)
        self._episode += 1
        reason = self._session.agreed(self._reason_to_stop(episodes))
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

    def _save(self, kind: str) -> Iterator[Event]:
        return self._saved(True)

    def _saved(self, ending: bool) -> Iterator[Event]:
        written = self._save_if_due(ending)
        if written is not None:
            yield Saved(self._session.learner.progress.step, *written)
