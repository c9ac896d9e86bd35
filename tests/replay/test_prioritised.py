"""Priorities: which rows are drawn, how often, and with what weights; against a slow reference in plain Python."""

from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invariants import check_ring, check_tree
from recorded_world import STACKS, VECTOR, World

from etude.base.checks import Stored
from etude.base.errors import CheckpointError, ConfigError, NumericalError
from etude.replay import Buffer, NStep, OneStep, Prioritised, Ring, Uniform


class Reference:
    """The priorities of stored rows by loops: a dict from flat row to [|error|, |ratio - 1|]."""

    def __init__(self, selector: Prioritised, initial_error: float, initial_ratio: float | None):
        self.selector, self.rows, self.seen = selector, {}, []
        self.ratios = initial_ratio is not None
        self.initial = (initial_error, abs((initial_ratio or 0) - 1))

    def store(self, ring: Ring, written: set[int]) -> None:
        """What is in the ring now; rows in `written` are new."""
        stored = ring.locate(np.arange(len(ring))).tolist()
        new = [max(column) for column in zip(*self.seen, strict=True)] if self.seen else self.initial
        self.rows = {row: tuple(new) if row in written else self.rows[row] for row in stored}

    def update(self, rows, errors, ratios) -> None:
        for row, error, ratio in zip(rows.ravel().tolist(), errors.ravel(), ratios.ravel(), strict=True):
            if row in self.rows:
                self.rows[row] = (abs(np.float32(error)), abs(np.float32(ratio - 1)))
                self.seen.append(self.rows[row])

    def priority(self, row: int) -> float:
        error, deviation = (float(number) for number in self.rows[row])
        mix = self.selector.mix if self.ratios else 1.0
        return (mix * error + (1 - mix) * deviation + self.selector.small) ** self.selector.alpha

    def weights(self, rows: list[int], beta: float) -> list[float]:
        total = sum(self.priority(row) for row in self.rows)
        raw = [(len(self.rows) * self.priority(row) / total) ** -beta for row in rows]
        return [weight / max(raw) for weight in raw]


def buffer_of(limit: int = 20, spaces=VECTOR, stack: int = 1, **settings) -> Buffer:
    ring = Ring(spaces, 3 * limit, 3, {}, stack)
    return Buffer(ring, Prioritised(ring.rows, **settings), OneStep(0.9), np.random.default_rng(0))


def report(buffer: Buffer, rows, errors, ratios=None) -> None:
    buffer.selector.update(np.array([rows]), np.array([errors]), None if ratios is None else np.array([ratios]))


def all_priorities(buffer: Buffer) -> dict[int, float]:
    buffer.selector.refresh()
    check_tree(buffer.selector.tree)
    values = buffer.selector.tree.values(np.arange(buffer.ring.rows))
    return {int(row): float(values[row]) for row in np.flatnonzero(values)}


