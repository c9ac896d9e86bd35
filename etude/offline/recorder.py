"""Steps as a rollout returns them, turned into a list of episodes."""

from __future__ import annotations

import dataclasses

from etude.base.data import Episode, Steps
from etude.offline.blocks import EpisodeAssembler


class EpisodeRecorder:
    """Puts episodes together from `Steps` of any environments, in the order in which they end.

    episodes: the whole ones so far.
    """

    def __init__(self) -> None:
        self.episodes: list[Episode] = []
        self._assembler = EpisodeAssembler()

    def add(self, steps: Steps) -> None:
        """Take in what was collected next. An episode whose first steps were not added is left out."""
        self._assembler.add(steps)
        if (block := self._assembler.take()) is not None:
            self.episodes += block.episodes()

    def cut(self) -> None:
        """End the open episodes where they are, truncated."""
        if (block := self._assembler.unfinished()) is not None:
            self.episodes += (dataclasses.replace(each, truncated=True) for each in block.episodes())
        self._assembler.forget()
