"""One call of `train`: rounds of episodes until they are done, the criterion is reached, or someone says stop."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from etude.base.events import Collected, Event, Finished, Warned
from etude.base.interrupt import obeying_signals
from etude.solo.callbacks import Callbacks
from etude.solo.options import Options
from etude.solo.session import Session
from etude.training.loop import Loop
from etude.training.schedule import Schedule

FOREVER = 2**62  # environment steps: training ends for other reasons


@dataclass
class Record:
    """What an agent tells about all of its training."""

    losses: list[float] = field(default_factory=list)  # of every round that learned: the mean over its minibatches
    rewards: list[float] = field(default_factory=list)  # of every round: the mean return of its episodes
    seconds: float = 0.0
    stop: bool = False  # whether the user asked to stop

    @property
    def episodes(self) -> int:
        """Rounds so far: one episode of every environment each."""
        return len(self.rewards)

    @property
    def logs(self) -> dict[str, float]:
        """What callbacks are told: the latest of each, where there is one."""
        latest = {"loss": self.losses[-1:], "reward": self.rewards[-1:]}
        return {name: values[0] for name, values in latest.items() if values}


class Training:
    """Plays and learns.

    keep: writes a checkpoint where one is due; called after every round, and with True when training ends.
    warn: tells the user what they should know.
    """

    def __init__(
        self,
        session: Session,
        record: Record,
        callbacks: Callbacks,
        keep: Callable[[bool], None],
        warn: Callable[[str], None],
    ):
        self._session, self._record, self._callbacks, self._keep, self._warn = session, record, callbacks, keep, warn
        self._round, self._learned = 0, 0

    def run(self, episodes: int | None, options: Options) -> str:
        """So many rounds, without end where None. Returns why it ended: "episodes", "criterion", "stopped" (by a
        callback), or "interrupted" (by Ctrl-C, SIGTERM or SIGHUP)."""
        session, learner, record = self._session, self._session.learner, self._record
        learner.follow(options, self._callbacks)
        before, reason = learner.progress.seconds, ""
        record.stop, self._learned = False, learner.progress.gradient_steps
        collection = session.open(options)
        loop = Loop(learner, collection, session.overlaps(options), self._save)
        self._callbacks.call("on_train_begin", **record.logs)
        self._callbacks.call("on_episode_begin", 0, **record.logs)
        try:
            with obeying_signals(lambda: loop.stop("interrupted"), loop.request_save):
                for event in loop.steps(FOREVER, Schedule()):
                    if isinstance(event, Collected):
                        self._end_round(event, loop, episodes)
                    elif isinstance(event, Warned):
                        self._warn(event.message)
                    elif isinstance(event, Finished):
                        reason = event.reason
        except KeyboardInterrupt:
            session.give_up()  # whoever asks twice does not want to wait for a worker
            raise
        finally:
            session.close()
            record.seconds += learner.progress.seconds - before
        self._callbacks.call("on_train_end", **record.logs)
        return reason

    def _end_round(self, event: Collected, loop: Loop, episodes: int | None) -> None:
        """What follows a round: nothing of it is left to be learned."""
        record, learner = self._record, self._session.learner
        record.rewards.append(statistics.mean(end.total for end in event.episodes))
        if learner.progress.gradient_steps > self._learned:
            assert learner.loss is not None
            self._learned = learner.progress.gradient_steps
            record.losses.append(learner.loss)
        self._callbacks.call("on_episode_end", self._round, **record.logs)
        self._round += 1
        reason = self._reason_to_stop(episodes)
        if reason is None:
            self._keep(False)
            self._callbacks.call("on_episode_begin", self._round, **record.logs)
        else:
            loop.stop(reason)

    def _reason_to_stop(self, episodes: int | None) -> str | None:
        settings, rewards = self._session.learner.settings, self._record.rewards
        if self._record.stop:
            return "stopped"
        recent = rewards[-(settings.trial_count or 1) :]
        full = len(recent) == settings.trial_count
        if settings.criterion is not None and full and statistics.mean(recent) >= settings.criterion:
            return "criterion"
        return "episodes" if self._round == episodes else None

    def _save(self, kind: str) -> Iterator[Event]:
        self._keep(True)
        return iter(())
