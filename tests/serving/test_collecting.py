"""What clients play arrives as steps of columns, and nothing is joined or lost."""

from __future__ import annotations

import time

import numpy as np
import pytest
from gymnasium.spaces import Box
from serving_cases import SPACES, Actor, address, check_continuous, in_thread, play, rollout_of

import etude
from etude import serving
from etude.base.seeding import generator
from etude.base.spaces import Spaces
from etude.explore import EpsilonGreedy
from etude.serving.rollout import ClientRollout


def test_one_client_fills_a_column_with_its_episodes():
    rollout = rollout_of()
    in_thread(play, rollout.url, 0, [3, 2, 4])
    first, second = rollout.collect(4, 0), rollout.collect(4, 4)
    for steps in (first, second):
        check_continuous(steps)
        assert not steps.restarted.any() and (steps.action == 1).all()
    assert first.terminated[:, 0].tolist() == [False, False, True, False]
    assert second.truncated[:, 0].tolist() == [True, False, False, False]
    (end,), (cut,) = first.episodes, second.episodes
    assert (end.length, end.total, end.truncated, end.episode) == (3, 3.0, False, 0)
    assert (cut.length, cut.total, cut.truncated, cut.episode) == (2, 1.0, True, 1)
    assert first.next_observation.tolist() == [[1.0, 1.0]] and second.next_observation.tolist() == [[2.0, 3.0]]
    rollout.close()


class Earning(Actor):
    """Remembers what it has earned in the episode."""

    state_size = 1

    def act(self, observation, state):
        return super().act(observation), state

    def acted(self, state, action):
        return state

    def rewarded(self, state, reward):
        return (state + reward[:, None]).astype(np.float32)


def test_an_agent_remembers_what_clients_say_that_it_earned():
    rollout = rollout_of(actor=Earning())
    in_thread(play, rollout.url, 0, [5, 2, 4])
    for steps in (rollout.collect(6, 0), rollout.collect(4, 6)):
        t = steps.observation[..., 1]  # which is the reward, too
        np.testing.assert_array_equal(steps.extras["recurrent_state"][..., 0], t * (t - 1) / 2)
    rollout.close()


