"""The views for several agents against plain Python, over episodes in which agents wait, join, end and take turns."""

from __future__ import annotations

import numpy as np
import pytest

from etude.base import trees
from etude.base.data import Steps
from etude.base.errors import ConfigError
from etude.base.spaces import Box, Discrete, Spaces
from etude.multi_agent.joint import (
    ACTING,
    ACTIVE,
    AGENTS,
    STATUS,
    TERMINATED,
    TRUNCATED,
    WAITING,
    joined_spaces,
    present,
    present_for,
)
from etude.replay import MultiAgentAdvantages, MultiAgentTransitions, Ring

GAMMA, LAMBDA = 0.8, 0.7
OWN = Spaces(Box(-np.inf, np.inf, (1,), np.float32), Discrete(3))
NAMES = ("a", "b", "c")
SPACES = joined_spaces(dict.fromkeys(NAMES, OWN))


def statuses(rng, turns):
    """What the agents are about at each observation of one episode: [L + 1, 3]."""
    now = np.full(3, WAITING) if turns else rng.choice([WAITING, ACTING], 3, p=[0.3, 0.7])
    now[0] = ACTING
    found = [now]
    while (found[-1] == ACTING).any():
        now = found[-1].copy()
        for i in np.flatnonzero((now == ACTING) | (turns & (now == WAITING))):
            if rng.random() < (0.15 if now[i] == ACTING else 0.05):
                now[i] = rng.choice([TERMINATED, TRUNCATED])
            elif turns:
                now[i] = WAITING
        if turns:
            waiting = np.flatnonzero(now == WAITING)
            if len(waiting):
                now[rng.choice(waiting)] = ACTING
        else:
            now[(now == WAITING) & (rng.random(3) < 0.3)] = ACTING
            now[(now == TERMINATED) & (rng.random(3) < 0.1)] = ACTING  # it joins again
        found.append(now)
        if len(found) == 30:
            found[-1] = np.where(now == ACTING, TRUNCATED, now)
    return found


def record(times, columns, turns, seed=0):
    """(Steps, the rows of each column: (status, following status, rewards, number, whether the episode ends))."""
    rng = np.random.default_rng(seed)
    rows, ends = [[] for _ in range(columns)], []
    for n in range(columns):
        while len(rows[n]) < times:
            episode = statuses(rng, turns)
            for t in range(len(episode) - 1):
                last = t == len(episode) - 2
                rows[n].append([episode[t], episode[t + 1], rng.integers(-5, 6, 3), len(rows[n]), last])
        del rows[n][times:]
    at = lambda t, n: {AGENTS: _seen(n, t), STATUS: rows[n][t][0].astype(np.int8)}  # noqa: E731
    after = lambda t, n: {AGENTS: _seen(n, t + 0.5), STATUS: rows[n][t][1].astype(np.int8)}  # noqa: E731
    over = np.array([[rows[n][t][4] for n in range(columns)] for t in range(times)])
    final = [(t, n) for t in range(times) for n in range(columns) if over[t, n]]
    ends = [after(t, n) for t, n in final]
    steps = Steps(
        observation=trees.stack([trees.stack([at(t, n) for n in range(columns)]) for t in range(times)]),
        action=rng.integers(0, 3, (times, columns, 3)),
        reward=np.array([[rows[n][t][2] for n in range(columns)] for t in range(times)], np.float32),
        terminated=over,
        truncated=np.zeros_like(over),
        next_observation=trees.stack([after(times - 1, n) for n in range(columns)]),
        final_observation=trees.stack(ends) if ends else trees.map(lambda x: x[None][:0], at(0, 0)),
        final_index=np.array(final, np.int64).reshape(-1, 2),
        columns=np.arange(columns),
        restarted=np.zeros(columns, bool),
    )
    return steps, rows


def _seen(n, t):
    return {name: np.array([100 * i + 10_000 * n + t], np.float32) for i, name in enumerate(NAMES)}


def ring_of(steps):
    times, columns = steps.shape
    ring = Ring(SPACES, times * columns, columns, reward_shape=(3,))
    ring.add(steps)
    return ring


def slow_transition(rows, t, i, turns):
    """(reward, discount, row after which the next observation came), or None where there is nothing to learn."""
    if rows[t][0][i] != ACTING:
        return None
    reward, taken, start = 0.0, 0, t
    while True:
        reward += GAMMA**taken * rows[t][2][i]
        following, stop = rows[t][1][i], rows[t][4] or t == len(rows) - 1
        if following in (TERMINATED, TRUNCATED):
            return reward, 0.0 if following == TERMINATED else GAMMA ** (taken + 1), t
        taken += following == ACTING
        if following == ACTING and (stop or taken == turns):
            return reward, GAMMA**taken, t
        if stop:
            return None
        t += 1
        assert t - start < 100


