"""Files that are either wholly new or untouched, whatever happens while they are written."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

TEMPORARY = (
    ".saving"  # how the names of unfinished files end; they also begin with a dot, so that no `*.etude` finds them
)


def create(path: Path) -> BinaryIO:
    """Open a file for writing that must not exist yet."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb")


def temporary_beside(path: Path) -> Path:
    """A name for a file that is to take the place of `path`; `RunDirectory` removes what a killed process leaves."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` when the block ends, durably.

    If anything is raised, `path` is as it was and nothing is left behind. A process that is killed in between leaves a
    temporary file `.NAME.XXXX.saving`.

    Pillai et al. 2014, "All File Systems Are Not Created Equal", OSDI: a rename is only safe after an fsync of the
    data, and only durable after an fsync of the directory.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    temporary = temporary_beside(path)
    try:
        with create(temporary) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(path.parent)


def discard(paths: Iterable[Path]) -> None:
    """Remove files. Those that cannot be removed stay, and nothing is raised: training goes on."""
    for path in paths:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # network file systems that cannot, and need not
            raise
    finally:
        os.close(descriptor)
