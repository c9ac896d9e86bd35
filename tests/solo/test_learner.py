"""When episodes are learned from, and when target networks follow: with an engine that only notes what it is asked."""

import dataclasses

import numpy as np
import pytest
from invariants import check_ring

from etude.base.data import EpisodeEnd, Steps, Update
from etude.base.seeding import generator
from etude.base.spaces import Box, Discrete, Spaces
from etude.explore import EpsGreedyQPolicy
from etude.replay import Buffer, OneStep, Ring
from etude.solo.callbacks import Callbacks, LambdaCallback
from etude.solo.learner import EpisodeLearner
from etude.solo.settings import Options, Settings, replay_kind_of

SPACES = Spaces(Box(-1, 1, (2,)), Discrete(2))


class NotingEngine:
    """Notes minibatches and updates of targets, in order."""

    def __init__(self):
        self.heard = []
        self.seen = []
        self.error = None  # that is reported for every example

    def learn(self, batches, hyper):
        k, n = batches.weight.shape
        self.heard += [f"learn {n}"] * k
        self.seen.append(batches.index)
        error = None if self.error is None else np.full((k, n), self.error, np.float32)
        return Update({"loss": 1.0}, {}, error, k, error)

    def update_param(self):
        self.heard.append("target")


def learner(environments=1, rows=100, **settings):
    made = Settings(policy=EpsGreedyQPolicy(), **{"batch": 4, "pool_size": 100, **settings})
    replay_kind, ring = replay_kind_of(made), Ring(SPACES, rows, environments)
    buffer = Buffer(ring, replay_kind.selector(ring.rows), OneStep(0.9), generator(0, "test"))
    hyper = lambda: {"gamma": 0.9}  # noqa: E731
    return EpisodeLearner(made, replay_kind, NotingEngine(), buffer, environments, hyper, generator(0, "spread"))


def episode(length, column=0):
    ended = np.arange(length)[:, None] == length - 1
    return Steps(
        observation=np.zeros((length, 1, 2), np.float32),
        action=np.zeros((length, 1), np.int64),
        reward=np.ones((length, 1), np.float32),
        terminated=ended,
        truncated=np.zeros((length, 1), bool),
        next_observation=np.zeros((1, 2), np.float32),
        final_observation=np.zeros((1, 2), np.float32),
        final_index=np.array([[length - 1, 0]]),
        columns=np.array([column]),
        restarted=np.zeros(1, bool),
        episodes=(EpisodeEnd(column, 0, length, float(length), False),),
    )


def play(learner, *lengths):
    """Rounds of one episode each; what the engine heard in each round."""
    rounds = []
    for length in lengths:
        learner.engine.heard = []
        learner.take(episode(length))
        learner.learn_if_due()
        rounds.append(learner.engine.heard)
    return rounds


def test_nothing_is_learned_before_the_pool_holds_a_batch():
    first, second = play(learner(num_updates=2, update_batches=100), 3, 1)
    assert first == []
    assert second == ["learn 4", "learn 4"]


def test_without_num_updates_a_phase_is_one_shuffled_pass_over_the_pool():
    made = learner(update_batches=1_000)
    assert play(made, 22) == [["learn 4"] * 5]
    seen = np.concatenate([index.ravel() for index in made.engine.seen])
    assert len(seen) == len(set(seen.tolist())) == 20


def test_targets_follow_every_so_many_minibatches_also_across_episodes():
    first, second = play(learner(num_updates=3, update_batches=2), 8, 8)
    assert first == ["learn 4"] * 2 + ["learn 4", "target"] or first.count("target") == 1
    assert (first + second).count("target") == 3


def test_targets_follow_every_so_many_environment_steps_spread_over_the_minibatches():
    (heard,) = play(learner(num_updates=4, update_steps=10), 25)
    assert heard == ["learn 4", "learn 4", "target", "learn 4", "learn 4", "target"]
    made = learner(num_updates=4, update_steps=10)
    assert [each.count("target") for each in play(made, 25, 4, 1)] == [2, 0, 1]


