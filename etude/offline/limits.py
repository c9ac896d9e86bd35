"""What a file of data may claim, held against what it is: small files that stand for gigabytes are refused before any
memory is taken."""

from __future__ import annotations

from pathlib import Path

from etude.base.errors import ConfigError, DataError
from etude.replay import storage

LEFT_ALONE = ("infos/", "metadata/")  # columns that are not read
TEXT = "infos/text"  # one of them: what episodes of tokens say, for people
RATIO = 1100  # of numbers to their compressed bytes: deflate reaches 1032
SLACK = 2**20  # bytes that need none: Parquet keeps a column of equal numbers in a few
BLOCK = 2**22  # bytes of numbers that are read at a time where a file is not read as a whole
COPIES = 2  # of the numbers of a file that are in memory at a time, at least


def require_regular(path: Path) -> None:
    """Raise DataError where this is no regular file: a pipe would be waited for, a device read without an end."""
    if not path.is_file():
        raise DataError(f"{path}: {'it is no regular file' if path.exists() else 'there is no such file'}.")


def require_stored(path: Path, name: str, claimed: int, stored: int) -> None:
    """Raise DataError where a column claims more bytes than those that are stored can hold."""
    if claimed > RATIO * stored + SLACK or claimed > 0 == stored:
        raise DataError(
            f"{path}: column {name!r} claims {claimed:,} bytes, of which {stored:,} are stored: it is damaged, or was "
            "never written. Record or download it again."
        )


def require_memory(path: Path, claimed: int) -> None:
    """Raise DataError where so many bytes of numbers do not fit into memory."""
    try:
        storage.require_memory(COPIES * claimed, f"{path}: its data", "Split the file.")
    except ConfigError as error:
        raise DataError(str(error)) from None
