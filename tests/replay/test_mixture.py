"""Batches of several buffers: shares, weights and priorities, each against what the buffers alone give."""

from __future__ import annotations

import math

import numpy as np
import pytest
from recorded_world import GOALS, STACKS, VECTOR, World

from etude.base.checks import Stored
from etude.base.errors import CheckpointError, ConfigError
from etude.replay import Buffer, MixedReplay, NStep, OneStep, Prioritised, Ring, Uniform

SHARES = {"a": 0.7, "b": 0.2, "c": 0.1}


def buffer_of(world: int, rows: int, spaces=VECTOR, stack: int = 1, alpha: float | None = None, n: int = 1) -> Buffer:
    """A buffer of one environment's steps. Observations of VECTOR begin with the number of the environment."""
    ring = Ring(spaces, rows, 1, {}, stack)
    selector = Uniform() if alpha is None else Prioritised(ring.rows, alpha, beta=0.6)
    view = OneStep(0.9) if n == 1 else NStep(0.9, n)
    buffer = Buffer(ring, selector, view, np.random.default_rng(world))
    steps = World(spaces, 1, np.random.default_rng(world)).step(rows)
    buffer.add(steps)
    return buffer


def mixture_of(shares=SHARES, rows=(50, 20, 200), online="c", **settings) -> MixedReplay:
    buffers = {name: buffer_of(i, rows[i], **settings) for i, name in enumerate(shares)}
    return MixedReplay(buffers, shares, np.random.default_rng(9), online)


def counts_of(mixture: MixedReplay, batch) -> dict[str, np.ndarray]:
    """The rows of each buffer in each batch: [k] by name."""
    found, first = {}, 0
    for name, buffer in mixture.buffers.items():
        found[name] = ((batch.index >= first) & (batch.index < first + buffer.ring.rows)).sum(1)
        first += buffer.ring.rows
    return found


