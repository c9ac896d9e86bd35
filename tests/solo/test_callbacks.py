"""Who is called when an agent trains."""

import pytest

from etude.base.errors import ConfigError
from etude.base.events import Learned, Saved, Warned, WorkerReplaced
from etude.solo.callbacks import Callback, Callbacks, LambdaCallback


class Noting(Callback):
    def __init__(self):
        self.heard = []

    def on_episode_end(self, episode, logs):
        self.heard.append((episode, dict(logs)))


def test_a_callback_hears_what_it_overrides_and_knows_the_agent():
    noting = Noting()
    callbacks = Callbacks([noting], "the agent")
    callbacks.call("on_episode_begin", 0)
    callbacks.call("on_episode_end", 3, loss=0.5, reward=7.0)
    assert noting.heard == [(3, {"loss": 0.5, "reward": 7.0})]
    assert noting.agent == "the agent"


def test_functions_make_a_callback():
    heard = []
    made = LambdaCallback(on_train_begin=heard.append, on_batch_end=lambda batch, logs: heard.append(batch))
    callbacks = Callbacks([made], None)
    callbacks.call("on_train_begin")
    callbacks.call("on_batch_end", 4, loss=1.0)
    assert heard == [{}, 4]


def test_minibatches_are_told_one_by_one_only_where_someone_listens():
    assert not Callbacks([Noting()], None).want_batches
    assert Callbacks([LambdaCallback(on_batch_begin=lambda batch, logs: None)], None).want_batches


def test_an_object_with_some_of_the_methods_is_a_callback():
    class Plain:
        def __init__(self):
            self.ended = False

        def on_train_end(self, logs):
            self.ended = True

    plain = Plain()
    Callbacks([plain], None).call("on_train_end")
    assert plain.ended


def test_events_reach_the_methods_of_their_kind():
    heard = []

    class Listening(Callback):
        def on_update(self, event):
            heard.append(("update", event.gradient_steps))

        def on_save(self, event):
            heard.append(("save", event.path))

    callbacks = Callbacks([Listening(), LambdaCallback(on_worker_replaced=heard.append)], None)
    replaced = WorkerReplaced(7, 1, (2, 3), "exited with code 1")
    for event in (Learned(5, 4, {"loss": 1.0}, {}, 0.1), Saved(6, "here", "last"), replaced, Warned(7, "worker 1")):
        callbacks.report(event)
    assert heard == [("update", 4), ("save", "here"), replaced]


def test_what_is_no_callback_is_refused():
    with pytest.raises(ConfigError, match="int is no callback"):
        Callbacks([3], None)
    with pytest.raises(ConfigError, match="on_epoch_end"):
        LambdaCallback(on_epoch_end=print)
