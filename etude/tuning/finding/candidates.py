"""Candidates of a finder: what each begins with, and its training in this process or in a worker process."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import cloudpickle

from etude.base.errors import ConfigError, NetworkError
from etude.base.events import Collected, Learned
from etude.envs.faults import report_of
from etude.run import Run
from etude.run.copies import take_weights
from etude.solo.agent import RL, SessionState
from etude.solo.callbacks import AgentCallback
from etude.solo.engines import load_weights
from etude.solo.engines.optimizers import backend_of
from etude.solo.files import AgentCopy
from etude.solo.strategy import StrategyArguments
from etude.solo.temporary import plain_attributes, temporary
from etude.tuning.segment import Ended, Segment, SegmentRuns


@dataclass
class CandidateRecord:
    """What the training of a candidate reported.

    rewards: of each episode. losses: of each learning phase, the mean over its updates and over its losses. problem:
    why it failed; "" where it did not. own_weights: whether it began with weights of its own, as its networks differ
    from those of the first candidate.
    """

    rewards: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    problem: str = ""
    own_weights: bool = False

    @property
    def mean_reward(self) -> float | None:
        """Over all episodes; None without one, and where it failed."""
        return statistics.fmean(self.rewards) if self.rewards and not self.problem else None

    @property
    def mean_loss(self) -> float | None:
        """Over all learning phases; None without one, and where it failed."""
        return statistics.fmean(self.losses) if self.losses and not self.problem else None


class Limits(NamedTuple):
    """When the training of a candidate ends, and how it goes.

    episodes: None: no limit. steps: environment steps of a run. options: of `RL.train`, for agents of one's own.
    """

    episodes: int | None
    steps: int
    options: dict[str, Any]


Watch = Callable[[], bool]  # called after every event of a training


class Candidate(Protocol):
    """What a finder compares."""

    def train(self, record: CandidateRecord, limits: Limits, watch: Watch) -> None:
        """Train from the beginning and fill the record; raises what goes wrong."""


class RunCandidate(NamedTuple):
    """A new run. arguments: of `Run`. weights, moments: what it begins with (see `take_weights`)."""

    arguments: dict[str, Any]
    weights: dict[str, Any]
    moments: dict[str, Any] | None

    def train(self, record: CandidateRecord, limits: Limits, watch: Watch) -> None:
        """See `Candidate`."""
        with Run(**self.arguments) as run:
            record.own_weights = not take_weights(run, self.weights, self.moments)
            for event in run.steps(limits.steps):
                watch()
                if isinstance(event, Learned) and event.losses:
                    record.losses.append(statistics.fmean(event.losses.values()))
                elif isinstance(event, Collected):
                    record.rewards += [end.total for end in event.episodes]
                if limits.episodes is not None and len(record.rewards) >= limits.episodes:
                    del record.rewards[limits.episodes :]
                    break


class AgentCandidate(NamedTuple):
    """An agent of one's own, in this process, whose training is undone. weights: what it begins with."""

    agent: RL
    optimizer: Any
    weights: dict[str, Any]
    seed: int
    strategy: Any = None

    def train(self, record: CandidateRecord, limits: Limits, watch: Watch) -> None:
        """See `Candidate`."""
        given = None if self.strategy is None else StrategyArguments(self.strategy)
        begin = {"optimizer": self.optimizer, "seed": self.seed}
        with temporary(self.agent, self.agent._options(limits.options), given, **begin) as training:
            try:
                load_weights(self.agent, self.weights)
            except NetworkError:
                record.own_weights = True
            if training.run(limits.episodes, [RecordedEpisodes(record, watch)]) == "interrupted":
                raise KeyboardInterrupt


class RecordedEpisodes(AgentCallback):
    """Records the reward and the loss of every episode."""

    def __init__(self, record: CandidateRecord, watch: Watch):
        self._record, self._watch = record, watch

    def on_steps_collected(self, event: Collected) -> None:
        """Show that training goes on."""
        self._watch()

    def on_update(self, event: Learned) -> None:
        """A learning phase is over."""
        self._record.losses.append(event.losses["loss"])

    def on_episode_end(self, episode: int, logs: dict[str, float]) -> None:
        """Every environment has ended an episode."""
        self._record.rewards.append(logs["reward"])


class SentAgentCandidate(NamedTuple):
    """An agent of one's own in a worker process. copy: an `AgentCopy` with attributes that are plain data, in
    cloudpickle, which is read once the backend of Keras is set."""

    copy: bytes
    backend: str | None
    weights: dict[str, Any]
    seed: int

    @staticmethod
    def of(agent: RL, optimizer: Any, weights: dict[str, Any], seed: int) -> SentAgentCandidate:
        """ConfigError for what cannot be sent."""
        own, attributes = agent._session_state, {**plain_attributes(agent), "env": agent.env}
        state = SessionState(own.settings, made_with=own.made_with)
        copy = AgentCopy.of(agent, optimizer, state, attributes)
        try:
            return SentAgentCandidate(cloudpickle.dumps(copy), backend_of(agent), weights, seed)
        except Exception as error:  # whatever objects raise that cannot be pickled
            raise ConfigError(
                f"{type(agent).__name__} cannot be sent to a worker process: {error}. Give it an environment by name "
                "or as a callable, and plain arguments, or train the candidates in this process: jobs=1."
            ) from error

    def train(self, record: CandidateRecord, limits: Limits, watch: Watch) -> None:
        """See `Candidate`."""
        if self.backend is not None:
            os.environ["KERAS_BACKEND"] = self.backend
        agent = cloudpickle.loads(self.copy).made()
        AgentCandidate(agent, agent.optimizer, self.weights, self.seed).train(record, limits, watch)


class Trained(NamedTuple):
    """The report of a candidate whose training has ended, by itself or by an error."""

    trial: int
    record: CandidateRecord


@dataclass(frozen=True)
class CandidateRuns:
    """Trains candidates in one process: `segment.SegmentRuns`."""

    settings: FinderSettings
    stopped: Watch

    def carry_out(self, segment: Segment) -> Iterator[Trained | Ended]:
        """See `segment.SegmentRuns`."""
        yield Trained(segment.trial, self.settings.trained(segment.trial, self.stopped))
        yield Ended(segment.trial, 0, "steps", None)

    def close(self) -> None:
        """Nothing is kept."""


class FinderSettings(NamedTuple):
    """What all candidates of a finder have in common: `segment.SegmentSettings`."""

    candidates: tuple[Any, ...]
    limits: Limits

    @property
    def worker(self) -> str:
        """What messages call a worker process."""
        return "Finder worker"

    @property
    def loss(self) -> str:
        """What is lost where one is replaced."""
        return "its candidate begins again"

    def on(self, device: str) -> FinderSettings:
        """The same: candidates have devices of their own."""
        return self

    def runs(self, stopped: Watch) -> SegmentRuns:
        """What trains candidates in this process."""
        return CandidateRuns(self, stopped)

    def trained(self, number: int, watch: Watch) -> CandidateRecord:
        """The record of one candidate; what goes wrong is in it."""
        record = CandidateRecord()
        try:
            self.candidates[number].train(record, self.limits, watch)
        except Exception as error:  # whatever an agent or an environment raises: the other candidates go on
            record.problem = report_of(error)
        return record
