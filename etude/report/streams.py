"""Text streams whose reader may go away: a terminal that is closed, a pipe to a program that ended."""

from __future__ import annotations

import errno
from typing import Any

GONE = (errno.EIO, errno.EPIPE, errno.ENXIO)


class Lasting:
    """A text stream that drops what nobody can read any more, instead of raising."""

    def __init__(self, stream: Any):
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or drop; the number of characters."""
        try:
            return self._stream.write(text)
        except UnicodeEncodeError as error:  # of a terminal, or a pipe, that knows few characters
            known = text.replace("±", "+-").encode(error.encoding, "replace").decode(error.encoding)
            return self._stream.write(known)
        except OSError as error:
            return _dropped(error, len(text))

    def flush(self) -> None:
        """Flush, or drop."""
        try:
            self._stream.flush()
        except OSError as error:
            _dropped(error, 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def printable(text: str, most: int | None = None) -> str:
    """A text, or its first characters, without any that would control a terminal: those as Python writes them."""
    shown = "".join(each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in text[:most])
    return shown if most is None or len(text) <= most else f"{shown}... ({len(text):,} characters)"


def _dropped(error: OSError, size: int) -> int:
    if error.errno not in GONE:
        raise error
    return size
