"""Agents that keep a memory: it is of the episode, noted with every step, saved, and forgotten with its episode."""

from functools import partial

import labelled
import numpy as np
import pytest
from labelled import Adder, Faulty, Labelled, Native, Noisy
from witness import Witness, assert_same

from etude.rollout import InProcess, LockstepPool, Pool, PoolOptions
from etude.rollout.collector import Collector
from etude.rollout.fragments import StepsFragment, collect
from etude.training.evaluate import EvaluationRequest, evaluate

ENVIRONMENTS = 7


class Diary:
    """Remembers how many steps of the episode it has acted in, their sum of labels, what it did last, and what it has
    earned; acts by the first two."""

    state_size = 4

    def act(self, observation, state):
        assert state.shape == (len(observation), 4) and state.dtype == np.float32
        new = [np.ones(len(observation)), observation.sum(1), -state[:, 2], np.zeros(len(observation))]
        following = state + np.stack(new, 1).astype(np.float32)
        return following[:, :3].sum(1), following

    def acted(self, state, action):
        return np.concatenate([state[:, :2], action[:, None], state[:, 3:]], 1).astype(np.float32)

    def rewarded(self, state, reward):
        return np.concatenate([state[:, :3], state[:, 3:] + reward[:, None]], 1).astype(np.float32)

    def weights(self):
        return {"none": np.zeros(1, np.float32)}

    def load(self, weights, version):
        pass


def pools(kind, make, workers, **options):
    if kind == "in process":
        return InProcess(make(range(ENVIRONMENTS)), Diary(), Noisy(), 1)
    if kind == "pool":
        return Pool(make, Diary, Noisy(), 1, ENVIRONMENTS, workers, PoolOptions(**options))
    return LockstepPool(make, Diary(), Noisy(), 1, ENVIRONMENTS, workers, PoolOptions(**options))


@pytest.fixture
def opened():
    rollouts = []

    def open_(kind="in process", make=Labelled, workers=3, **options):
        rollouts.append(pools(kind, make, workers, **options))
        return rollouts[-1]

    yield open_
    for rollout in rollouts:
        rollout.close()


def assert_remembered(steps):
    """The memory of each row is what the rows before it in its episode, labelled (environment, episode, t), made it."""
    environment, episode, t = np.moveaxis(steps.observation, -1, 0)
    np.testing.assert_array_equal(steps.extras["recurrent_state"][..., 0], t)
    np.testing.assert_array_equal(
        steps.extras["recurrent_state"][..., 1], t * (environment + episode) + t * (t - 1) / 2
    )
    goes_on = t[1:] > 0
    np.testing.assert_array_equal(steps.extras["recurrent_state"][1:, :, 2][goes_on], steps.action[:-1][goes_on])
    earned = steps.extras["recurrent_state"][..., 3]
    assert steps.reward.any()
    np.testing.assert_allclose(earned[1:][goes_on], (earned[:-1] + steps.reward[:-1])[goes_on], rtol=1e-5)
    assert not steps.extras["recurrent_state"][t == 0].any()


KINDS = ["in process", "pool", "lockstep"]


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_of_the_episode_and_noted_with_each_step(opened, kind):
    collected, witness = opened(kind), Witness()
    for steps, chosen in [(5, None), (2, range(4)), (2, range(4, ENVIRONMENTS)), (1, None), (30, None)]:
        part = collected.collect(steps, 0, chosen)
        assert part.extras["recurrent_state"].shape == (steps, len(chosen or range(ENVIRONMENTS)), 4)
        witness.check(part)
        assert_remembered(part)


def test_none_one_and_three_workers_act_alike(opened):
    rollouts = [opened(), opened("pool", workers=1), opened("pool"), opened("lockstep")]
    for steps, chosen in [(6, None), (1, range(2)), (1, range(2, ENVIRONMENTS)), (20, None)]:
        parts = [one.collect(steps, 0, chosen) for one in rollouts]
        for part in parts[1:]:
            assert_same(parts[0], part)


