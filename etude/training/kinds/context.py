"""What a kind of learning makes its parts from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from etude.agent import Agent
from etude.offline.loading import RecordedData
from etude.protocols import Engine, ProcessGroup
from etude.training.setup import Setup
from etude.training.sources import Sources


@dataclass(frozen=True)
class TrainingContext:
    """One agent, its engine and its environment, and the settings of their run.

    environment: as `Run` takes it. setup: with the number of environments filled in. data: recorded episodes and their
    shares, for the kinds that use them. terms: those that terms of a loss read, by the term's name.
    group: the processes that train the run, where there are several.
    """

    agent: Agent
    engine: Engine
    environment: Any
    setup: Setup
    data: Sources | None = None
    terms: dict[str, RecordedData] = field(default_factory=dict)
    group: ProcessGroup | None = None

    @property
    def count(self) -> int:
        """The number of environments."""
        assert self.setup.environments is not None
        return self.setup.environments

    @property
    def team(self) -> tuple[int, ...]:
        """The shape of one step's rewards: () for one agent, (agents,) for several."""
        agents = self.engine.spaces.agents
        return () if agents is None else (len(agents),)

    def recorded(self) -> RecordedData:
        """The data, for kinds that need one source."""
        assert self.data is not None and self.data.single is not None
        return self.data.single
