"""Which optimizer, or which agent with which optimizer, learns best at first; candidates train in this process or in
workers."""

from __future__ import annotations

import copy
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import cloudpickle

from etude.base import checks
from etude.base.cores import usable_cores
from etude.base.errors import ConfigError, NetworkError
from etude.base.events import Collected, Learned
from etude.base.forks import dumps
from etude.envs.faults import report_of
from etude.optimizers import check_optimizer
from etude.run import Run
from etude.solo.agent import RL
from etude.solo.callbacks import AgentCallback
from etude.solo.engines import backend_of, load_weights, weights
from etude.solo.files import AgentCopy
from etude.solo.session import SessionState, state_of
from etude.solo.training import plain_attributes, temporary
from etude.training.description import RunDescription
from etude.training.learner import Learner
from etude.tuning.executors import Executor, ProcessExecutor, SerialExecutor, carried_out
from etude.tuning.finding.lr_finder import Metric, steps_of_run
from etude.tuning.segment import Ended, Segment, SegmentFailed, SegmentRuns


@dataclass
class _CandidateRecord:
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


Watch = Callable[[], bool]  # called after every event of a training


class _RunCandidate(NamedTuple):
    """A new run. made: what makes it. weights, moments: what it begins with, and what normalises its observations; a
    run whose weights have other names or shapes begins with its own."""

    made: RunDescription
    weights: dict[str, Any]
    moments: dict[str, Any] | None

    def train(self, record: _CandidateRecord, limits: _FinderSettings, watch: Watch) -> None:
        """Train from the beginning and fill the record; raises what goes wrong."""
        with Run.of(self.made) as run:
            own = {name: x.shape for name, x in run.engine.weights().items()}
            record.own_weights = own != {name: x.shape for name, x in self.weights.items()}
            if not record.own_weights:
                run.engine.load(self.weights)
                if run.learner.moments is not None and self.moments is not None:
                    run.learner.moments.restore(self.moments)
            for event in run.steps(limits.options["steps"]):
                watch()
                if isinstance(event, Learned) and event.losses:
                    record.losses.append(statistics.fmean(event.losses.values()))
                elif isinstance(event, Collected):
                    record.rewards += [end.total for end in event.episodes]
                if limits.episodes is not None and len(record.rewards) >= limits.episodes:
                    del record.rewards[limits.episodes :]
                    break


class _AgentCandidate(NamedTuple):
    """An agent of one's own, in this process, whose training is undone. weights: what it begins with."""

    agent: RL
    optimizer: Any
    weights: dict[str, Any]
    seed: int
    strategy: Any = None

    def train(self, record: _CandidateRecord, limits: _FinderSettings, watch: Watch) -> None:
        """Train from the beginning and fill the record; raises what goes wrong."""
        begin = {"optimizer": self.optimizer, "seed": self.seed}
        with temporary(self.agent, limits.options, self.strategy, **begin) as train:
            try:
                load_weights(self.agent, self.weights)
            except NetworkError:
                record.own_weights = True
            train(limits.episodes, [_RecordedEpisodes(record, watch)])


class _RecordedEpisodes(AgentCallback):
    """Records the reward and the loss of every episode."""

    def __init__(self, record: _CandidateRecord, watch: Watch):
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
        own, attributes = state_of(agent), {**plain_attributes(agent), "env": agent.env}
        state = SessionState(own.settings, made_with=own.made_with)
        copy = AgentCopy.of(agent, optimizer, state, attributes)
        try:
            return SentAgentCandidate(dumps(copy), backend_of(agent), weights, seed)
        except Exception as error:  # whatever objects raise that cannot be pickled
            raise ConfigError(
                f"{type(agent).__name__} cannot be sent to a worker process: {error}. Give it an environment by name "
                "or as a callable, and plain arguments, or train the candidates in this process: jobs=1."
            ) from error

    def train(self, record: _CandidateRecord, limits: _FinderSettings, watch: Watch) -> None:
        """Train from the beginning and fill the record; raises what goes wrong."""
        if self.backend is not None:
            os.environ["KERAS_BACKEND"] = self.backend
        agent = cloudpickle.loads(self.copy).made()
        _AgentCandidate(agent, agent.optimizer, self.weights, self.seed).train(record, limits, watch)


class Trained(NamedTuple):
    """The report of a candidate whose training has ended, by itself or by an error."""

    trial: int
    record: _CandidateRecord


