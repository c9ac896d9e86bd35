"""Data, spaces, trees, events, errors, schedules, seeding and checks: imported everywhere, importing nothing else of
etude and no framework."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `etude.base.events` is there for who imports etude alone
    from etude.base import data as data
    from etude.base import errors as errors
    from etude.base import events as events
    from etude.base import spaces as spaces
