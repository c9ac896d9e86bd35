"""Unrolls: whole columns in order of time, with the ends of episodes told."""

from __future__ import annotations

import numpy as np
import pytest
from recorded_world import VECTOR, World, code_of

from etude.base.errors import ConfigError
from etude.replay import Buffer, ColumnEpochs, Ring, Unrolls

TIMES, ENVIRONMENTS = 12, 5


@pytest.fixture
def filled():
    world = World(VECTOR, ENVIRONMENTS, np.random.default_rng(0))
    buffer = Buffer(
        Ring(VECTOR, TIMES * ENVIRONMENTS, ENVIRONMENTS), ColumnEpochs(), Unrolls(0.9), np.random.default_rng(1)
    )
    for part in (7, 5):
        buffer.add(world.step(part))
    return world, buffer


def test_every_unroll_is_a_whole_column_in_order_of_time(filled):
    world, buffer = filled
    batch = buffer.sample(2, 2)
    assert batch.observation.shape == (2, 2, TIMES, 3)
    seen = []
    for i in np.ndindex(2, 2):
        environment = code_of(batch.observation[i])[0][0]
        seen.append(environment)
        for t, row in enumerate(world.columns[environment]):
            assert code_of(batch.observation[i][t]) == [row.code]
            assert code_of(batch.next_observation[i][t]) == [row.next_code]
            assert batch.reward[i][t] == pytest.approx(row.reward)
            assert batch.discount[i][t] == pytest.approx(0.0 if row.terminated else 0.9)
            assert batch.extras["goes_on"][i][t] == (0.0 if row.terminated or row.truncated else 1.0)
    assert len(set(seen)) == 4, "a pass takes each column once"
    rows = [row for column in world.columns for row in column]
    assert any(row.terminated for row in rows)
    assert any(row.truncated and not row.terminated for row in rows)


def test_more_unrolls_than_environments_are_refused(filled):
    with pytest.raises(ConfigError, match="6 unrolls was asked for, but there are 5 of 5 environments"):
        filled[1].sample(1, 6)


def test_columns_of_different_lengths_are_refused(filled):
    world, buffer = filled
    buffer.clear()
    buffer.trim(0)
    buffer.add(world.step(2))
    buffer.trim(np.array([1, 2, 2, 2, 2]))
    with pytest.raises(ConfigError, match="expected as many rows in each"):
        buffer.sample(1, 1)