@pytest.mark.parametrize("saved_with, restored_with", [("in process", "pool"), ("lockstep", "in process")])
def test_a_resumed_rollout_remembers_as_an_uninterrupted_one(opened, saved_with, restored_with):
    one, other = opened(saved_with), opened(restored_with)
    one.collect(4, 0)
    other.collect(3, 0)
    assert other.restore(one.state()) == []
    expected = one.collect(8, 0)
    assert expected.extras["recurrent_state"][0].any()
    assert_same(expected, other.collect(8, 0))


@pytest.mark.parametrize("kind", ["in process", "pool"])
def test_memory_is_of_the_episode_where_some_environments_wait_for_others(opened, kind):
    collected = opened(kind)
    for _ in range(3):
        for part in collected.collect_episodes(0):
            assert_remembered(part)


def test_a_state_without_memory_or_with_that_of_another_agent_begins_as_an_episode_does(opened):
    for change in (
        lambda column: column.pop("recurrent_state"),
        lambda column: column.update(recurrent_state=np.zeros(5)),
    ):
        one, other = opened(), opened()
        one.collect(1, 0)
        state = one.state()
        for column in state["environments"].values():
            change(column)
        other.restore(state)
        part = other.collect(1, 0)
        assert (part.observation[0, :, 2] == 1).all() and not part.extras["recurrent_state"][0].any()


def test_an_episode_that_cannot_be_replayed_is_forgotten(opened):
    one, other = opened(), InProcess(Labelled(range(ENVIRONMENTS), forgets=[1]), Diary(), Noisy(), 1)
    one.collect(1, 0)
    other.restore(one.state())
    assert other.collect(1, 0).extras["recurrent_state"][0, :, 0].tolist() == [1, 0, 1, 1, 1, 1, 1]


def test_columns_of_a_native_simulator_remember_also_what_is_not_handed_over():
    collected = InProcess(Native(range(3)), Diary(), Noisy(), 1)
    collected.collect(1, 0, range(1))
    part = collected.collect(1, 0)
    assert part.restarted.tolist() == [False, True, True]
    assert_remembered(part)


@pytest.mark.parametrize("kind", ["pool", "lockstep"])
def test_the_memory_of_an_episode_is_lost_with_its_worker_and_that_of_others_is_not(opened, tmp_path, kind):
    make = partial(Faulty, fault=labelled.kill_itself, flag=str(tmp_path / "done"))
    collected, witness = opened(kind, make), Witness()
    for steps in (3, 7, 4):
        part = collected.collect(steps, 0)
        witness.check(part)
        assert_remembered(part)
    assert witness.restarts > 0


def test_an_episode_lost_between_two_chunks_is_forgotten_and_a_cut_one_is_not():
    environments = Labelled(range(3))
    collector = Collector(environments, Diary(), Noisy(), 1)
    collect(StepsFragment(collector, (0, 1, 2), 1, 0, 3), environments).to_steps()
    collector.cut()
    collector.lose(1, np.array([1, 1, 0], np.float32), 1)
    assert [saved["recurrent_state"][0] for saved in collector.state()] == [1, 0, 1]


def test_agents_without_memory_note_none_and_are_called_with_observations_alone():
    steps = InProcess(Labelled(range(3)), Adder(), Noisy(), 1).collect(3, 0)
    assert "recurrent_state" not in steps.extras  # `Adder.act` takes no second argument


def test_evaluation_remembers_within_an_episode_and_not_across(monkeypatch):
    seen, before, last, earned = [], np.full((3, 3), np.nan), np.full(3, np.nan), np.zeros(3, np.float32)

    class Told(Diary):
        def act(self, observation, state):
            stepped = (observation != before).any(-1)  # the others have played their episodes
            seen.append(np.array_equal(state[stepped, 0], observation[stepped, 2]))
            going = stepped & (observation[:, 2] > 0)
            seen.append(np.array_equal(state[going, 2], last[going]))
            seen.append(np.array_equal(state[going, 3], earned[going] + last[going]))  # an action is its reward
            earned[:] = state[:, 3]
            before[:] = observation
            return super().act(observation, state)

        def acted(self, state, action):
            last[:] = action
            return super().acted(state, action)

    evaluate(Labelled(range(3)), Told(), Noisy(), EvaluationRequest(12, seed=0, environments=3))
    assert len(seen) > 10 and all(seen)
