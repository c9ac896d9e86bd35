"""What the loops of the processes of one run agree on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from etude.protocols import ProcessGroup


class LoopProcesses:
    """The processes that run one loop together; `group` is None where there is one.

    give_up: ends the rollout of this process, whose state is no longer gathered.
    """

    def __init__(self, group: ProcessGroup | None, give_up: Callable[[], None]):
        self._group, self._give_up = group, give_up

    def requests(self, stop: str | None, save: bool) -> tuple[str | None, bool]:
        """(the reason to stop, whether to save), as was asked of any process."""
        if self._group is None:
            return stop, save
        asked = self._group.gather("requests", (stop, save))
        return next((reason for reason, _ in asked if reason is not None), None), any(each for _, each in asked)

    def failed(self, error: BaseException | None) -> None:
        """An error, if there is one, ends the loop: the group ends with it, unless all processes raise it."""
        in_all = error is None or getattr(error, "in_all_processes", False)
        if self._group is not None and not in_all:
            self._group.leave(f"{type(error).__name__}: {error}")
            self._give_up()

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """What fails within, or may fail in this process alone, such as a reporter: the group ends with it."""
        try:
            yield
        except GeneratorExit:  # events that nobody asked for any more
            raise
        except BaseException as error:
            self.failed(error)
            raise