@pytest.mark.parametrize("initial_ratio", [None, 1.5], ids=["errors", "errors and ratios"])
@pytest.mark.parametrize(("spaces", "stack"), [(VECTOR, 1), (STACKS, 3)])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_random_operations_give_the_probabilities_and_weights_of_a_slow_reference(spaces, stack, initial_ratio, seed):
    rng = np.random.default_rng(seed)
    limit = int(rng.choice([2, 7, 400]))
    buffer = buffer_of(limit, spaces, stack, alpha=0.6, initial_error=0.7, initial_ratio=initial_ratio, mix=0.3)
    ring, selector = buffer.ring, buffer.selector
    world, slow = World(spaces, 3, rng), Reference(selector, 0.7, initial_ratio)
    written: set[int] = set()
    tell, listen = selector.added, lambda ring, rows: written.update(np.arange(ring.rows)[rows].tolist())
    selector.added = lambda ring, rows: (tell(ring, rows), listen(ring, rows))
    drawn = np.zeros((2, 9), np.int64)
    for _ in range(14):
        written.clear()
        kind = rng.choice(["add", "add", "update", "update", "alpha", "trim", "clear"], p=[0.2] * 4 + [0.1, 0.07, 0.03])
        if kind == "add":
            columns = [0, 1, 2] if rng.random() < 0.5 else sorted(rng.choice(3, 2, replace=False).tolist())
            buffer.add(world.step(int(rng.integers(1, 30)), columns))
        elif kind == "update" and len(ring):
            errors, ratios = rng.normal(size=(2, 9)) * 3, rng.exponential(size=(2, 9))
            selector.update(drawn, errors, ratios)  # rows drawn a while ago: some are gone, some drawn twice
            slow.update(drawn, errors, ratios)
        elif kind == "alpha":
            selector.alpha = float(rng.random())
        elif kind == "trim":
            buffer.trim(int(rng.integers(0, 3 * limit)))
        elif kind == "clear":
            buffer.clear()
        slow.store(ring, written)
        assert all_priorities(buffer) == pytest.approx({row: slow.priority(row) for row in slow.rows}, rel=1e-6)
        if len(ring):
            selector.beta = float(rng.random())
            drawn, weight = selector.select(ring, 2, 9, rng)
            expected = [slow.weights(rows, selector.beta) for rows in drawn.tolist()]
            np.testing.assert_allclose(weight, expected, rtol=2e-6)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_rows_are_drawn_as_often_as_their_priorities_say(alpha):
    buffer, world = buffer_of(alpha=alpha), World(VECTOR, 3, np.random.default_rng(0))
    buffer.add(world.step(33)), buffer.add(world.step(5, [1]))
    rows = buffer.ring.locate(np.arange(60))
    errors = np.random.default_rng(1).exponential(size=60)
    report(buffer, rows, -errors)
    drawn, weight = buffer.selector.select(buffer.ring, 40_000, 1, np.random.default_rng(2))
    counts = np.bincount(drawn.ravel(), minlength=buffer.ring.rows)[rows]
    assert counts.sum() == 40_000 and (weight == 1).all()
    share = (errors + 1e-6) ** alpha
    expected = 40_000 * share / share.sum()
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_square - 59) / np.sqrt(2 * 59) < 4


def test_batches_are_stratified_and_still_draw_in_proportion():
    buffer, world = buffer_of(alpha=1.0, small=1e-9), World(VECTOR, 3, np.random.default_rng(0))
    buffer.add(world.step(10))
    rows = np.arange(30)
    errors = np.random.default_rng(1).exponential(size=30)
    report(buffer, rows, errors)
    n = 16
    drawn, _ = buffer.selector.select(buffer.ring, 3000, n, np.random.default_rng(2))
    ends = np.cumsum(errors) / errors.sum() * n
    assert (drawn[:, 1:] >= drawn[:, :-1]).all()
    for stratum in range(n):  # only rows whose part of the total overlaps the stratum
        possible = np.flatnonzero((ends > stratum) & (ends - errors / errors.sum() * n < stratum + 1))
        assert set(drawn[:, stratum].tolist()) == set(possible.tolist())
    counts = np.bincount(drawn.ravel(), minlength=30)
    expected = 3000 * n * errors / errors.sum()
    assert (((counts - expected) ** 2 / expected).sum() - 29) / np.sqrt(2 * 29) < 4


def test_weights_by_hand():
    buffer, world = buffer_of(alpha=1.0, beta=0.5, small=1e-12), World(VECTOR, 3, np.random.default_rng(0))
    buffer.add(world.step(1))
    report(buffer, [0, 1, 2], [1.0, 4.0, 16.0])
    rows, weight = buffer.selector.select(buffer.ring, 50, 8, np.random.default_rng(0))
    raw = (3 * np.array([1, 4, 16]) / 21) ** -0.5
    for one, weights in zip(rows, weight, strict=True):  # the largest of each batch is 1, whatever is in it
        np.testing.assert_allclose(weights, raw[one] / raw[one].max(), rtol=1e-6)
    assert {tuple(np.unique(one)) for one in rows} > {(1, 2)} and (weight.max(1) == 1).all()
    assert weight.dtype == np.float32


def test_new_rows_get_the_initial_error_at_first_and_then_the_largest_reported():
    buffer, world = buffer_of(alpha=1.0, initial_error=7.0, small=1e-9), World(VECTOR, 3, np.random.default_rng(0))
    buffer.add(world.step(1))
    assert list(all_priorities(buffer).values()) == pytest.approx([7, 7, 7])
    report(buffer, [0, 1], [-2.0, 1.0])
    buffer.add(world.step(1))
    assert all_priorities(buffer) == pytest.approx({0: 2, 1: 1, 2: 7, 3: 2, 4: 2, 5: 2})
    report(buffer, [0], [0.5])
    buffer.clear()
    assert all_priorities(buffer) == {}
    buffer.add(world.step(1))
    assert all_priorities(buffer) == pytest.approx({0: 2, 1: 2, 2: 2})