@pytest.mark.parametrize("turns", [False, True], ids=["at once", "in turns"])
@pytest.mark.parametrize("n", [1, 3])
def test_each_agent_has_transitions_from_its_own_action_to_its_own_next_turn(turns, n):
    steps, rows = record(200, 2, turns)
    ring = ring_of(steps)
    where = ring.locate(np.arange(len(ring)).reshape(4, 100))
    batch = MultiAgentTransitions(GAMMA, n)(ring, where, np.ones(where.shape, np.float32))
    kinds = set()
    for place in np.ndindex(where.shape):
        t, column = divmod(int(where[place]), 2)
        for i, name in enumerate(NAMES):
            wanted = slow_transition(rows[column], t, i, n)
            assert batch.extras[ACTIVE][place][i] == (wanted is not None)
            if wanted is None:
                continue
            reward, discount, last = wanted
            assert batch.reward[place][i] == pytest.approx(reward, abs=1e-5)
            assert batch.discount[place][i] == pytest.approx(discount)
            goes_on = not rows[column][last][4] and last < 199
            expected = _seen(column, last + 1 if goes_on else last + 0.5)[name]
            assert batch.next_observation[AGENTS][name][place] == expected
            assert batch.next_observation[STATUS][place][i] == rows[column][last][1][i]
            kinds.add((last - t > 0, discount == 0))
        gone = np.isin(rows[column][t][0], (TERMINATED, TRUNCATED))  # in an earlier step
        assert not np.isin(batch.next_observation[STATUS][place][gone], (TERMINATED, TRUNCATED)).any()
    later = turns or n > 1  # whether the next turn may be more than a step away
    assert kinds >= {(later, False), (later, True)}


def slow_advantages(rows, values, next_values):
    """[T, 3], agent by agent: lists of its turns first, then the sum over them."""
    found = np.zeros((len(rows), 3))
    for i in range(3):
        chain = []  # (row, error, whether the next turn belongs to the same life)
        for t, row in enumerate(rows):
            if row[0][i] != ACTING:
                continue
            reward, last = 0.0, t
            while True:
                reward += rows[last][2][i]
                stop = rows[last][4] or last == len(rows) - 1
                if rows[last][1][i] != WAITING or stop:
                    break
                last += 1
            how = rows[last][1][i]
            ends = how in (TERMINATED, TRUNCATED) or stop
            following = 0.0 if how == TERMINATED else (next_values[last] if stop else values[last + 1])[i]
            following = 0.0 if how == TERMINATED else following
            chain.append((t, reward + GAMMA * following - values[t][i], not ends))
        carried = 0.0
        for t, error, goes_on in reversed(chain):
            carried = error + (GAMMA * LAMBDA * carried if goes_on else 0.0)
            found[t, i] = carried
    return found


@pytest.mark.parametrize("turns", [False, True], ids=["at once", "in turns"])
def test_advantages_go_over_the_turns_of_each_agent_and_stop_where_it_ends(turns):
    steps, rows = record(120, 2, turns, seed=3)
    ring = ring_of(steps)

    def value(observation):
        return np.stack([np.sin(observation[AGENTS][name][:, 0]) for name in NAMES], -1)

    where = ring.locate(np.arange(len(ring))[None])
    batch = MultiAgentAdvantages(GAMMA, LAMBDA, value)(ring, where, np.ones(where.shape, np.float32))
    for column in range(2):
        seen = lambda t, column=column: value({AGENTS: {k: v[None] for k, v in _seen(column, t).items()}})[0]  # noqa: E731
        values = [seen(t) for t in range(120)]
        expected = slow_advantages(rows[column], values, [seen(t + 0.5) for t in range(120)])
        mine = [batch.extras["advantage"][0, 2 * t + column] for t in range(120)]
        np.testing.assert_allclose(mine, expected, atol=1e-4)
        acting = np.array([row[0] == ACTING for row in rows[column]])
        mine = np.array([batch.extras["return"][0, 2 * t + column] for t in range(120)])
        np.testing.assert_allclose(mine, (expected + values) * acting, atol=1e-4)
        active = np.array([batch.extras[ACTIVE][0, 2 * t + column] for t in range(120)])
        np.testing.assert_array_equal(active, acting)


def test_a_value_for_each_agent_is_asked_for():
    ring = ring_of(record(20, 1, False)[0])
    view = MultiAgentAdvantages(GAMMA, LAMBDA, lambda observation: observation[STATUS][:, 0])
    with pytest.raises(ConfigError, match=r"expected \(\d+, 3\), one number for each agent"):
        view(ring, ring.locate(np.arange(4)[None]), np.ones((1, 4), np.float32))


@pytest.mark.parametrize("turns", [False, True], ids=["at once", "in turns"])
def test_values_are_asked_for_with_the_agents_that_have_just_ended_and_without_those_that_ended_earlier(turns):
    steps, rows = record(200, 2, turns)
    asked = []

    def value(observation):
        asked.append(observation)
        return np.zeros((len(observation[STATUS]), 3))

    ring = ring_of(steps)
    where = ring.locate(np.arange(len(ring)))
    MultiAgentAdvantages(GAMMA, LAMBDA, value)(ring, where, np.ones(where.shape, np.float32))
    found = asked[0][STATUS][:400].reshape(200, 2, 3)
    over = (TERMINATED, TRUNCATED)
    for column in range(2):
        for t in range(1, 200):
            now, earlier = rows[column][t][0], rows[column][t - 1][0]
            expected = np.where(np.isin(now, over) & np.isin(earlier, over), WAITING, now)
            np.testing.assert_array_equal(found[t, column], expected)
    last = [(t, n) for t in range(200) for n in range(2) if rows[n][t][4] or t == 199]
    for (t, n), status in zip(last, asked[0][STATUS][400:], strict=False):
        expected = np.where(np.isin(rows[n][t][1], over) & np.isin(rows[n][t][0], over), WAITING, rows[n][t][1])
        np.testing.assert_array_equal(status, expected)


def test_the_value_of_an_agent_whose_time_ran_out_is_that_with_all_whose_time_ran_out_with_it():
    status = np.array([[ACTING, TRUNCATED, TRUNCATED, WAITING, TERMINATED]])
    found = [present_for({STATUS: status}, agent)[0].tolist() for agent in range(5)]
    assert found == [[1, 0, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0]]
    assert present({STATUS: status})[0].tolist() == [1, 0, 0, 0, 0]
