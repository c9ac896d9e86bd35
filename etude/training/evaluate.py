"""How good an agent is: whole episodes on environments of their own, with the agent's best actions and its normalisers
frozen; in this process, by workers while training goes on, or by a function of the user's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from etude.base import trees
from etude.base.data import EpisodeEnd, WorkerWarning, listed, return_text
from etude.base.errors import CallbackError
from etude.base.seeding import generator
from etude.envs import make_environments, make_for_evaluation
from etude.envs.adapter import task_data
from etude.envs.faults import explain_error
from etude.protocols import Environments, Explorer, Weights
from etude.rollout.actor import Actor, acted
from etude.rollout.collector import EpisodeStatistics
from etude.rollout.pool import PortableActor
from etude.workers.channel import Job, Server, SharedMemory, WorkerChannel
from etude.workers.process import Failure
from etude.workers.supervisor import Supervised, WorkerOptions, WorkerSupervisor, split_environments


@dataclass(frozen=True)
class Evaluation:
    """Undiscounted returns and lengths of whole episodes, in the environment's own rewards. Those of several agents are
    summed; `returns_by_agent` has those of each, by name. metrics: of an evaluation function of one's own."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    cut_off: int = 0  # episodes that had not ended after `max_steps`, and count with what they had earned by then
    returns_by_agent: dict[str, tuple[float, ...]] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def of(played: list[EpisodeEnd], cut_off: int, agents: tuple[str, ...]) -> Evaluation:
        """Of these episodes, in their order."""
        by_agent = {name: tuple((end.total_by_agent or {})[name] for end in played) for name in agents}
        return Evaluation(tuple(end.total for end in played), tuple(end.length for end in played), cut_off, by_agent)

    @staticmethod
    def joined(parts: Iterable[Evaluation]) -> Evaluation:
        """One evaluation of all episodes of several, in their order."""
        parts = list(parts)
        by_agent = {
            agent: tuple(value for part in parts for value in part.returns_by_agent[agent])
            for agent in parts[0].returns_by_agent
        }
        returns = tuple(value for part in parts for value in part.returns)
        lengths = tuple(length for part in parts for length in part.lengths)
        return Evaluation(returns, lengths, sum(part.cut_off for part in parts), by_agent)

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """The standard deviation of the returns over episodes."""
        return float(np.std(self.returns))

    @property
    def mean_by_agent(self) -> dict[str, float]:
        """The mean return of each of several agents, by name."""
        return {agent: float(np.mean(returns)) for agent, returns in self.returns_by_agent.items()}

    def __str__(self) -> str:
        if not self.returns:
            return ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items()) or "no episodes"
        length = f", mean length {np.mean(self.lengths):.0f}" if self.lengths else ""
        both = {agent: (float(np.mean(of)), float(np.std(of))) for agent, of in self.returns_by_agent.items()}
        each = [f"{agent} {return_text(mean)} ± {return_text(std)}" for agent, (mean, std) in both.items()]
        return (
            f"return {return_text(self.mean)} ± {return_text(self.std)} over {len(self.returns)} episodes "
            f"(lowest {return_text(min(self.returns))}, highest {return_text(max(self.returns))}{length})"
            + (f"; by agent: {listed(each)}" if each else "")
        ) + (f"; {self.cut_off} cut off" if self.cut_off else "")

    def __repr__(self) -> str:
        return f"<Evaluation: {self}>"


