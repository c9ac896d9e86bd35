"""What an agent's training leaves behind when it ends."""

from types import SimpleNamespace

import numpy as np
import pytest

from etude.base.data import INITIAL_VERSION
from etude.base.errors import EnvironmentFault
from etude.base.seeding import generator, generator_state
from etude.base.spaces import Box, Discrete, Spaces
from etude.explore import Greedy
from etude.solo.session import Session
from etude.solo.settings import Options, Settings, replay_kind_of

SPACES = Spaces(Box(-1, 1, (2,), np.float32), Discrete(2))


class Hanging:
    """A rollout that is asked for its state, and does not get to answer."""

    def __init__(self, problem):
        self.problem, self.closed = problem, False

    def load(self, weights, version): ...

    def restore(self, state):
        return []

    def state(self):
        if self.problem is not None:
            raise self.problem
        column = {"generator": generator_state(generator(0, "explore", 0))}
        return {"environments": [column]}

    def warnings(self):
        return []

    def close(self):
        self.closed = True


def opened(problem, monkeypatch):
    """A session that has begun to collect, and its rollout."""
    engine = SimpleNamespace(spaces=SPACES, exportable=True, share=lambda busy: None)
    session = Session(None, Greedy(), SimpleNamespace(engine=engine, count=1), None, 0)
    rollout = Hanging(problem)
    monkeypatch.setattr(session, "_rollout", lambda options, explorer: rollout)
    session.open(Options()).open(10, {}, INITIAL_VERSION)
    return session, rollout


def test_an_interrupt_while_a_worker_is_waited_for_leaves_nothing_open(monkeypatch):
    session, rollout = opened(KeyboardInterrupt(), monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        session.collection.close()
    assert rollout.closed
    session.collection.close()
    again = Hanging(None)
    monkeypatch.setattr(session, "_rollout", lambda options, explorer: again)
    session.open(Options()).open(10, {}, INITIAL_VERSION)
    session.collection.close()
    assert again.closed


def test_a_worker_that_fails_at_the_end_leaves_nothing_open(monkeypatch):
    session, rollout = opened(EnvironmentFault("it failed again and again"), monkeypatch)
    session.collection.close()
    assert rollout.closed


def test_who_gives_up_asks_no_worker(monkeypatch):
    session, rollout = opened(AssertionError("asked"), monkeypatch)
    session.collection.give_up()
    session.collection.close()
    assert rollout.closed


@pytest.mark.parametrize(("PPO", "PR"), [(False, False), (False, True), (True, False), (True, True)])
def test_workers_may_act_with_older_weights_off_policy_only(PPO, PR):
    engine = SimpleNamespace(spaces=SPACES, exportable=True)
    replay_kind = replay_kind_of(Settings(PPO=PPO, PR=PR, update_steps=1))
    session = Session(None, Greedy(), SimpleNamespace(engine=engine, count=2, replay_kind=replay_kind), None, 0)
    assert session.overlaps(Options(processes=2)) is not PPO