@pytest.mark.parametrize("every", ["update_steps", "update_batches"])
def test_targets_that_are_to_follow_more_often_owe_no_updates_for_the_time_before(every):
    seldom, often = learner(num_updates=10, **{every: 50}), learner(num_updates=10, **{every: 5})
    often.engine.restore, seldom.engine.state = lambda state: None, dict
    play(seldom, *[10] * 31)  # 310 steps, and as many minibatches
    often.restore(seldom.state(replay=True))
    assert [heard.count("target") for heard in play(often, 10, 10, 10)] == [2, 2, 2]


def test_targets_follow_after_a_resumption_between_two_phases_as_they_would_have_without_it():
    given = {"num_updates": 2, "update_steps": 10}
    whole, again = learner(**given), learner(**given)
    whole.engine.state, again.engine.restore = dict, lambda state: None
    for made in (whole, again):
        made.configure(Options(num_store=3), Callbacks([], None))
    play(whole, 10, 10, 10, 10)
    again.restore(whole.state(replay=True))
    found = play(again, 10, 10)
    assert found == play(whole, 10, 10)
    assert found[1].count("target") == 3


def test_on_policy_the_pool_is_emptied_when_the_old_policy_follows():
    made = learner(PPO=True, update_steps=10)
    first, second = play(made, 8, 8)
    assert "target" not in first
    assert second[-1] == "target" and second.count("target") == 1
    assert len(made.buffer) == 0


@pytest.mark.parametrize("PR", [False, True])
def test_on_policy_an_update_that_is_due_before_the_pool_holds_a_batch_waits_for_it(PR):
    made = learner(PPO=True, PR=PR, update_steps=4, batch=12, num_updates=1)
    made.engine.error = 1.0
    rounds = play(made, 5, 5, 5, 5)
    phase = ["learn 12", "target"]
    assert rounds == [[], [], phase, phase if PR else []]
    assert len(made.buffer) == (6 if PR else 5), "emptied, or cut to the newer half, after it was learned from"


def test_several_collections_may_make_one_phase():
    made = learner(num_updates=1, update_batches=100)
    made.configure(Options(num_store=3), Callbacks([], None))
    assert [len(heard) for heard in play(made, 8, 8, 8, 8, 8, 8)] == [0, 0, 1, 0, 0, 1]


def test_who_listens_to_minibatches_hears_each_before_and_after():
    heard = []
    listening = LambdaCallback(
        on_batch_begin=lambda batch, logs: heard.append(("begin", batch)),
        on_batch_end=lambda batch, logs: heard.append(("end", batch, logs["loss"])),
    )
    made = learner(num_updates=2, update_batches=100)
    made.configure(Options(), Callbacks([listening], None))
    play(made, 8)
    assert heard == [("begin", 0), ("end", 0, 1.0), ("begin", 1), ("end", 1, 1.0)]


def draws_of_the_newest(errors, newest, batches, size, seed):
    """How often the newest rows are drawn where each minibatch is drawn by the errors that those before reported."""
    rng, errors, drawn = np.random.default_rng(seed), errors.copy(), 0
    for _ in range(batches):
        priority = (errors + 1e-6) ** 0.7
        rows = rng.choice(len(errors), size, p=priority / priority.sum())
        drawn += int((rows >= len(errors) - newest).sum())
        errors[rows] = errors.min()
    return drawn


def do_nothing(batch, logs):
    """A callback that listens to every minibatch."""


