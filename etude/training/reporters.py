"""The list of reporters of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from etude.base.errors import ConfigError
from etude.base.events import Event, Warned
from etude.protocols import Reporter


class Reporters:
    """Calls reporters with events. One that cannot write (a full disk) costs a warning, once, and not the run; whatever
    else a reporter raises is raised."""

    def __init__(self, reporters: Reporter | Iterable[Reporter]):
        """Raises ConfigError for what is no reporter."""
        given: Any = [reporters] if callable(reporters) else reporters
        self._reporters = list(given) if isinstance(given, Iterable) else [given]
        if not all(callable(reporter) for reporter in self._reporters):
            raise ConfigError(
                f"report = {reporters!r}; expected a reporter, or a list of them: callables that get every event, such "
                "as etude.report.RunProgress()."
            )
        self._failed: set[int] = set()  # positions of reporters that could not write

    def report(self, event: Event) -> None:
        """Call every reporter with the event, and with the warning about one that cannot write."""
        for i, reporter in enumerate(self._reporters):
            try:
                reporter(event)
            except OSError as error:
                if i not in self._failed:
                    self._failed.add(i)
                    name = getattr(reporter, "__name__", type(reporter).__name__)
                    self.report(
                        Warned(event.step, f"{name} cannot write: {error}. The run goes on without its records.")
                    )
