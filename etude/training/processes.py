"""What the loops of the processes of one run agree on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from etude.base.errors import CallbackError, EnvironmentFault
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

    def failed(self, error: BaseException) -> None:
        """An error ends the loop. All processes raise those of environments and of steps; of others, nobody knows in
        which processes, and the group ends."""
        if self._group is not None and not isinstance(error, CallbackError | EnvironmentFault):
            self._leave(error)

    def guarded(self, function: Callable[..., None]) -> Callable[..., None]:
        """A function that may fail in this process alone, such as a reporter: the group ends with it."""
        if self._group is None:
            return function

        def call(*arguments: Any) -> None:
            try:
                function(*arguments)
            except BaseException as error:
                self._leave(error)
                raise

        return call

    def _leave(self, error: BaseException) -> None:
        assert self._group is not None
        self._group.leave(f"{type(error).__name__}: {error}")
        self._give_up()