def test_ratios_count_beside_errors():
    settings = {"alpha": 0.5, "initial_error": 3.0, "initial_ratio": 1.0, "mix": 0.25, "small": 1e-12}
    buffer, world = buffer_of(**settings), World(VECTOR, 3, np.random.default_rng(0))
    buffer.add(world.step(1))
    assert all_priorities(buffer)[0] == pytest.approx(0.75**0.5)
    report(buffer, [0, 1], [1.0, 2.0], [3.0, 0.5])
    buffer.add(world.step(1, [2]))
    expected = {0: 1 * 0.25 + 2 * 0.75, 1: 2 * 0.25 + 0.5 * 0.75, 2: 0.75, 5: 2 * 0.25 + 2 * 0.75}
    assert all_priorities(buffer) == pytest.approx({row: value**0.5 for row, value in expected.items()})
    with pytest.raises(ConfigError, match="needs probability ratios"):
        report(buffer, [0], [1.0])


def test_a_changed_alpha_counts_for_rows_reported_before_and_after():
    buffer, world = buffer_of(400, alpha=1.0, small=1e-9), World(VECTOR, 3, np.random.default_rng(0))
    buffer.add(world.step(300))
    report(buffer, [0, 1], [4.0, 9.0])
    buffer.sample(1, 4)
    buffer.selector.alpha = 0.5
    report(buffer, [2], [16.0])
    values = all_priorities(buffer)
    assert [values[row] for row in (0, 1, 2, 3)] == pytest.approx([2, 3, 4, 1])


def test_of_a_row_reported_twice_in_a_call_the_last_error_counts():
    buffer, world = buffer_of(alpha=1.0, small=1e-9), World(VECTOR, 3, np.random.default_rng(0))
    buffer.add(world.step(1))
    report(buffer, [0, 1, 0, 0], [5.0, 2.0, 6.0, 3.0])
    assert all_priorities(buffer) == pytest.approx({0: 3, 1: 2, 2: 1})


def test_rows_that_are_gone_are_neither_drawn_nor_revived():
    for forget in (lambda buffer: buffer.trim(3), lambda buffer: buffer.clear()):
        buffer, world = buffer_of(alpha=1.0), World(VECTOR, 3, np.random.default_rng(0))
        buffer.add(world.step(8))
        report(buffer, list(range(24)), [1e6] * 24)
        forget(buffer)
        report(buffer, list(range(24)), [1e6] * 24)
        assert set(all_priorities(buffer)) == set(buffer.ring.locate(np.arange(len(buffer))).tolist())
        buffer.add(world.step(1))
        assert set(buffer.sample(50, 4).index.ravel().tolist()) == set(
            buffer.ring.locate(np.arange(len(buffer))).tolist()
        )


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_errors_without_a_size_are_refused_and_change_nothing(bad):
    buffer, world = buffer_of(alpha=1.0, initial_ratio=1.0), World(VECTOR, 3, np.random.default_rng(0))
    buffer.add(world.step(2))
    before = all_priorities(buffer)
    with pytest.raises(NumericalError, match="1 of the errors of 2 drawn rows.*learning rate"):
        report(buffer, [0, 1], [1.0, bad], [1.0, 1.0])
    with pytest.raises(NumericalError, match="1 of the ratios"):
        report(buffer, [0, 1], [1.0, 1.0], [1.0, bad])
    with pytest.raises(ConfigError, match=r"errors of shape \(2,\).*\(1, 2\)"):
        buffer.selector.update(np.array([[0, 1]]), np.ones(2), np.ones((1, 2)))
    assert all_priorities(buffer) == before


@pytest.mark.parametrize("initial_ratio", [None, 2.0])
@pytest.mark.parametrize("steps", [3, 150])
def test_a_restored_selector_continues_bit_for_bit(initial_ratio, steps):
    rng = np.random.default_rng(steps)
    buffer = buffer_of(100, alpha=0.6, beta=0.4, initial_ratio=initial_ratio)
    twin = buffer_of(100, alpha=0.9, initial_ratio=initial_ratio, initial_error=5.0)
    world = World(VECTOR, 3, rng)
    for times in (steps, 2, 1):
        buffer.add(world.step(times))
        batch = buffer.sample(2, 20)
        buffer.update(batch, rng.normal(size=(2, 20)), rng.exponential(size=(2, 20)))
    buffer.selector.alpha = 0.7
    twin.add(World(VECTOR, 3, rng).step(120))  # what was there before is forgotten
    twin.check_state(Stored(buffer.state(), "replay"))
    twin.restore(deepcopy(buffer.state()))
    for _ in range(4):
        one, other = buffer.sample(3, 20), twin.sample(3, 20)
        np.testing.assert_array_equal(one.index, other.index)
        np.testing.assert_array_equal(one.weight, other.weight)
        np.testing.assert_array_equal(buffer.selector.tree.nodes, twin.selector.tree.nodes)
        steps_, errors = world.step(2), rng.normal(size=(3, 20))
        for one_of in (buffer, twin):
            one_of.update(one, errors, np.exp(errors))
            one_of.add(steps_)