@dataclass(frozen=True)
class _FinderSettings(SegmentRuns):
    """What all candidates of a finder have in common, a `segment.SegmentSettings`; and what trains them in a process.

    episodes: at which the training of a candidate ends; None: no limit. options: of `RL.train`, for agents of one's
    own; of runs, their environment `steps`.
    """

    worker: ClassVar[str] = "Finder worker"
    loss: ClassVar[str] = "its candidate begins again"

    candidates: tuple[Any, ...]
    episodes: int | None
    options: dict[str, Any]
    stopped: Watch = lambda: False  # in the process that trains, see `segment.SegmentSettings`

    def on(self, device: str) -> _FinderSettings:
        """The same: candidates have devices of their own."""
        return self

    def runs(self, stopped: Watch) -> _FinderSettings:
        """What trains candidates in this process."""
        return replace(self, stopped=stopped)

    def carry_out(self, segment: Segment) -> Iterator[Trained | Ended]:
        """See `segment.SegmentRuns`. What goes wrong is in the record of the candidate."""
        record = _CandidateRecord()
        try:
            self.candidates[segment.trial].train(record, self, self.stopped)
        except Exception as error:  # whatever an agent or an environment raises: the other candidates go on
            record.problem = report_of(error)
        yield Trained(segment.trial, record)
        yield Ended(segment.trial, 0, "steps", None)


STEPS = 10_000  # environment steps of a run
NO_REWARD, NO_LOSS = -1e9, 1e9  # in the logs where no candidate has any