@pytest.mark.parametrize("n", [1, 7, 64])
def test_shares_are_exact_to_one_row_and_right_over_100_000_rows(n):
    mixture = mixture_of()
    batch = mixture.sample(100_000 // n, n)
    for name, counts in counts_of(mixture, batch).items():
        share = SHARES[name]
        assert counts.min() >= math.floor(n * share - 1e-9) and counts.max() <= math.ceil(n * share + 1e-9)
        error = math.sqrt(share * (1 - share) / batch.index.size)  # of rows that were drawn one by one
        assert abs(counts.sum() / batch.index.size - share) < 3 * error


def test_the_rounding_is_drawn_anew_for_each_batch():
    counts = counts_of(mixture := mixture_of({"a": 0.5, "b": 0.5, "c": 0.5}), mixture.sample(200, 4))
    assert all(set(own.tolist()) == {1, 2} for own in counts.values())


def test_shares_of_any_sum_are_taken_and_others_are_refused():
    assert mixture_of({"a": 7, "b": 2, "c": 1}).shares == pytest.approx(SHARES)
    for shares in ({"a": 0.5}, {"a": 0.5, "b": 0, "c": 1}, {"a": math.nan, "b": 1, "c": 1}):
        with pytest.raises(ConfigError, match="expected a positive share for each buffer"):
            MixedReplay(mixture_of().buffers, shares, np.random.default_rng(0), None)
    with pytest.raises(ConfigError, match="expected a positive share"):
        mixture_of(online="d")


def test_buffers_of_different_extras_are_refused():
    ring = Ring(VECTOR, 10, 1, {"log_prob": ((), np.float32)})
    other = Buffer(ring, Uniform(), OneStep(0.9), np.random.default_rng(0))
    with pytest.raises(ConfigError, match="extras"):
        MixedReplay({"a": buffer_of(0, 10), "b": other}, {"a": 1, "b": 1}, np.random.default_rng(0), None)


@pytest.mark.parametrize("settings", [{}, {"n": 3}, {"spaces": STACKS, "stack": 3}, {"spaces": GOALS, "alpha": 0.7}])
@pytest.mark.parametrize("n", [33, 40])  # batches of different and of equal numbers of each buffer
def test_every_row_is_what_its_buffer_reads_there(settings, n):
    mixture = mixture_of(**settings)
    batch = mixture.sample(5, n)
    first = 0
    for buffer in mixture.buffers.values():
        at = (batch.index >= first) & (batch.index < first + buffer.ring.rows)
        rows = batch.index[at] - first
        own = buffer.view(buffer.ring, rows, np.ones(len(rows), np.float32))
        for name in ("action", "reward", "discount"):
            np.testing.assert_array_equal(getattr(batch, name)[at], getattr(own, name))
        for name in ("observation", "next_observation"):
            ours, theirs = getattr(batch, name), getattr(own, name)
            for key in ours if isinstance(ours, dict) else [...]:
                np.testing.assert_array_equal(ours[key][at], theirs[key])
        first += buffer.ring.rows


def test_importance_weights_are_comparable_between_buffers():
    mixture = mixture_of({"a": 0.5, "b": 0.5}, rows=(40, 90), online=None, alpha=0.8)
    rng = np.random.default_rng(3)
    for buffer in mixture.buffers.values():
        rows = np.arange(len(buffer))
        buffer.selector.update(rows, rng.gamma(1.0, 1.0, len(rows)))
    batch = mixture.sample(6, 10)
    expected = np.zeros(batch.index.shape)
    for first, buffer in zip((0, mixture.buffers["a"].ring.rows), mixture.buffers.values(), strict=True):
        priority = (buffer.selector.error[: len(buffer)].astype(float) + 1e-6) ** 0.8
        at = (batch.index >= first) & (batch.index < first + len(buffer))
        expected[at] = (len(buffer) * priority[batch.index[at] - first] / priority.sum()) ** -0.6
    np.testing.assert_allclose(batch.weight, expected / expected.max(1, keepdims=True), rtol=1e-5)
    assert batch.weight.dtype == np.float32


def test_the_weights_of_uniform_buffers_are_1():
    assert (mixture_of().sample(3, 8).weight == 1).all()


def test_errors_are_reported_to_the_buffer_that_a_row_is_from():
    mixture = mixture_of(alpha=0.6)
    batch = mixture.sample(4, 16)
    error = np.random.default_rng(1).normal(size=(4, 16)).astype(np.float32)
    mixture.update(batch, error)
    last = dict(zip(batch.index.ravel().tolist(), np.abs(error).ravel().tolist(), strict=True))
    first = 0
    for buffer in mixture.buffers.values():
        for row in range(len(buffer)):
            assert buffer.selector.error[row] == pytest.approx(last.get(first + row, 1.0))
        first += buffer.ring.rows


def test_steps_are_added_to_one_buffer_alone():
    mixture = mixture_of(rows=(50, 20, 300))
    sizes = {name: len(buffer) for name, buffer in mixture.buffers.items()}
    mixture.clear()
    assert len(mixture.ring) == 0 and len(mixture) == sizes["a"] + sizes["b"]
    mixture.add(World(VECTOR, 1, np.random.default_rng(4)).step(11))
    assert len(mixture.buffers["c"]) == 11 and len(mixture.buffers["a"]) == sizes["a"]
    with pytest.raises(ConfigError, match="recorded data alone"):
        mixture_of(online=None).add(World(VECTOR, 1, np.random.default_rng(4)).step(1))


def test_an_empty_buffer_is_refused():
    mixture = mixture_of()
    mixture.clear()
    with pytest.raises(ConfigError, match="The replay is empty"):
        mixture.sample(1, 64)


def test_a_restored_mixture_goes_on_with_the_same_batches():
    one, two = mixture_of(alpha=0.6), mixture_of(alpha=0.6)
    one.update(batch := one.sample(3, 10), np.full(batch.weight.shape, 0.3, np.float32))
    two.check_state(Stored(one.state(), "replay"))
    two.restore(one.state())
    for name in ("index", "reward", "weight"):
        a, b = one.sample(4, 11), two.sample(4, 11)
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


def test_a_state_of_other_buffers_is_refused_and_nothing_is_changed():
    mixture, state = mixture_of(), mixture_of().state()
    before = mixture.sample(1, 5).index
    mixture = mixture_of()
    state["buffers"] = {name: state["buffers"][name] for name in ("a", "b")}
    with pytest.raises(CheckpointError, match="buffers"):
        mixture.check_state(Stored(state, "replay"))
    np.testing.assert_array_equal(mixture.sample(1, 5).index, before)


def test_the_scale_of_rewards_is_that_of_every_buffer():
    mixture = mixture_of()
    mixture.adjust({"gamma": 0.9, "priority_exponent": 0.6, "importance_exponent": 0.4, "reward_scale": 0.5})
    assert {buffer.view.reward_scale for buffer in mixture.buffers.values()} == {0.5}