@pytest.mark.parametrize("watched", [False, True])
def test_each_minibatch_is_drawn_by_the_errors_that_the_ones_before_reported(watched):
    made = learner(PR=True, pool_size=1_000, batch=64, num_updates=64, update_batches=1_000, rows=1_000)
    made.configure(Options(), Callbacks([LambdaCallback(on_batch_end=do_nothing)] * watched, None))
    made.take(episode(980))
    stored, small = np.arange(980), np.float32(1 / 57)
    made.buffer.selector.update(stored, np.ones(980))
    made.buffer.selector.update(stored, np.full(980, small))
    made.engine.error = small
    play(made, 20)
    drawn = sum(int((index >= 980).sum()) for index in made.engine.seen)
    by_hand = np.mean([draws_of_the_newest(np.r_[np.full(980, small), np.ones(20)], 20, 64, 64, i) for i in range(9)])
    assert 80 < by_hand < 160, "by the errors from before the phase alone they are a quarter of the 4,096 draws"
    assert drawn == pytest.approx(by_hand, rel=0.3)


class Shuffling(OneStep):
    """Draws random numbers in two steps for all minibatches of a call, as views do that choose rows themselves."""

    def __init__(self):
        super().__init__(0.9)
        self.rng = np.random.default_rng(0)

    def __call__(self, ring, rows, weight):
        first, second = self.rng.random(rows.shape), self.rng.integers(0, len(ring), rows.shape)
        return super().__call__(ring, np.where(first < 0.5, rows, ring.locate(second)), weight)


@pytest.mark.parametrize("PR", [False, True])
def test_a_callback_on_minibatches_changes_no_draw(PR):
    seen = []
    for watched in (False, True):
        made = learner(num_updates=7, update_batches=3, PR=PR)
        made.engine.error = 1.0 if PR else None
        made.configure(Options(), Callbacks([LambdaCallback(on_batch_begin=do_nothing)] * watched, None))
        made.buffer.view = Shuffling()
        play(made, 9, 9)
        seen.append(np.concatenate([index.reshape(-1, 4) for index in made.engine.seen]))
    assert np.array_equal(*seen)


def test_a_gamma_that_changes_in_a_phase_is_that_of_the_next_minibatch():
    made, discounts = learner(num_updates=6, update_batches=100), []
    made.hyper = lambda: {"gamma": 0.9 if len(discounts) < 2 else 0.45}
    noted = made.engine.learn
    made.engine.learn = lambda batches, hyper: (discounts.append(batches.discount.max()), noted(batches, hyper))[1]
    made.configure(Options(), Callbacks([LambdaCallback(on_batch_end=do_nothing)], None))
    play(made, 9)
    assert discounts == pytest.approx([0.9] * 2 + [0.45] * 4)


@pytest.mark.parametrize("at_random", [False, True])
def test_episodes_of_unequal_length_share_the_pool(at_random):
    made = learner(environments=2, num_updates=1, update_batches=100)
    made.configure(Options(random=at_random), Callbacks([], None))
    for _ in range(12):
        made.take(episode(9, column=0))
        made.take(episode(1, column=1))
    assert len(made.buffer) > 90, "a column for each environment alone would have kept 50 + 12"
    check_ring(made.buffer.ring)


@pytest.mark.parametrize("at_random", [False, True])
def test_a_full_pool_forgets_what_is_old_in_every_column(at_random):
    made = learner(environments=2, num_updates=1, update_batches=100)
    made.configure(Options(random=at_random), Callbacks([], None))
    for i in range(60):
        steps = episode(5, column=i % 2)
        made.take(dataclasses.replace(steps, reward=np.full((5, 1), i, np.float32)))
    kept = made.buffer.ring.reward[made.buffer.ring.locate(np.arange(100))]
    oldest = 40 if not at_random else 20
    assert kept.min() >= oldest, "100 rows of the 300: those of the last 20 episodes, or nearly so"


def test_what_each_column_was_given_is_part_of_the_state():
    settings = {"environments": 3, "num_updates": 1, "update_batches": 100}
    made, again = learner(**settings), learner(**settings)
    made.engine.state, again.engine.restore = dict, lambda state: None
    for length in (7, 2, 4):
        made.take(episode(length))
    again.restore(made.state(replay=True))
    for each in (made, again):
        each.take(episode(3))
    assert made.buffer.ring.filled.tolist() == again.buffer.ring.filled.tolist() == [7, 5, 4]
