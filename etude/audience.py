"""Those who listen to a run."""

from __future__ import annotations

from collections.abc import Iterable

from etude.events import Event, Warned
from etude.protocols import Reporter


class Audience:
    """Tells events to reporters. One that cannot write (a full disk) costs a warning, once, and not the run; whatever
    else a reporter raises is raised."""

    def __init__(self, reporters: Iterable[Reporter]):
        self._reporters = list(reporters)
        self._failed: set[int] = set()  # positions of those that were warned of

    def tell(self, event: Event) -> None:
        """Tell every reporter; a warning goes to all of them, too."""
        for i, reporter in enumerate(self._reporters):
            try:
                reporter(event)
            except OSError as error:
                if i not in self._failed:
                    self._failed.add(i)
                    name = getattr(reporter, "__name__", type(reporter).__name__)
                    self.tell(Warned(event.step, f"{name} cannot write: {error}. The run goes on without its records."))
