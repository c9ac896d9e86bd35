"""How two processes tell each other that it is the other's turn, beside the pipe that messages go through.

One byte through a pipe of its own costs a fifth of an empty message. Who hears it sees what was written to shared
memory before.
"""

from __future__ import annotations

import os
import select
import sys
from multiprocessing.connection import Connection, wait

_BELL = b"\xa7"


class Garbled(Exception):
    """Something else than a bell came through its pipe."""


class Ear:
    """Waits for messages on a connection, and for the other side to ring."""

    def __init__(self, connection: Connection, bell: Connection):
        self._connection, self._bell, self._number = connection, bell, bell.fileno()
        if sys.platform != "win32":  # which has no poll
            self._poll = select.poll()
            self._poll.register(connection, select.POLLIN)
            self._poll.register(bell, select.POLLIN)

    def listen(self, seconds: float | None) -> bool | None:
        """Wait, so long at most. True: it has rung. False: there is a message to receive, or nobody left to send one.
        None: neither. Raises Garbled."""
        if sys.platform == "win32":
            return self._listen_on_windows(seconds)
        heard = self._poll.poll(None if seconds is None else 1000 * seconds)
        for number, event in heard:
            if number == self._number and event & select.POLLIN:
                return _is_bell(os.read(number, 1))
        return False if heard else None

    def _listen_on_windows(self, seconds: float | None) -> bool | None:
        heard = wait([self._connection, self._bell], seconds)
        if self._connection in heard or not heard:
            return False if heard else None
        return _is_bell(self._bell.recv_bytes())


def _is_bell(heard: bytes) -> bool:
    if heard != _BELL:
        raise Garbled
    return True


def ring(bell: Connection) -> None:
    """Tell the other side that it is its turn. That nobody is left there shows to who listens for the answer."""
    try:
        if sys.platform == "win32":
            bell.send_bytes(_BELL)
        else:
            os.write(bell.fileno(), _BELL)
    except OSError:
        return
