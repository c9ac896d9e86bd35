"""Training of an agent of one's own whose effects are undone."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from etude.solo.agent import SessionState
from etude.solo.callbacks import Callbacks
from etude.solo.engines import load_weights, weights
from etude.solo.session import Session, SessionKey
from etude.solo.settings import Options, StrategyArguments
from etude.solo.training import Training

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class TemporaryTraining:
    """Trains an agent as `train` would go on now. See `temporary`."""

    def __init__(self, agent: Any, session: Session, options: Options):
        self._agent, self._session, self._options = agent, session, options

    def run(self, episodes: int | None, callbacks: Sequence[Any]) -> str:
        """So many episodes, without end where None; returns why it ended (see `Training.run`)."""
        history = self._agent._session_state.history
        own = Callbacks([*self._options.callbacks, *callbacks], self._agent)
        training = Training(self._session, history, own, _save_nothing, _warn)
        return training.run(episodes, self._options)


@contextmanager
def temporary(
    agent: Any, options: Options, strategy: StrategyArguments | None = None, **attributes: Any
) -> Iterator[TemporaryTraining]:
    """Within this context the agent may be trained; afterwards weights, optimizers, replay, generators, counters and
    plain attributes are what they were, bit for bit. No file is written.

    attributes: of the agent within this context, such as another optimizer; training then begins with an empty replay.
    """
    own, before, values = agent._session_state, vars(agent) | plain_attributes(agent), weights(agent)
    others = [(each, plain_attributes(each)) for each in _several(own.settings.explorer)]
    session = initial = None
    try:
        vars(agent).update(attributes)
        state = None if attributes else _continued(agent, options, strategy)
        settings = dataclasses.replace(own.settings, pool_folder=None)
        agent._session_state = SessionState(settings, param=own.param)
        session = agent._session(options, strategy)
        session.told = True
        initial = copy.deepcopy(session.learner.engine.state())
        others += [(each, plain_attributes(each)) for each in _several(agent.optimizer)]
        if state is not None:
            session.restore(copy.deepcopy(state))
        yield TemporaryTraining(agent, session, options)
    finally:
        vars(agent).clear()
        vars(agent).update(before)
        if session is not None and initial is not None:
            session.learner.engine.restore(initial)
            load_weights(agent, values)  # an engine moves generators of random numbers when it is made
            session.learner.buffer.close()
        for each, plain in others:
            vars(each).update(plain)


def _continued(agent: Any, options: Options, strategy: StrategyArguments | None) -> dict[str, Any] | None:
    """The state that `train` would continue from; None where it would begin anew."""
    own = agent._session_state
    settings = own.settings if strategy is None else strategy.applied(own.settings)
    key = SessionKey.of(agent, settings, options, None if strategy is None else strategy.strategy)
    if own.session is None or own.key != key:
        return own.pending
    return own.session.state(replay=settings.pool_folder is None)


def _several(given: Any) -> list[Any]:
    """One, several, or None as a list."""
    return list(given) if isinstance(given, list | tuple) else [] if given is None else [given]


def plain_attributes(each: Any) -> dict[str, Any]:
    """Attributes that are plain data, in copies, as they may be changed in place."""
    return {name: copy.deepcopy(value) for name, value in vars(each).items() if _plain(value)}


def _plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_plain(part) for part in (*value, *value.values()))
    if isinstance(value, list | tuple | set):
        return all(map(_plain, value))
    return isinstance(value, _PLAIN) or type(value).__module__.partition(".")[0] == "numpy"


def _save_nothing(ending: bool) -> None:
    return None


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=2)
