"""Which optimizer, or which agent with which optimizer, learns best at first."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from typing import Any

from etude.base.cores import usable_cores
from etude.base.errors import ConfigError
from etude.base.optimizers import check_optimizer
from etude.run import Run
from etude.run.copies import arguments_like
from etude.solo.agent import RL
from etude.solo.engines import weights
from etude.solo.strategy import StrategyArguments
from etude.solo.temporary import temporary
from etude.tuning.executors import ProcessExecutor
from etude.tuning.finding.candidates import (
    AgentCandidate,
    CandidateRecord,
    FinderSettings,
    Limits,
    RunCandidate,
    SentAgentCandidate,
    Trained,
)
from etude.tuning.finding.runs import steps_of_run
from etude.tuning.finding.suggestion import Metric
from etude.tuning.segment import Segment, SegmentFailed

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
        self._records: list[CandidateRecord] = []
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
            if number is not None and (type(number) is not int or number < 1):
                raise ConfigError(f"{name} = {number!r}; expected a whole number of at least 1, or None.")
        if jobs is None:
            jobs = min(len(self.agents), usable_cores())
        if strategy is not None:
            jobs = 1
        if isinstance(self.agents[0], Run):
            limits, candidates = self._of_runs(train_loss, pool_network, strategy, episodes, options)
        else:
            limits = Limits(episodes or 1, 0, {"p": 0, "pool_network": pool_network, **options})
            candidates = self._of_agents(limits, strategy, jobs)
        settings = FinderSettings(tuple(candidates), limits)
        self._records = _here(settings) if jobs == 1 else _in_workers(settings, jobs)
        self.logs = self._compared(metrics)
        best = self.logs["best"]
        if train_loss is not None and best is not None and self._records[best].losses:
            train_loss.update_state(self._records[best].mean_loss)
        return self.logs

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """A header and a row for each candidate, as text."""
        rows = []
        for i, record in enumerate(self._records):
            numbers = ("" if x is None else f"{x:.4g}" for x in (record.mean_reward, record.mean_loss))
            status = record.problem.partition("\n")[0] or ("best" if i == self.logs["best"] else "")
            name = optimizer_name(self.optimizers[i])
            rows.append((str(i), name, *numbers, str(len(record.rewards)), status))
        return ("candidate", "optimizer", "mean reward", "mean loss", "episodes", "status"), rows

    def _of_agents(self, limits: Limits, strategy: Any, jobs: int) -> list[Any]:
        """ConfigError for what cannot train or be sent; the first agent's networks are complete afterwards."""
        first: Any = self.agents[0]
        given = None if strategy is None else StrategyArguments(strategy)
        with temporary(first, first._options(limits.options), given, optimizer=self.optimizers[0]):
            values = weights(first)
        candidates: list[Any] = []
        for agent, optimizer in zip(self.agents, self.optimizers, strict=True):
            assert isinstance(agent, RL)
            if jobs == 1:
                candidates.append(AgentCandidate(agent, optimizer, values, first.seed, strategy))
            else:
                candidates.append(SentAgentCandidate.of(agent, optimizer, values, first.seed))
        return candidates

    def _of_runs(
        self, train_loss: Any, pool_network: bool, strategy: Any, episodes: int | None, options: dict[str, Any]
    ) -> tuple[Limits, list[Any]]:
        steps = steps_of_run(train_loss, pool_network, strategy, options, STEPS)
        first: Any = self.agents[0]
        values, moments = first.engine.weights(), first.learner.policy_state()["moments"]
        candidates = []
        for run, optimizer in zip(self.agents, self.optimizers, strict=True):
            assert isinstance(run, Run)
            arguments = {**arguments_like(run, **_changes(run.algorithm, optimizer)), "seed": first.setup.seed}
            candidates.append(RunCandidate(arguments, values, copy.deepcopy(moments)))
        return Limits(episodes, steps, {}), candidates

    def _compared(self, metrics: Metric) -> dict[str, Any]:
        records = dict(enumerate(self._records))
        rewards = {i: mean for i, record in records.items() if (mean := record.mean_reward) is not None}
        losses = {i: mean for i, record in records.items() if (mean := record.mean_loss) is not None}
        best = max(rewards, key=rewards.__getitem__, default=None)
        if metrics == "loss":
            best = min(losses, key=losses.__getitem__, default=None)
        return {
            "best_reward": max(rewards.values(), default=NO_REWARD),
            "best_loss": min(losses.values(), default=NO_LOSS),
            "best": best,
            "best_opt": None if best is None else self.optimizers[best],
            "rewards": {i: record.rewards for i, record in records.items()},
            "losses": {i: record.losses for i, record in records.items()},
            "failed": {i: record.problem for i, record in records.items() if record.problem},
            "own_weights": [i for i, record in records.items() if record.own_weights],
        }


class OptFinder(ParallelFinder):
    """Trains one agent for a while with each of several optimizers. See `ParallelFinder`."""

    def __init__(self, agent: RL | Run, optimizers: Sequence[Any]):
        optimizers = list(optimizers)
        super().__init__([agent] * len(optimizers), optimizers)
        self.agent = agent


def optimizer_name(optimizer: Any) -> str:
    """What an optimizer is called in a table; the names of several, or of one and its learning rate."""
    if isinstance(optimizer, list | tuple):
        return ", ".join(f"{one:g}" if isinstance(one, int | float) else type(one).__name__ for one in optimizer)
    return type(optimizer).__name__


def _changes(algorithm: str, given: Any) -> dict[str, Any]:
    """The fields of a config that a candidate changes: an optimizer, or a pair of it and a learning rate."""
    optimizer, *rates = given if isinstance(given, tuple) else (given,)
    check_optimizer(f"The finder of {algorithm}", optimizer)
    if len(rates) > 1 or not all(isinstance(rate, int | float) and rate > 0 for rate in rates):
        raise ConfigError(
            f"The finder of {algorithm} got {given!r}; expected an optimizer and a learning rate above 0."
        )
    return {"optimizer": optimizer, **({"learning_rate": float(rates[0])} if rates else {})}


def _here(settings: FinderSettings) -> list[CandidateRecord]:
    return [settings.trained(i, lambda: False) for i in range(len(settings.candidates))]


def _in_workers(settings: FinderSettings, jobs: int) -> list[CandidateRecord]:
    """The records of all candidates, so many of which train at a time."""
    records: dict[int, CandidateRecord] = {}
    waiting = deque(range(len(settings.candidates)))
    executor = ProcessExecutor(min(jobs, len(waiting)), restarts=0)
    try:
        executor.open(settings)
        while len(records) < len(settings.candidates):
            while waiting and executor.free:
                executor.begin(Segment(waiting.popleft(), {}, None, 0, 1))
            for report in executor.wait():
                if isinstance(report, Trained):
                    records[report.trial] = report.record
                elif isinstance(report, SegmentFailed):
                    records[report.trial] = CandidateRecord(problem=report.reason)
    finally:
        executor.close()
    return [records[i] for i in sorted(records)]
