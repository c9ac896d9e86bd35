"""Rings whose arrays are files: the same as in memory, in a folder of their own, gone when they are closed."""

import gc
import os
import subprocess
import sys
import textwrap
from copy import deepcopy

import numpy as np
import pytest
from invariants import check_ring
from recorded_world import STACKS, VECTOR, World
from test_ring import KINDS, LOG_PROB, assert_all_transitions_are_true, assert_same, random_steps

from etude.base.errors import ConfigError
from etude.replay import Buffer, NStep, Prioritised, Ring, storage


def buffer_in(folder, spaces=VECTOR, stack=1) -> Buffer:
    ring = Ring(spaces, 30, 3, LOG_PROB, stack, folder=folder)
    return Buffer(ring, Prioritised(ring.rows, 0.6, 0.4), NStep(0.9, 3), np.random.default_rng(1))


@KINDS
def test_a_ring_in_a_folder_holds_the_same_bytes_and_gives_the_same_batches(tmp_path, spaces, stack):
    rng = np.random.default_rng(0)
    world = World(spaces, 3, rng, 0.9)  # so many episodes that the store of their ends grows
    memory, disk = buffer_in(None, spaces, stack), buffer_in(tmp_path / "replay", spaces, stack)
    assert memory.ring.nbytes == disk.ring.nbytes
    for turn in range(12):
        steps = random_steps(world, rng)
        memory.add(steps), disk.add(steps)
        assert_same(memory.state(), disk.state())
        one, other = memory.sample(2, 5), disk.sample(2, 5)
        for name in ("observation", "action", "reward", "discount", "next_observation", "weight", "index", "extras"):
            assert_same(getattr(one, name), getattr(other, name))
        assert type(other.reward) is type(other.action) is np.ndarray
        if turn == 7:
            memory.trim(9), disk.trim(9)
            world.columns = [rows[-3:] for rows in world.columns]
        check_ring(disk.ring)
        assert_all_transitions_are_true(disk.ring, world)
    memory.restore(deepcopy(disk.state()))
    assert_same(memory.state(), disk.state())
    disk.close()


def test_all_large_arrays_are_files_and_closing_removes_them(tmp_path):
    folder = tmp_path / "deep" / "replay"
    ring = Ring(STACKS, 30_000, 3, LOG_PROB, 3, folder=folder)
    world = World(STACKS, 3, np.random.default_rng(0), 0.9)
    for times in (20, 500):  # many ends of episodes: the stores beside the ring grow
        ring.add(world.step(times))
    sizes = [file.stat().st_size for file in folder.glob("*.ring")]
    assert sum(sizes) == ring.nbytes
    if sys.platform == "linux":  # the blocks are taken, not promised: a full disk must not end the process later
        assert sum(file.stat().st_blocks * 512 for file in folder.glob("*.ring")) >= ring.nbytes
    ring.close()
    ring.close()
    assert [file.name for file in folder.iterdir()] == ["owner"]


def test_a_folder_belongs_to_one_ring_at_a_time(tmp_path):
    ring = Ring(VECTOR, 30, 3, folder=tmp_path)
    with pytest.raises(ConfigError, match=rf"holds the replay of process {os.getpid()} .*folder of its own"):
        Ring(VECTOR, 30, 3, folder=tmp_path)
    ring.add(World(VECTOR, 3, np.random.default_rng(0)).step(4))  # the refused one removed nothing
    assert len(list(tmp_path.glob("*.ring"))) > 3
    ring.close()
    Ring(VECTOR, 30, 3, folder=tmp_path).close()
    (tmp_path / "notes.txt").write_text("kept")
    forgotten = Ring(VECTOR, 30, 3, folder=tmp_path)
    del forgotten
    gc.collect()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["notes.txt", "owner"]


def test_what_a_killed_process_left_behind_is_removed_by_the_next_ring(tmp_path):
    code = f"""
        import os, signal
        from etude.replay import Ring
        from etude.base.spaces import Box, Discrete, Spaces
        ring = Ring(Spaces(Box(0, 1, (9,)), Discrete(2)), 100, 1, folder={str(tmp_path)!r})
        os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert len(list(tmp_path.glob("*.ring"))) == 5
    ring = Ring(VECTOR, 30, 3, folder=tmp_path)
    assert not ring.reward.any() and ring.reward.shape == (33,)
    ring.close()


def test_a_replay_that_does_not_fit_on_the_disk_is_refused_before_it_is_built(tmp_path, monkeypatch):
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1_000}))
    monkeypatch.setattr(storage, "available_memory", lambda: (10, "of memory, which does not count"))
    with pytest.raises(
        ConfigError, match=rf"takes 0\.03 GB, but only 0\.00 GB .*on the disk of {tmp_path}.*buffer_size"
    ):
        Ring(VECTOR, 1_000_000, folder=tmp_path)
    Ring(VECTOR, 9, folder=tmp_path).close()


def test_a_disk_that_is_full_is_an_error_and_not_a_crash(tmp_path, monkeypatch):
    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage.sys, "platform", "linux")
    monkeypatch.setattr(storage.os, "posix_fallocate", full)
    with pytest.raises(ConfigError, match="no room for .*No space left"):
        Ring(VECTOR, 30, folder=tmp_path)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used.*Name one"):
        Ring(VECTOR, 30, folder=tmp_path / "file")