def test_columns_are_filled_by_as_many_clients_as_there_are():
    actor = Actor()
    alone = rollout_of(3, actor)
    in_thread(play, alone.url, 0, [100])
    first, second = alone.collect(4, 0), alone.collect(4, 12)
    assert sorted(first.observation[0, :, 1].tolist()) == [0, 4, 8] and not first.restarted.any()
    assert second.restarted.tolist() == [True, True, False]  # the last one goes on where it was
    check_continuous(first)
    check_continuous(second)
    alone.close()
    several = rollout_of(3, actor)
    for i in range(5):  # two of them wait for an episode of the others to end
        in_thread(play, several.url, i, [6] * 8)
    seen = set()
    for t in range(6):
        steps = several.collect(8, 24 * t)
        check_continuous(steps)
        seen |= set((steps.observation[..., 0] // 100).ravel().tolist())
    assert seen == {0, 1, 2, 3, 4}
    assert max(actor.sizes) > 1  # those that wait are one forward pass
    several.close()


def test_parts_of_a_time_step_and_whole_episodes():
    rollout = rollout_of(2)
    for i in range(2):
        in_thread(play, rollout.url, i, [5, 5, 5])
    for t in range(3):
        for part in (range(1), range(1, 2)):
            steps = rollout.collect(1, 2 * t, part)
            check_continuous(steps)
            assert steps.columns.tolist() == list(part)
    parts = rollout.collect_episodes(6)
    assert [part.columns.tolist() for part in parts] == [[0], [1]]
    for part in parts:
        check_continuous(part)
        assert len(part.episodes) == 1 and (part.terminated | part.truncated)[-1, 0]
    rollout.close()


def test_a_client_that_vanishes_loses_its_open_episode_alone():
    rollout = rollout_of(limits=serving.ClientLimits(silence=0.3))
    client = serving.Client(rollout.url)

    def vanish():
        play(rollout.url, 0, [2])
        name = client.start_episode()
        for t in range(3):  # the outcome of the last is not known
            client.get_action(name, [7.0, float(t)])
            client.log_returns(name, t)
        time.sleep(1)
        with pytest.raises(serving.EpisodeLost, match="410"):
            client.get_action(name, [7.0, 3.0])
        play(rollout.url, 1, [9])

    in_thread(vanish)
    steps = rollout.collect(6, 0)
    check_continuous(steps)
    assert steps.observation[:, 0, 0].tolist() == [0, 0, 7, 7, 100, 100]
    assert steps.truncated[:, 0].tolist() == [False, False, False, True, False, False]
    assert [end.total for end in steps.episodes] == [1.0]
    assert "1 open episode of clients did not go on for 0.3 seconds" in rollout.warnings()[0] and not rollout.warnings()
    rollout.close()


def test_own_actions_are_stored_as_they_were_executed():
    rollout, tasks = rollout_of(limits=serving.ClientLimits(silence=0.3)), []
    rollout.set_task({"gravity": 3})

    def log():
        client = serving.Client(rollout.url)
        name = client.start_episode()
        tasks.append(client.task)
        for t, action in enumerate([2, 0]):
            client.log_action(name, [0.0, float(t)], action)
            client.log_returns(name, t)
        with pytest.raises(ValueError, match=r"422.*action: 3 is outside of Discrete\(3\)"):
            client.log_action(name, [0.0, 2.0], 3)

    in_thread(log)
    steps = rollout.collect(1, 0)
    assert steps.action.tolist() == [[2]] and tasks == [{"gravity": 3}]
    check_continuous(steps)
    rollout.close()


def test_algorithms_that_learn_from_probabilities_want_those_of_own_actions():
    space = Box(-2, 2, (1,), np.float32)
    clients = serving.Clients(address(), (SPACES[0], space))
    got = []

    def log(url):
        client = serving.Client(url, patience=5)
        name = client.start_episode()
        try:
            client.log_action(name, [0.0, 0.0], [1.0])
        except ValueError as error:
            got.append(str(error))
        name = client.start_episode()
        for t in range(9):
            client.log_action(name, [0.0, float(t)], [1.0], log_prob=-0.5)

    collected = []
    with etude.Run("ppo", clients, engine="torch", environments=1, rollout_length=4, epochs=1) as run:
        run.metric("kept", lambda steps: collected.append(steps) or 0.0)
        in_thread(log, f"http://{clients.address}")
        run.train(4)
    assert "422" in got[0] and "log_prob" in got[0]
    assert collected[0].action.ravel().tolist() == collected[0].extras["sampled_action"].ravel().tolist() == [0.5] * 4
    assert collected[0].extras["log_prob"].ravel().tolist() == [-0.5] * 4


def test_a_saved_rollout_goes_on_without_joining_episodes():
    rollout = rollout_of(explorer=EpsilonGreedy(1.0))

    def random(url):
        client = serving.Client(url, patience=5)
        while True:
            try:
                name = client.start_episode()
                for t in range(10**6):
                    client.get_action(name, [0.0, float(t)])
                    client.log_returns(name, t)
            except serving.EpisodeLost:
                continue
            except ConnectionError:
                return

    in_thread(random, rollout.url)
    rollout.collect(5, 0)
    state = rollout.state()
    expected = generator(0, "explore", 0)
    rollout.close()
    again = ClientRollout(serving.Clients(rollout.url[7:], SPACES), Spaces(*SPACES), 1, Actor(), EpsilonGreedy(1.0), 0)
    again.restore(state)
    steps = again.collect(5, 5)
    check_continuous(steps)
    assert steps.restarted.tolist() == [True] and steps.observation[0, 0, 1] == 0
    expected.random((5, 2), np.float32)
    wanted = (expected.random((5, 2), np.float32)[:, 1] * 3).astype(int)
    assert steps.action[:, 0].tolist() == wanted.tolist()
    again.close()
