"""n-step transitions with all that rings do: trims, clears, frame stacks, the head, rewards of several agents."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_world import NESTED, STACKS, VECTOR, World, code_of
from slow_views import Stored
from test_episodes_of_a_ring import random_operation
from test_ring import LOG_PROB, assert_same, random_steps, ring_and_world

from etude.base.errors import ConfigError
from etude.replay import Advantages, Buffer, Hindsight, NStep, OneStep, Ring, Sequences, Triplets, Uniform

KINDS = pytest.mark.parametrize(("spaces", "stack"), [(VECTOR, 1), (NESTED, 1), (STACKS, 3)])


@KINDS
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_n_step_transitions_are_true_after_random_operations(spaces, stack, seed):
    rng = np.random.default_rng(seed)
    ring, world = ring_and_world(spaces, stack, rng, p_end=float(rng.choice([0.02, 0.2, 0.7])))
    view = NStep(0.9, int(rng.integers(1, 6)))
    view.reward_scale = 2.0
    for _ in range(12):
        ring = random_operation(ring, world, rng)
        rows = ring.locate(np.arange(len(ring)))
        if not len(rows):
            continue
        batch, stored = view(ring, rows, np.ones(len(rows), np.float32)), Stored(world, ring.limit)
        codes = code_of(batch.observation)
        truth = [stored.transition(code, view.n, 0.9, None) for code in codes]
        np.testing.assert_allclose(batch.reward, [2 * reward for reward, _, _ in truth], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(batch.discount, [discount for _, discount, _ in truth], rtol=1e-6)
        assert_same(batch.observation, world.encode(codes))
        assert_same(batch.next_observation, world.encode([code for _, _, code in truth]))


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_each_agent_has_its_own_sum_of_rewards(n, seed):
    rng = np.random.default_rng(seed)
    world, ring = World(VECTOR, 3, rng), Ring(VECTOR, 24, 3, LOG_PROB, reward_shape=(2,))
    one = Ring(VECTOR, 24, 3, LOG_PROB)
    view = OneStep(0.9) if n == 1 else NStep(0.9, n)
    view.reward_scale = 2.0
    for _ in range(6):
        steps = random_steps(world, rng)
        one.add(steps)
        ring.add(replace(steps, reward=np.stack([steps.reward, -3 * steps.reward], -1)))
        rows = ring.locate(rng.integers(0, len(ring), (2, 5)))
        several, alone = (view(each, rows, np.ones((2, 5), np.float32)) for each in (ring, one))
        assert several.reward.shape == (2, 5, 2) and several.reward.dtype == np.float32
        np.testing.assert_allclose(several.reward[..., 0], alone.reward, rtol=1e-5)
        np.testing.assert_allclose(several.reward[..., 1], -3 * alone.reward, rtol=1e-5)
        np.testing.assert_array_equal(several.discount, alone.discount)
        assert_same(several.next_observation, alone.next_observation)


def test_advantages_of_several_rewards_are_refused():
    ring, world = Ring(VECTOR, 24, 3, reward_shape=(2,)), World(VECTOR, 3, np.random.default_rng(0))
    steps = world.step(4)
    ring.add(replace(steps, reward=np.stack([steps.reward] * 2, -1)))
    view = Advantages(0.9, 0.9, lambda observations: np.zeros(len(observations)))
    with pytest.raises(ConfigError, match=r"shape \(2,\).* several agents.*one reward and one value.*OneStep, NStep"):
        view(ring, np.arange(4), np.ones(4, np.float32))


@pytest.mark.parametrize("view", ["one", "n", "sequences", "triplets"])
def test_a_ring_in_a_folder_gives_the_same_batches(tmp_path, view):
    def buffer(folder) -> Buffer:
        made = {
            "one": lambda: OneStep(0.9),
            "n": lambda: NStep(0.9, 3),
            "sequences": lambda: Sequences(0.9, 5, 2),
            "triplets": lambda: Triplets(0.9, np.random.default_rng(3)),
        }[view]()
        return Buffer(Ring(STACKS, 60, 3, LOG_PROB, 3, folder=folder), Uniform(), made, np.random.default_rng(0))

    here, there = buffer(None), buffer(tmp_path / "replay")
    world, rng = World(STACKS, 3, np.random.default_rng(0)), np.random.default_rng(1)
    for _ in range(12):
        steps = random_steps(world, rng)
        here.add(steps), there.add(steps)
        if len(here) < 12:
            continue
        one, other = here.sample(2, 6), there.sample(2, 6)
        for name in ("observation", "action", "reward", "discount", "next_observation", "index"):
            assert_same(getattr(one, name), getattr(other, name))
    there.close()


def test_views_that_draw_nothing_have_no_state_and_others_keep_theirs_in_that_of_the_buffer():
    ring = Ring(VECTOR, 24, 3)
    stateless = (OneStep(0.9), NStep(0.9, 2), Sequences(0.9, 2), Advantages(0.9, 0.9, len))
    for view in stateless:
        assert Buffer(ring, Uniform(), view, np.random.default_rng(0)).state()["view"] == {}
    triplets = Triplets(0.9, np.random.default_rng(0))
    hindsight = Hindsight(triplets, len, np.random.default_rng(1))
    state = Buffer(ring, Uniform(), hindsight, np.random.default_rng(0)).state()["view"]
    assert state["view"] == triplets.state() and state["generator"] != triplets.state()["generator"]