class EvaluationRequest(NamedTuple):
    """What to play: see `Run.evaluate`. environments: that are stepped side by side, at most."""

    episodes: int
    seed: int | None = None
    max_steps: int | None = None
    task: Any = None
    explore: bool = False
    env: Any = None
    steps: int | None = None
    environments: int = 10

    @property
    def parallel(self) -> int:
        """How many environments play it side by side."""
        return min(self.episodes, self.environments)

    def share(self, column: int) -> tuple[int, int]:
        """The whole episodes, and the steps in them, that environment number `column` plays at least."""
        episodes, rest = divmod(self.episodes, self.parallel)
        return episodes + (column < rest), -(-(self.steps or 0) // self.parallel)


def play(
    request: EvaluationRequest,
    columns: np.ndarray,
    actor: Actor,
    explorer: Explorer,
    stopped: Callable[[], bool] = lambda: False,
) -> Evaluation | None:
    """The episodes of the environments with these numbers, which are made for it and closed; see `evaluate`.

    request: with its seed and its environment.
    """
    assert request.seed is not None
    environments, cut_at = make_for_evaluation(request.env, columns, request.seed, request.max_steps)
    try:
        if request.task is not None:
            environments.set_task(task_data(request.task))
        return evaluate(environments, actor, explorer, request, cut_at, stopped)
    finally:
        environments.close()


def evaluate(
    environments: Environments,
    actor: Actor,
    explorer: Explorer,
    request: EvaluationRequest,
    cut_at: int | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Evaluation | None:
    """Play whole episodes; None where `stopped`, which is asked before every step, says so.

    Each environment plays a fixed share, so that short episodes are not counted more often than long ones, and is then
    stepped no more, unless it is part of a native simulator. Environments that play a part of a request play the same
    episodes as beside the others.
    cut_at: the length of the episodes that the environments truncate for this evaluation alone.
    """
    assert request.seed is not None
    columns, n = environments.columns, len(environments.columns)
    shares = [request.share(int(column)) for column in columns]
    rng, explorer = generator(request.seed, "evaluation"), explorer.of(columns)
    statistics, state = EpisodeStatistics(n, environments.spaces.agents), np.full((n, explorer.state_size), np.nan)
    recurrent = np.zeros((n, actor.state_size), np.float32)
    finished: list[list[EpisodeEnd]] = [[] for _ in range(n)]
    observation, cut_off, playing = trees.map(np.array, environments.reset()), 0, list(range(n))
    while playing:
        if stopped():
            return None
        noise = explorer.draw(rng, request.parallel, environments.spaces.action)[columns]
        output, recurrent = acted(actor, observation, recurrent)
        choice = explorer(output, noise, 0, state)
        stepped = list(range(n)) if environments.native else list(playing)
        following, reward, _, truncated, final = environments.step(choice.action[stepped], stepped)
        if actor.state_size:
            recurrent[stepped] = actor.rewarded(actor.acted(recurrent, choice.action)[stepped], reward)
        trees.put(observation, stepped, following)
        statistics.add(environments.scores, reward, stepped)
        for place in final:
            i = stepped[place]
            if i in playing:
                end = statistics.end(i, int(environments.columns[i]), len(finished[i]), bool(truncated[place]))
                finished[i].append(end)
                cut_off += end.truncated and end.length == cut_at
                episodes, steps = shares[i]
                if len(finished[i]) >= episodes and sum(end.length for end in finished[i]) >= steps:
                    playing.remove(i)
            state[i], recurrent[i] = np.nan, 0.0
            statistics.reset(i)
    return Evaluation.of([end for done in finished for end in done], cut_off, statistics.agents)


EvaluationFunction = Callable[[Any], Any]  # called with the run
RESERVED = ("mean_reward", "mean_ep_length", "cut_off")  # names under `eval/` that are taken


def evaluate_with(function: EvaluationFunction, run: Any, step: int, target: float | None) -> Evaluation:
    """What `function(run)` found: see docs/training.md. step: of the run. target: that returns are compared with.

    Raises CallbackError where it raises, or returns something else.
    """
    name = getattr(function, "__name__", type(function).__name__)
    try:
        found = function(run)
    except Exception as error:
        raised = f"Evaluation function {name} raised {explain_error(error)} at step {step:,}."
        raise CallbackError(raised, error) from None
    if not isinstance(found, Evaluation):
        given = dict(found) if isinstance(found, Mapping) else {"returns": found}
        returns = _returns(given.pop("returns", ()))
        metrics = {key: number for key, value in given.items() if (number := _number(value)) is not None}
        wrong = [key for key in given if key not in metrics or not isinstance(key, str) or key in ("", *RESERVED)]
        if returns is None or wrong or not (returns or metrics):
            got = f"{wrong[0]!r}: {given[wrong[0]]!r}" if wrong else repr(found)
            raise CallbackError(
                f"Evaluation function {name} returned {got[:200]} at step {step:,}; expected the returns of episodes "
                "(numbers), an Evaluation, or a dict of numbers by name, in which 'returns' may hold the returns of "
                f"episodes. Names other than {', '.join(RESERVED)}."
            )
        found = Evaluation(returns, (), metrics=metrics)
    if target is not None and not found.returns:
        raise CallbackError(
            f"Evaluation function {name} returned no returns at step {step:,}, and target = {target} is compared with "
            "their mean. Return {'returns': [...], ...}, or leave the target out."
        )
    return found


def _returns(given: Any) -> tuple[float, ...] | None:
    """The returns of episodes; None where they are none."""
    try:
        array = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        return None
    return tuple(array.reshape(-1).tolist()) if array.ndim <= 1 and not np.isnan(array).any() else None


def _number(value: Any) -> float | None:
    """A number, of whatever library; None for what is none."""
    try:
        return None if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError):
        return None


OPTIONS = WorkerOptions()


class EvaluationWorkers(Supervised):
    """Processes that play evaluations, one at a time. Results do not depend on how many they are, nor on when they
    play.

    make_actor: called in a worker, which loads the weights of each evaluation. env: as `Run` takes it. All of it
    travels by cloudpickle. environments: that are played side by side, split among the workers.
    """

    def __init__(
        self,
        make_actor: Callable[[], PortableActor],
        explorer: Explorer,
        env: Any,
        seed: int,
        environments: int,
        workers: int,
    ):
        server = functools.partial(_EvaluationServer, make_actor, explorer, env, seed)
        named = "Evaluation worker", "its episodes are played again"
        self._workers = [
            OPTIONS.backend.worker(i, columns, server, named=named)
            for i, columns in enumerate(split_environments(environments, workers))
        ]
        self._supervisor = WorkerSupervisor(self._workers, OPTIONS)
        self._requests: dict[int, tuple[EvaluationRequest, np.ndarray, Weights]] = {}  # by worker
        self._found: dict[int, Evaluation] = {}

    def start(self, request: EvaluationRequest, weights: Weights) -> None:
        """Begin to play, in the workers. request: with a seed; for the environments that the workers were made for."""
        self._found.clear()
        for worker in self._workers:
            self._requests[worker.number] = request, np.array(worker.columns), weights
            worker.ask(self._requests[worker.number])

    def result(self, stopped: Callable[[], bool]) -> Evaluation | None:
        """What was played since `start`, once it is complete; None where `stopped` says so before. A worker that died
        or hangs is replaced, and plays its part again. Raises what the environment raised."""
        while waiting := [worker for worker in self._workers if worker.number not in self._found]:
            for worker, answer in self._supervisor.wait(waiting, stopped):
                if isinstance(answer, Failure):
                    self._supervisor.replace(worker, answer)
                    worker.ask(self._requests[worker.number])
                else:
                    worker.failures, self._found[worker.number] = 0, answer
            if stopped():
                return None
        return Evaluation.joined(self._found[worker.number] for worker in self._workers)

    def warnings(self) -> list[str]:
        """Workers that were replaced since the last call, and why."""
        return [str(text) for text in self._supervisor.take_warnings() if isinstance(text, WorkerWarning)]


class _EvaluationServer(Server):
    """Plays what is requested, in a worker. Every evaluation has new environments, as in the process that trains; some
    are made before the first, so that what goes wrong with them shows at once."""

    def __init__(
        self,
        make_actor: Callable[[], PortableActor],
        explorer: Explorer,
        env: Any,
        seed: int,
        job: Job,
        memory: SharedMemory,
    ):
        make_environments(env, np.array(job.columns), run_seed=seed).close()
        self._actor, self._explorer, self._env = make_actor(), explorer, env
        self._counters = memory.counter_array()

    def serve(self, asked: tuple[EvaluationRequest, np.ndarray, Weights], channel: WorkerChannel) -> None:
        """Play the part of a request of the environments with these numbers, with these weights, and send the
        `Evaluation`."""
        request, columns, weights = asked
        self._actor.load(weights)
        channel.send(play(request._replace(env=self._env), columns, self._actor, self._explorer, self._count_step))

    def _count_step(self) -> bool:
        """The parent sees by it that this process does not hang."""
        self._counters[0] += 1
        return False