def test_a_selector_refuses_the_state_of_another_kind():
    selector = buffer_of(alpha=1.0).selector
    with pytest.raises(CheckpointError, match="a table without 'alpha' at selector"):
        selector.check_state(Stored(Uniform().state(), "selector"), 0)
    with pytest.raises(CheckpointError, match="at selector/deviation; expected nothing"):
        selector.check_state(Stored(buffer_of(alpha=1.0, initial_ratio=1.0).selector.state(), "selector"), 0)


def test_priorities_of_a_column_come_in_order_of_age():
    buffer, world = buffer_of(4, alpha=1.0, small=1e-9), World(VECTOR, 3, np.random.default_rng(0))
    buffer.add(world.step(3)), buffer.add(world.step(3, [1]))  # column 1 wrapped: slots 2, 3, 4, 0
    report(buffer, [7, 10, 13, 1], [1.0, 2.0, 3.0, 4.0])
    assert buffer.selector.priorities(buffer.ring, 1).tolist() == pytest.approx([1, 2, 3, 4])
    assert len(buffer.selector.priorities(buffer.ring, 0)) == 3


@pytest.mark.parametrize(
    "settings",
    [{"alpha": -0.1}, {"alpha": np.nan}, {"alpha": 1.0, "beta": -1.0}, {"alpha": 1.0, "mix": 1.1},
     {"alpha": 1.0, "small": 0.0}, {"alpha": 1.0, "initial_error": -1.0}],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(settings):
    with pytest.raises(ConfigError, match="Prioritised: .*expected"):
        Prioritised(10, **settings)


def test_an_alpha_that_cannot_be_is_refused_when_rows_are_drawn():
    buffer = buffer_of(alpha=1.0)
    buffer.add(World(VECTOR, 3, np.random.default_rng(0)).step(2))
    buffer.selector.alpha = -1.0
    with pytest.raises(ConfigError, match="alpha = -1"):
        buffer.sample(1, 2)


@pytest.mark.parametrize("alpha", [50.0, 300.0])
def test_no_alpha_makes_a_row_impossible_or_a_total_infinite(alpha):
    buffer = buffer_of(alpha=alpha, beta=0.5)
    buffer.add(World(VECTOR, 3, np.random.default_rng(0)).step(2))
    report(buffer, [0, 1, 2], [1e30, 0.0, 1e-9])
    assert len(all_priorities(buffer)) == 6
    with np.errstate(all="raise", under="ignore"):
        assert np.isfinite(buffer.sample(2, 4).weight).all()


def test_a_selector_of_another_ring_is_refused():
    ring = Ring(VECTOR, 60, 3)
    buffer = Buffer(ring, Prioritised(60, 0.6), OneStep(0.9), np.random.default_rng(0))
    with pytest.raises(ConfigError, match=r"built for 60 rows.*has 63.*ring\.rows"):
        buffer.add(World(VECTOR, 3, np.random.default_rng(0)).step(2))
    unaware = Buffer(ring, Prioritised(ring.rows, 0.6), OneStep(0.9), np.random.default_rng(0))
    with pytest.raises(ConfigError, match="knows none of the 6 rows"):
        unaware.sample(1, 1)


def test_priorities_and_n_steps_and_frame_stacks_work_together():
    rng = np.random.default_rng(0)
    ring, world = Ring(STACKS, 60, 3, {}, 3), World(STACKS, 3, rng)
    buffer = Buffer(ring, Prioritised(ring.rows, 0.6, 0.4), NStep(0.9, 3), rng)
    for _ in range(20):
        buffer.add(world.step(3))
        batch = buffer.sample(2, 8)
        buffer.update(batch, batch.reward)
        buffer.trim(45)
        check_ring(buffer.ring)
    assert set(np.unique(batch.weight)) != {1.0}
