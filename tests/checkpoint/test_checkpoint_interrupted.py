"""A save that is killed, or that the disk refuses, costs nothing but itself."""

from __future__ import annotations

import errno
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_states import FullDisk, litter, same, small_state

from etude import checkpoint
from etude.base import files
from etude.base.errors import CheckpointError
from etude.checkpoint.run_directory import RunDirectory


class Hooked:
    """Calls `reached` before and after every operation of a save on the disk, and in the middle of writes."""

    def __init__(self, reached: Callable[[str], None]):
        self._reached = reached

    def around(self, name: str, operation: Callable) -> Callable:
        def hooked(*args: Any, **kwargs: Any) -> Any:
            self._reached(f"before {name}")
            result = operation(*args, **kwargs)
            self._reached(f"after {name}")
            return result

        return hooked

    def create(self, path: Path) -> Any:
        self._reached("before create")
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb")
        self._reached("after create")
        return self

    def write(self, data: Any) -> None:
        self._reached("before write")
        data = bytes(data)
        self._file.write(data[: len(data) // 2])
        self._file.flush()
        self._reached("within write")
        self._file.write(data[len(data) // 2 :])
        self._file.flush()
        self._reached("after write")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Hooked:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def hook(monkeypatch: pytest.MonkeyPatch, reached: Callable[[str], None]) -> None:
    hooked = Hooked(reached)
    monkeypatch.setattr(files, "create", hooked.create)
    for name in ("fsync", "replace", "unlink"):
        monkeypatch.setattr(files.os, name, hooked.around(name, getattr(os, name)))


def in_child(work: Callable[[], None]) -> int:
    """Start `work` in a process of its own, which ends when it is done; its id."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child


def killed(child: int) -> bool:
    """Wait for a process; whether it was killed."""
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def save_four(path: Path) -> None:
    with RunDirectory.resume(path, keep=2) as directory:
        directory.save(4, small_state(4))


def stages(path: Path) -> list[str]:
    """The operations of one save that removes an older checkpoint, in order."""
    reached: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        hook(patch, reached.append)
        save_four(path)
    return reached


def three_saved(path: Path) -> Path:
    with RunDirectory.create(path, "run") as directory:
        for step in (1, 2, 3):
            directory.save(step, small_state(step))
    return path


def test_a_save_killed_at_any_operation_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    names = stages(three_saved(tmp_path / "counted"))
    assert len(names) >= 30
    assert {"before fsync", "after fsync", "before replace", "after replace", "within write"} <= set(names)
    renamed = names.index("after replace")
    for stage in range(len(names)):
        path = three_saved(tmp_path / str(stage))
        left = iter(range(stage, -1, -1))

        def die(name: str, left: Any = left) -> None:
            if next(left) == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        def work(path: Path = path, die: Callable = die) -> None:
            hook(pytest.MonkeyPatch(), die)
            save_four(path)

        assert killed(in_child(work))
        with RunDirectory.resume(path) as directory:
            state, source, notes = directory.load(expect=("engine", "replay", "counters"))
            newest = 4 if stage >= renamed else 3
            assert same(state, small_state(newest)), names[stage]
            assert notes == [] and source == directory.saved()[newest]
            assert litter(directory.checkpoints) == []
            with pytest.raises(Exception, match="Another run is writing"):
                RunDirectory.create(path, "run")
        with pytest.raises(Exception, match="etude resume"):
            RunDirectory.create(path, "run")


def test_a_process_killed_at_random_loses_at_most_the_save_it_was_in(tmp_path: Path) -> None:
    rng = random.Random(0)
    path = three_saved(tmp_path / "run")
    reader, writer = os.pipe()
    step = 3

    def work() -> None:
        directory = RunDirectory.resume(path)
        for i in range(step + 1, step + 10_000):
            directory.save(i, {"replay": {"rows": np.full(30_000, i)}, "counters": {"step": i}})
            os.write(writer, b"%d " % i)

    for _ in range(60):
        child = in_child(work)
        told = os.read(reader, 2**20)  # waits until something has been saved
        time.sleep(rng.uniform(0.0, 0.01))
        os.kill(child, signal.SIGKILL)
        assert killed(child)
        os.write(writer, b"end")
        while not told.endswith(b"end"):
            told += os.read(reader, 2**20)
        last_told = int(told.split()[-2])
        with RunDirectory.resume(path) as directory:
            state, _, notes = directory.load()
            assert litter(directory.checkpoints) == [] and len(directory.saved()) <= 4
        step = state["counters"]["step"]
        assert last_told <= step <= last_told + 1 and notes == []
        assert np.array_equal(state["replay"]["rows"], np.full(30_000, step))
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_costs_one_error_and_nothing_that_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    path = tmp_path / "x.etude"
    checkpoint.write(path, small_state(1))
    for room in range(0, path.stat().st_size, 97):
        with monkeypatch.context() as patch:
            create = files.create
            patch.setattr(files, "create", lambda name, room=room, create=create: FullDisk(create(name), room, error))
            with pytest.raises(CheckpointError) as caught:
                checkpoint.write(path, small_state(2))
        assert os.strerror(error) in str(caught.value) and "untouched" in str(caught.value)
        assert litter(tmp_path) == []
        assert same(checkpoint.read(path), small_state(1))
    checkpoint.write(path, small_state(3))
    assert same(checkpoint.read(path), small_state(3))


@pytest.mark.parametrize("operation", ["fsync", "replace", "open"])
def test_any_operation_that_fails_leaves_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    path = tmp_path / "x.etude"
    checkpoint.write(path, small_state(1))

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(files.os, operation, refuse)
        with pytest.raises(CheckpointError, match="Read-only file system"):
            checkpoint.write(path, small_state(2))
    assert litter(tmp_path) == []
    assert same(checkpoint.read(path), small_state(1))


def test_an_interrupt_during_a_save_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(name: str) -> None:
        if name == "within write":
            raise KeyboardInterrupt

    checkpoint.write(tmp_path / "x.etude", small_state(1))
    with monkeypatch.context() as patch:
        hook(patch, interrupt)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.write(tmp_path / "x.etude", small_state(2))
    assert litter(tmp_path) == []
    assert same(checkpoint.read(tmp_path / "x.etude"), small_state(1))


def test_data_is_on_the_disk_before_the_name_and_the_name_before_the_save_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    hook(monkeypatch, order.append)
    checkpoint.write(tmp_path / "x.etude", small_state())
    last_write = max(i for i, name in enumerate(order) if name == "after write")
    assert order[last_write + 1 :] == [
        "before fsync", "after fsync", "before replace", "after replace", "before fsync", "after fsync",
    ]  # fmt: skip


def test_a_directory_in_the_place_of_the_file_is_refused_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.etude").mkdir()
    monkeypatch.setattr(files, "create", None)
    with pytest.raises(CheckpointError, match="Is a directory"):
        checkpoint.write(tmp_path / "x.etude", small_state())
    assert [path.name for path in tmp_path.iterdir()] == ["x.etude"]
