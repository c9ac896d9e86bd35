"""Whatever is added, a ring gives back what the environments did: compared with a plain-Python record."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invariants import check_ring
from recorded_world import NESTED, STACKS, VECTOR, World, code_of

from etude.base import trees
from etude.base.checks import Stored
from etude.base.data import Steps
from etude.base.errors import CheckpointError, ConfigError, EtudeError, SpaceError
from etude.base.spaces import Box, Discrete, Spaces
from etude.replay import Advantages, Buffer, NStep, OneStep, Ring, Uniform, storage

LOG_PROB = {"log_prob": ((), np.float32)}
KINDS = pytest.mark.parametrize(("spaces", "stack"), [(VECTOR, 1), (NESTED, 1), (STACKS, 3)])


def ring_and_world(spaces, stack, rng, p_end=0.2, limit=None) -> tuple[Ring, World]:
    limit = int(rng.integers(1, 14)) if limit is None else limit
    return Ring(spaces, 3 * limit, 3, LOG_PROB, stack), World(spaces, 3, rng, p_end)


def random_steps(world: World, rng: np.random.Generator) -> Steps:
    """A few time steps of all columns or of some, now and then after a restart."""
    some = sorted(rng.choice(3, int(rng.integers(1, 4)), replace=False).tolist())
    columns = [0, 1, 2] if rng.random() < 0.6 else some
    restarts = tuple(column for column in columns if rng.random() < 0.1)
    return world.step(int(rng.integers(1, 9)), columns, restarts)


def assert_same(left, right) -> None:
    pairs, others = list(trees.items(left)), list(trees.items(right))
    assert [path for path, _ in pairs] == [path for path, _ in others]
    for (path, one), (_, other) in zip(pairs, others, strict=True):
        if isinstance(one, np.ndarray):
            assert one.dtype == other.dtype, path
            np.testing.assert_array_equal(one, other, err_msg=path)
        else:
            assert one == other, path


def assert_all_transitions_are_true(ring: Ring, world: World, limit: int | None = None) -> None:
    rows = ring.locate(np.arange(len(ring)))
    batch = OneStep(0.9)(ring, rows, np.ones(len(rows), np.float32))
    codes, kept = code_of(batch.observation), world.kept(limit or ring.limit)
    assert sorted(codes) == sorted(kept)  # the newest rows of every column, each once, and no others
    truth = [world.columns[column][position] for column, position in (kept[code] for code in codes)]
    assert_same(batch.observation, world.encode(codes))
    assert_same(batch.next_observation, world.encode([row.next_code for row in truth]))
    reward = np.array([row.reward for row in truth], np.float32)
    np.testing.assert_array_equal(batch.reward, reward)
    np.testing.assert_array_equal(batch.extras["log_prob"], -reward)
    np.testing.assert_array_equal(batch.discount, np.float32([0 if row.terminated else 0.9 for row in truth]))
    action = batch.action if world.spaces.action == NESTED.action else batch.action[:, 0] * 50
    np.testing.assert_allclose(action, [row.action for row in truth], rtol=1e-6)


@KINDS
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_every_transition_is_true_after_random_additions(spaces, stack, seed):
    rng = np.random.default_rng(seed)
    ring, world = ring_and_world(spaces, stack, rng, p_end=float(rng.choice([0.02, 0.2, 0.7])))
    for _ in range(12):
        ring.add(random_steps(world, rng))
        check_ring(ring)
        assert_all_transitions_are_true(ring, world)


def trim(ring: Ring, world: World, keep) -> None:
    """Trim a ring and the record of its world."""
    before = ring.locate(np.arange(len(ring))).tolist()
    gone = ring.trim(keep)
    after = ring.locate(np.arange(len(ring))).tolist()
    assert sorted(before) == sorted(gone.tolist() + after)
    wanted = keep if np.ndim(keep) else [-(-keep // 3)] * 3
    world.columns = [rows[-most:] if most else [] for rows, most in zip(world.columns, wanted, strict=True)]


@KINDS
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_every_transition_is_true_after_random_additions_trims_and_restarts(spaces, stack, seed):
    rng = np.random.default_rng(seed)
    ring, world = ring_and_world(spaces, stack, rng, p_end=float(rng.choice([0.02, 0.2, 0.7])))
    for _ in range(16):
        if rng.random() < 0.5:
            ring.add(random_steps(world, rng))
        elif rng.random() < 0.1:
            ring.clear()
            world.columns = [[], [], []]
            world.at = [[episode + 1, 0] for episode, _ in world.at]
        else:
            trim(ring, world, int(rng.integers(0, 3 * ring.limit + 3)) if rng.random() < 0.6 else rng.integers(0, 9, 3))
        check_ring(ring)
        assert_all_transitions_are_true(ring, world)
        twin = Ring(spaces, ring.capacity, 3, LOG_PROB, stack)
        assert twin.check_state(Stored(ring.state(), "ring")) == len(ring)
        twin.restore(deepcopy(ring.state()))
        check_ring(twin)
        assert_all_transitions_are_true(twin, world)


def test_a_trimmed_ring_keeps_the_newest_rows_of_each_column():
    ring, world = ring_and_world(VECTOR, 1, np.random.default_rng(0), limit=10)
    ring.add(world.step(8)), ring.add(world.step(1, [0]))
    assert len(ring.trim(100)) == 0
    trim(ring, world, 13)  # five of each
    assert ring.filled.tolist() == [5, 5, 5] and len(ring) == 15
    trim(ring, world, np.array([0, 9, 2]))
    assert ring.filled.tolist() == [0, 5, 2]
    assert_all_transitions_are_true(ring, world)
    for wrong in (-1, np.array([1, 2]), np.array([1, -2, 3])):
        with pytest.raises(ConfigError, match="Ring.trim: keep = .*3 columns"):
            ring.trim(wrong)


@KINDS
def test_trimming_frees_what_episodes_ended_with(spaces, stack):
    ring, world = ring_and_world(spaces, stack, np.random.default_rng(0), p_end=2.0, limit=10)
    ring.add(world.step(10))
    finals = (ring.observations if stack == 1 else ring.observations.inner).finals
    assert len(finals) == 30
    ring.trim(6)
    check_ring(ring)
    assert len(finals) == 3 * (2 + stack - 1)  # older frames of the oldest stack end with their episodes


@KINDS
def test_equal_columns_wrap_around_many_times(spaces, stack):
    rng = np.random.default_rng(0)
    ring, world = ring_and_world(spaces, stack, rng, limit=7)
    for times in [1] * 30 + [3] * 10 + [7] * 5:
        ring.add(world.step(times))
        check_ring(ring)
        assert_all_transitions_are_true(ring, world)
    assert ring.full and len(ring) == 21


def test_a_restart_makes_the_row_before_a_truncation_that_keeps_its_final_observation():
    rng = np.random.default_rng(0)
    ring, world = ring_and_world(VECTOR, 1, rng, p_end=0.0, limit=10)
    ring.add(world.step(3))
    ring.add(world.step(2, restart=(1,)))
    rows = ring.locate(np.arange(len(ring)))
    batch = OneStep(0.9)(ring, rows, np.ones(len(rows), np.float32))
    following = dict(zip(code_of(batch.observation), code_of(batch.next_observation), strict=True))
    assert following[1, 0, 2] == (1, 0, 3)  # the pending observation, not the first of the next episode
    assert following[0, 0, 2] == (0, 0, 3)
    assert (1, 1, 1) in following
    assert ring.kind[rows].sum() == 2 and (batch.discount == np.float32(0.9)).all()


def test_more_steps_than_the_ring_holds_leave_the_newest():
    rng = np.random.default_rng(0)
    ring, world = ring_and_world(STACKS, 3, rng, limit=4)
    ring.add(world.step(2))
    ring.add(world.step(19))
    check_ring(ring)
    assert_all_transitions_are_true(ring, world)


def test_a_cleared_ring_starts_anew():
    rng = np.random.default_rng(0)
    ring, world = ring_and_world(STACKS, 3, rng, limit=6)
    for _ in range(3):
        ring.add(world.step(6))
        assert ring.full
        ring.clear()
        check_ring(ring)
        assert len(ring) == 0 and not ring.full
        world.columns = [[] for _ in world.columns]
    ring.add(world.step(5))
    assert_all_transitions_are_true(ring, world)


@KINDS
def test_a_cleared_ring_holds_the_same_bytes_as_a_new_one(spaces, stack):
    rng = np.random.default_rng(0)
    used, world = ring_and_world(spaces, stack, rng, limit=6)
    for _ in range(10):
        used.add(random_steps(world, rng))
    used.clear()
    new = Ring(spaces, 18, 3, LOG_PROB, stack)
    for columns in ([0, 1, 2], [1]):  # column 1 is ahead of the others
        steps = world.step(2, columns)
        used.add(steps), new.add(steps)
        assert_same(used.state(), new.state())


def test_final_observations_do_not_pile_up():
    rng = np.random.default_rng(0)
    ring, world = ring_and_world(STACKS, 3, rng, p_end=1.0, limit=8)
    sizes = []
    for _ in range(30):
        ring.add(world.step(4))
        sizes.append(ring.nbytes)
    assert len(set(sizes[5:])) == 1
    assert len(ring.observations.starts) <= ring.rows


@KINDS
def test_a_restored_ring_continues_bit_for_bit(spaces, stack):
    for seed in range(15):
        rng = np.random.default_rng(seed)
        ring, world = ring_and_world(spaces, stack, rng)
        buffer = Buffer(ring, Uniform(), OneStep(0.9), np.random.default_rng(1))
        for _ in range(int(rng.integers(0, 8))):
            buffer.add(random_steps(world, rng))
        state = deepcopy(buffer.state())
        twin = Buffer(
            Ring(spaces, ring.capacity, 3, LOG_PROB, stack), Uniform(), OneStep(0.9), np.random.default_rng(2)
        )
        twin.add(World(spaces, 3, np.random.default_rng(9)).step(4))  # what was there before is forgotten
        twin.check_state(Stored(state, "replay"))
        twin.restore(state)
        assert_same(twin.state(), buffer.state())
        for _ in range(6):
            steps = random_steps(world, rng)
            buffer.add(steps), twin.add(steps)
            check_ring(twin.ring)
            one, other = buffer.sample(2, 5), twin.sample(2, 5)
            for name in ("observation", "action", "reward", "discount", "next_observation", "index"):
                assert_same(getattr(one, name), getattr(other, name))
        assert_same(twin.state(), buffer.state())


def test_a_partly_filled_ring_saves_only_what_it_holds():
    ring, world = ring_and_world(VECTOR, 1, np.random.default_rng(0), limit=1000)
    ring.add(world.step(10))
    assert len(ring.state()["reward"]) == 3 * 11  # ten rows and the pending observation
    stacks, world = ring_and_world(STACKS, 3, np.random.default_rng(0), limit=1000)
    stacks.add(world.step(10))
    stacks.trim(15)
    assert len(stacks.state()["reward"]) == 3 * 11


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (Ring(VECTOR, 60, 3, LOG_PROB), "capacity was 30, is 60"),
        (Ring(NESTED, 30, 3, LOG_PROB), "observation was"),
        (Ring(VECTOR, 30, 2, LOG_PROB), "environments was 3, is 2"),
        (Ring(VECTOR, 30, 3), "extras was"),
        (Ring(VECTOR, 30, 3, LOG_PROB, 1, (2,)), r"reward was \[\], is \[2\]"),
    ],
)
def test_a_ring_refuses_the_state_of_another(other, word):
    with pytest.raises(CheckpointError, match=word):
        other.check_state(Stored(Ring(VECTOR, 30, 3, LOG_PROB).state(), "replay/ring"))


def test_wrong_steps_are_refused_with_a_reason():
    ring, world = ring_and_world(VECTOR, 1, np.random.default_rng(0), p_end=0.0, limit=10)
    steps = world.step(2)

    def changed(**fields) -> Steps:
        return Steps(**{name: getattr(steps, name) for name in Steps.__slots__} | fields)

    with pytest.raises(SpaceError, match=r"action .* shape \(3,\); expected \(2,\)"):
        ring.add(changed(action=np.zeros((2, 3, 3), np.float32)))
    with pytest.raises(SpaceError, match=r"observation .* shape \(5,\); expected \(3,\)"):
        ring.add(changed(observation=np.zeros((2, 3, 5), np.float32)))
    with pytest.raises(ConfigError, match=r"\[0, 1, 3\].*from 0 to 2"):
        ring.add(changed(columns=np.array([0, 1, 3])))
    with pytest.raises(ConfigError, match="different numbers"):
        ring.add(changed(columns=np.array([0, 1, 1])))
    with pytest.raises(ConfigError, match="'log_prob'"):
        ring.add(changed(extras={}))
    with pytest.raises(EtudeError, match=r"in order: \[\[1, 2\]\]"):
        ring.add(changed(truncated=np.array([[False, False, False], [False, False, True]])))
    ring.add(steps)  # nothing was lost
    check_ring(ring)
    assert_all_transitions_are_true(ring, world)


def test_rewards_of_several_agents_are_stored_with_each_row():
    ring, world = Ring(VECTOR, 12, 3, reward_shape=(2,)), World(VECTOR, 3, np.random.default_rng(0))
    seen = []
    for times in (3, 2, 7):
        steps = world.step(times)
        both = replace(steps, reward=np.stack([steps.reward, 10 * steps.reward], -1))
        assert len(both) == 3 * times and both.shape == (times, 3)
        ring.add(both)
        seen += both.reward.tolist()
    assert len(ring) == 12
    rows = ring.locate(np.arange(12))
    assert ring.reward[rows].reshape(4, 3, 2).tolist() == seen[-4:]
    with pytest.raises(SpaceError, match=r"reward .* shape \(\); expected \(2,\)"):
        ring.add(world.step(1))


def test_observations_that_are_no_stacks_are_refused():
    spaces = Spaces(Box(0, 255, (3, 2, 1), np.uint8), Discrete(50))
    with pytest.raises(ConfigError, match="frame_stack = 4, but no observation is a stack"):
        Ring(spaces, 10, frame_stack=4)
    ring, rng = Ring(spaces, 10, 1, frame_stack=3), np.random.default_rng(0)
    nothing = np.zeros((1, 1), bool)
    observation, following = rng.integers(1, 255, (2, 1, 3, 2, 1)).astype(np.uint8)
    steps = Steps(
        observation[None], np.zeros((1, 1), np.int64), np.zeros((1, 1), np.float32), nothing, nothing, following,
        following[:0], np.zeros((0, 2), np.int64), np.zeros(1, np.int64), nothing[0],
    )  # fmt: skip
    with pytest.raises(ConfigError, match="do not share 2 frames"):
        ring.add(steps)


def test_a_transition_takes_at_most_65_per_cent_of_one_that_stores_both_observations():
    spaces = Spaces(Box(-np.inf, np.inf, (17,), np.float32), Box(-1, 1, (6,), np.float32))
    both = 4 * (17 + 17 + 6 + 3)  # observation, next observation, action; reward, done and time-out as float32
    assert Ring(spaces, 80_000, 8).nbytes / 80_000 <= 0.65 * both


def test_four_frames_take_at_most_8000_bytes_a_transition():
    spaces = Spaces(Box(0, 255, (4, 84, 84), np.uint8), Discrete(6))
    assert Ring(spaces, 1000, 1, frame_stack=4).nbytes / 1000 <= 8000


@KINDS
def test_the_bytes_are_known_before_a_ring_is_built(spaces, stack):
    for shape in ((), (2,)):
        ring = Ring(spaces, 300, 3, LOG_PROB, stack, shape)
        assert ring.bytes_needed == ring.nbytes


def test_a_ring_that_does_not_fit_in_memory_is_refused_before_it_is_built(monkeypatch):
    monkeypatch.setattr(storage, "available_memory", lambda: (1_000_000_000, "memory limit of this container"))
    spaces = Spaces(Box(0, 255, (4, 84, 84), np.uint8), Discrete(6))
    with pytest.raises(ConfigError, match=r"28\.2. GB, but only 1\.00 GB .*container.*buffer_size"):
        Ring(spaces, 1_000_000)
    Ring(spaces, 100_000, frame_stack=4)


def test_the_smallest_limit_on_memory_counts(tmp_path):
    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    assert storage.available_memory(tmp_path) is None
    write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
    assert storage.available_memory(tmp_path) == (8_192_000, "free memory of this machine")
    write("proc/self/cgroup", "0::/job/worker\n")
    write("sys/fs/cgroup/job/worker/memory.max", "max\n")
    write("sys/fs/cgroup/job/memory.max", "5000000\n")
    write("sys/fs/cgroup/job/memory.current", "2000000\n")
    write("sys/fs/cgroup/job/memory.stat", "anon 1000000\ninactive_file 500000\n")
    assert storage.available_memory(tmp_path) == (3_500_000, "memory limit of this container")
    write("proc/self/cgroup", "4:cpu,memory:/elsewhere\n")
    write("sys/fs/cgroup/memory/memory.limit_in_bytes", "1000")
    write("sys/fs/cgroup/memory/memory.usage_in_bytes", "900")
    write("sys/fs/cgroup/memory/memory.stat", "total_inactive_file 50\n")
    assert storage.available_memory(tmp_path) == (150, "memory limit of this container")


@KINDS
def test_rows_that_stay_in_a_trimmed_ring_make_the_batches_that_they_made_before(spaces, stack):
    rng = np.random.default_rng(3)
    ring, world = ring_and_world(spaces, stack, rng, limit=12)
    value = lambda observation: (observation if spaces is VECTOR else observation["code"]).sum(-1)  # noqa: E731
    for _ in range(12):
        ring.add(random_steps(world, rng))
        keep = int(rng.integers(1, 36))
        rows = ring.locate(np.arange(len(ring)))
        rows = rows[ring.episodes.until_head(rows) <= -(-keep // 3)]
        weight = np.ones(len(rows), np.float32)
        views = (OneStep(0.9), NStep(0.9, 3), Advantages(0.9, 0.8, value))
        before = [view(ring, rows, weight) for view in views]
        ring.trim(keep)
        assert sorted(rows.tolist()) == sorted(ring.locate(np.arange(len(ring))).tolist())
        for view, batch in zip(views, before, strict=True):
            after = view(ring, rows, weight)
            for name in ("observation", "reward", "discount", "extras"):
                assert_same(getattr(after, name), getattr(batch, name))
            if batch.next_observation is not None:
                assert_same(after.next_observation, batch.next_observation)