class ParallelFinder:
    """Trains several agents for a while, each with its optimizer, in worker processes, and compares them by mean reward
    or mean loss. All begin with the seed of the first one and, where their networks are alike, with its weights, with
    new optimizers and an empty replay. The agents are left as they were, bit for bit.

    agents: of one's own (`etude.RL`, `etude.RL_pytorch`), or runs (`etude.Run`). optimizers: one for each agent, or a
        list of them for an agent with several lists in `param`; of a run, one of `etude.optimizers`, or a pair of it
        and a learning rate.

    After `find`, `logs` holds

    - `best_reward`, `best_loss`: the highest mean reward over the episodes of a candidate, and the lowest mean loss.
    - `best_opt`, `best`: the optimizer of the best candidate, and its number; None where all failed.
    - `rewards`, `losses`: by the number of a candidate, its reward of each episode and its loss of each learning phase.
    - `failed`: by number, why a candidate failed. `own_weights`: the numbers of those whose networks are not alike.
    """

    def __init__(self, agents: Sequence[RL | Run], optimizers: Sequence[Any]):
        self.agents: list[RL | Run] = list(agents)
        self.optimizers: list[Any] = list(optimizers)
        if not self.agents or len(self.agents) != len(self.optimizers):
            raise ConfigError(
                f"ParallelFinder got {len(self.agents)} agents and {len(self.optimizers)} optimizers; expected at "
                "least one agent, and one optimizer for each."
            )
        kinds = {Run if isinstance(agent, Run) else RL if isinstance(agent, RL) else None for agent in self.agents}
        if None in kinds or len(kinds) > 1:
            names = ", ".join(type(agent).__name__ for agent in self.agents)
            raise ConfigError(
                f"ParallelFinder got {names}; expected agents of your own, derived from etude.RL or etude.RL_pytorch, "
                "or runs, and not both."
            )
        self._records: list[_CandidateRecord] = []
        self.logs: dict[str, Any] = {"best_reward": NO_REWARD, "best_loss": NO_LOSS}

    def find(
        self,
        train_loss: Any = None,
        pool_network: bool = True,
        strategy: Any = None,
        episodes: int | None = None,
        metrics: Metric = "reward",
        jobs: int | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Train every candidate, and return the `logs`.

        train_loss: a keras.metrics.Mean that the best candidate's mean loss is added to, or None. pool_network,
            strategy, other options: those of `RL.train` (processes, jit_compile, ...), and of
            `RL.distributed_training` where there is a strategy. For runs: `steps` alone, environment steps of each,
            10,000 by default.
        episodes: of each candidate; None: 1, and for runs as many as end in `steps`.
        metrics: "reward" or "loss": what `best_opt` is the best by.
        jobs: candidates at a time, each in a worker process; 1: this process, one after the other, as with a strategy.
            None: as many as there are cores.

        A candidate that raises, diverges, or whose process dies has failed: the others go on.
        """
        if metrics not in ("reward", "loss"):
            raise ConfigError(f'metrics = {metrics!r}; expected "reward" or "loss".')
        for name, number in (("episodes", episodes), ("jobs", jobs)):
            checks.whole_number(name, number, none=True)
        if jobs is None:
            jobs = min(len(self.agents), usable_cores())
        if strategy is not None:
            jobs = 1
        candidates: list[Any] = []
        if isinstance(self.agents[0], Run):
            options = {"steps": steps_of_run(train_loss, pool_network, strategy, options, STEPS)}
            candidates = self._of_runs()
        else:
            episodes, options = episodes or 1, {"p": 0, "pool_network": pool_network, **options}
            first: Any = self.agents[0]
            with temporary(first, options, strategy, optimizer=self.optimizers[0]):
                values = weights(first)  # of networks that are complete now
            for agent, optimizer in zip(self.agents, self.optimizers, strict=True):
                assert isinstance(agent, RL)
                if jobs == 1:
                    candidates.append(_AgentCandidate(agent, optimizer, values, first.seed, strategy))
                else:
                    candidates.append(SentAgentCandidate.of(agent, optimizer, values, first.seed))
        self._records = self._trained(_FinderSettings(tuple(candidates), episodes, options), jobs)
        records = dict(enumerate(self._records))
        rewards = {i: mean for i, record in records.items() if (mean := record.mean_reward) is not None}
        losses = {i: mean for i, record in records.items() if (mean := record.mean_loss) is not None}
        best = max(rewards, key=rewards.__getitem__, default=None)
        if metrics == "loss":
            best = min(losses, key=losses.__getitem__, default=None)
        self.logs = {
            "best_reward": max(rewards.values(), default=NO_REWARD),
            "best_loss": min(losses.values(), default=NO_LOSS),
            "best": best,
            "best_opt": None if best is None else self.optimizers[best],
            "rewards": {i: record.rewards for i, record in records.items()},
            "losses": {i: record.losses for i, record in records.items()},
            "failed": {i: record.problem for i, record in records.items() if record.problem},
            "own_weights": [i for i, record in records.items() if record.own_weights],
        }
        if train_loss is not None and best is not None and self._records[best].losses:
            train_loss.update_state(self._records[best].mean_loss)
        return self.logs

    def _trained(self, settings: _FinderSettings, jobs: int) -> list[_CandidateRecord]:
        """The records of all candidates, so many of which train at a time."""
        records: dict[int, _CandidateRecord] = {}
        segments = iter([Segment(i, {}, None, 0, 1) for i in range(len(settings.candidates))])
        executor: Executor = SerialExecutor()
        if jobs > 1:
            executor = ProcessExecutor(min(jobs, len(settings.candidates)), restarts=0)
        with closing(carried_out(executor, settings, lambda: next(segments, None))) as reports:
            for report in reports:
                if isinstance(report, Trained):
                    records[report.trial] = report.record
                elif isinstance(report, SegmentFailed):
                    records[report.trial] = _CandidateRecord(problem=report.reason)
        return [records[i] for i in sorted(records)]

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """A header and a row for each candidate, as text."""
        rows = []
        for i, record in enumerate(self._records):
            numbers = ("" if x is None else f"{x:.4g}" for x in (record.mean_reward, record.mean_loss))
            status = record.problem.partition("\n")[0] or ("best" if i == self.logs["best"] else "")
            given = self.optimizers[i]  # one, several, or one and its learning rate
            parts = given if isinstance(given, list | tuple) else [given]
            name = ", ".join(f"{x:g}" if isinstance(x, int | float) else type(x).__name__ for x in parts)
            rows.append((str(i), name, *numbers, str(len(record.rewards)), status))
        return ("candidate", "optimizer", "mean reward", "mean loss", "episodes", "status"), rows

    def _of_runs(self) -> list[Any]:
        first: Any = self.agents[0]
        values, moments = first.engine.weights(), first.learner.policy_state()["moments"]
        candidates = []
        for run, optimizer in zip(self.agents, self.optimizers, strict=True):
            assert isinstance(run, Run)
            changes = _changes(run.algorithm, optimizer)
            if not isinstance(run.learner, Learner):
                raise ConfigError(
                    f"A run of several policies ({run.algorithm}) cannot be repeated: expected one algorithm. Give a "
                    "run of one of them."
                )
            made = run.described().learning(replace(run.agent.config, **changes), run.agent)
            made = made.with_execution(  # on one device, without a replay's folder
                replay_folder=None, ray=None, devices=None, strategy=None, seed=first.execution.seed,
                rewrite=copy.deepcopy(made.execution.rewrite),
            )  # fmt: skip
            candidates.append(_RunCandidate(made, values, copy.deepcopy(moments)))
        return candidates


class OptFinder(ParallelFinder):
    """Trains one agent for a while with each of several optimizers. See `ParallelFinder`."""

    def __init__(self, agent: RL | Run, optimizers: Sequence[Any]):
        optimizers = list(optimizers)
        super().__init__([agent] * len(optimizers), optimizers)
        self.agent = agent


def _changes(algorithm: str, given: Any) -> dict[str, Any]:
    """The fields of a config that a candidate changes: an optimizer, or a pair of it and a learning rate."""
    optimizer, *rates = given if isinstance(given, tuple) else (given,)
    check_optimizer(f"The finder of {algorithm}", optimizer)
    if len(rates) > 1 or not all(isinstance(rate, int | float) and rate > 0 for rate in rates):
        raise ConfigError(
            f"The finder of {algorithm} got {given!r}; expected an optimizer and a learning rate above 0."
        )
    return {"optimizer": optimizer, **({"learning_rate": float(rates[0])} if rates else {})}
