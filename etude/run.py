"""The one loop: collect, add, sample, learn, load; and now and then evaluate and save. A generator of events."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from etude import assembly, checkpoint, engines
from etude.agent import Agent
from etude.assembly import Setup
from etude.config_json import from_json, to_json
from etude.engines.numpy import NumpyEngine
from etude.envs import make_environments
from etude.errors import CheckpointError, ConfigError
from etude.evaluate import Evaluation, evaluate
from etude.events import Collected, Evaluated, Event, Finished, Saved, Started, Warned
from etude.explore import Greedy
from etude.interrupt import stop_on_interrupt
from etude.learner import Learner
from etude.protocols import Engine, Reporter, Rollout
from etude.run_directory import RunDirectory
from etude.spaces import Spaces, describe

COMPONENTS = ("description", "engine", "replay", "rollout", "progress", "moments", "scale")


@dataclass(frozen=True)
class Cadence:
    """When a run evaluates and saves, in environment steps."""

    evaluate_every: int | None = None  # None: only when asked
    evaluate_episodes: int = 10
    target: float | None = None  # stop when the mean return of an evaluation reaches this
    save_every: int | None = None  # None: only at the end

    def __post_init__(self) -> None:
        for name in ("evaluate_every", "evaluate_episodes", "save_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} = {value}; expected a whole number of at least 1.")
        if self.target is not None and self.evaluate_every is None:
            raise ConfigError(f"target = {self.target} is reached by an evaluation: give evaluate_every, too.")


class Run:
    """Trains one agent on one environment.

    algorithm: a name from `etude list`, or an `Agent`.
    env: a Gymnasium id, "module:callable", or a callable that returns an environment.
    config: the algorithm's config; None takes the preset for this environment, or the defaults.
    run_dir: where checkpoints go; None keeps everything in memory.
    setup: the fields of `Setup`: seed, engine, device, compiled, environments, workers, overlap, vectorization.
    """

    def __init__(
        self,
        algorithm: str | Agent,
        env: Any,
        *,
        config: Any = None,
        run_dir: RunDirectory | None = None,
        **setup: Any,
    ):
        self.setup, self.environment, self.directory = _setup(setup), env, run_dir
        spaces = _spaces(env)
        self.algorithm, self.agent = assembly.agent_for(algorithm, env, config, spaces)
        count = assembly.parallel(self.setup, self.algorithm, self.agent, env)
        self.setup = dataclasses.replace(self.setup, environments=count)
        self.engine: Engine = engines.create(
            self.setup.engine,
            self.agent,
            spaces,
            seed=self.setup.seed,
            device=self.setup.device,
            compiled=self.setup.compiled,
        )
        self.learner = Learner(self.agent, self.engine, self.setup.seed, count)
        self._rollout: Rollout | None = None  # made when the first step is asked for
        self._rollout_state: dict | None = None  # what it is to continue from
        self._notes: list[str] = []
        self._stop = False

    @property
    def step(self) -> int:
        """Environment steps so far."""
        return self.learner.progress.step

    # -- training ------------------------------------------------------------------------------------------------------

    def train(self, steps: int, report: Iterable[Reporter] = (), **cadence: Any) -> Finished:
        """Take exactly `steps` environment steps, telling each event to every reporter.

        cadence: the fields of `Cadence`. Ctrl-C once ends the run after the step at hand, twice at once.
        """
        reporters, event = list(report), None
        with stop_on_interrupt(self.stop):
            for event in self.steps(steps, **cadence):
                for reporter in reporters:
                    reporter(event)
        assert isinstance(event, Finished)
        return event

    def stop(self) -> None:
        """Ask the run to end after the step at hand."""
        self._stop = True

    def steps(self, steps: int, **cadence: Any) -> Iterator[Event]:
        """Take exactly `steps` environment steps; yields what happens. cadence: the fields of `Cadence`."""
        if steps < 1:
            raise ConfigError(f"A run of {steps} steps; expected at least 1 environment step.")
        plan, progress = Cadence(**cadence), self.learner.progress
        end, began, reason = self.step + steps, time.perf_counter(), "steps"
        progress.total = max(progress.total, end)
        self._stop = False
        yield Started(self.step, self.description())
        self._open_rollout()
        while self.step < end:
            before = self.step
            yield from self._collect_and_learn(end, plan)
            if _crossed(before, self.step, plan.evaluate_every):
                evaluated = self._evaluated(plan.evaluate_episodes)
                yield evaluated
                if evaluated.best:
                    yield from self._save("best")
                if plan.target is not None and evaluated.mean >= plan.target:
                    reason = "target"
                    break
            if self._stop:
                reason = "interrupted"
                break
            if _crossed(before, self.step, plan.save_every) and self.step < end:
                yield from self._save("last")
        progress.seconds += time.perf_counter() - began
        yield from self._save("last")
        totals = {"episodes": progress.episodes, "updates": progress.updates}
        yield Finished(self.step, reason, progress.seconds, totals)

    def _open_rollout(self) -> None:
        if self._rollout is None:
            learner = self.learner
            explorer = assembly.explorer_for(self.agent, self.engine.spaces, learner.progress.total)
            self._rollout = assembly.rollout_for(self.environment, self.agent, self.engine, self.setup, explorer)
            if self._rollout_state is not None:
                self._notes = self._rollout.restore(self._rollout_state)
                self._rollout_state = None
            self._rollout.load(learner.acting_weights())

    def _collect_and_learn(self, end: int, plan: Cadence) -> Iterator[Event]:
        learner, rollout, began = self.learner, self._rollout, time.perf_counter()
        assert rollout is not None
        time_steps, environments = learner.chunk(end - self.step)
        steps = rollout.collect(time_steps, self.step, environments, self._upcoming(time_steps, end, plan))
        learner.take(steps)
        notes, self._notes = self._notes + rollout.warnings(), []
        for note in notes:
            yield Warned(self.step, note)
        yield Collected(self.step, steps.episodes, time.perf_counter() - began)
        learned = learner.learn_if_due()
        if learned is not None:
            yield learned
        if learner.follow_moments(steps) or learned is not None:
            rollout.load(learner.acting_weights())

    def _upcoming(self, time_steps: int, end: int, plan: Cadence) -> int:
        """Time steps that workers may collect ahead: none past the end, and none past a checkpoint, which would miss
        them."""
        if not self.setup.overlap:
            return 0
        after = self.step + time_steps * self.learner.count
        ahead = after + time_steps * self.learner.count
        return time_steps if ahead <= end and not _crossed(self.step, after, plan.save_every) else 0

    # -- evaluation ----------------------------------------------------------------------------------------------------

    def evaluate(self, episodes: int = 20, seed: int | None = None) -> Evaluation:
        """Play whole episodes with the best actions, on environments of their own and with frozen normalisers.

        seed: of the episodes; None takes one that belongs to the run, the same at every evaluation.
        """
        if episodes < 1:
            raise ConfigError(f"episodes = {episodes}; expected at least 1.")
        seed = self.setup.seed + assembly.EVALUATION if seed is None else seed
        environments = make_environments(self.environment, np.arange(min(episodes, 10)), run_seed=seed)
        try:
            return evaluate(environments, self.actor().act, Greedy(), episodes, seed)
        finally:
            environments.close()

    def actor(self) -> Any:
        """What acts with the present weights, by `act(observation [N, ...])`: NumPy where it can, else the engine."""
        if not self.engine.exportable:
            return self.engine
        actor = NumpyEngine(self.agent, self.engine.spaces)
        actor.load(self.learner.acting_weights())
        return actor

    def _evaluated(self, episodes: int) -> Evaluated:
        found, progress = self.evaluate(episodes), self.learner.progress
        best = progress.best is None or found.mean > progress.best
        progress.best = found.mean if best else progress.best
        return Evaluated(self.step, found.returns, found.lengths, best)

    # -- saving --------------------------------------------------------------------------------------------------------

    def description(self) -> dict[str, Any]:
        """What this run is, in plain data."""
        return {
            "algorithm": self.algorithm,
            "environment": self.environment if isinstance(self.environment, str) else repr(self.environment),
            "config": to_json(self.agent.config),
            "setup": dataclasses.asdict(self.setup),
            "engine": self.engine.name,
            "device": self.engine.device,
            "observation_space": describe(self.engine.spaces.observation),
            "action_space": describe(self.engine.spaces.action),
            "total": self.learner.progress.total,
        }

    def state(self) -> dict[str, Any]:
        """The whole run as plain data and arrays, by component."""
        rollout = self._rollout_state if self._rollout is None else self._rollout.state()
        return {"description": self.description(), **self.learner.state(), "rollout": rollout}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the state of a run of the same agent on the same environment."""
        if state["description"]["algorithm"] != self.algorithm:
            raise CheckpointError(
                f"This checkpoint is of {state['description']['algorithm']}, and the run is of {self.algorithm}. Load "
                "it with etude.load, or make the run with the same algorithm."
            )
        self.close()
        self.learner.restore(state)
        self._rollout_state = state["rollout"]

    def save(self, path: str | Path) -> None:
        """Write the whole run to one file."""
        checkpoint.write(Path(path), self.state())

    def _save(self, kind: str) -> Iterator[Event]:
        if self.directory is None:
            return
        save = self.directory.save if kind == "last" else self.directory.save_best
        try:
            yield Saved(self.step, str(save(self.step, self.state())), kind)
        except CheckpointError as error:
            yield Warned(self.step, f"The run goes on without this checkpoint. {error}")

    def close(self) -> None:
        """End workers and close environments. May be called twice."""
        if self._rollout is not None:
            self._rollout.close()
            self._rollout = None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def load(path: str | Path, env: Any = None, config: Any = None, **setup: Any) -> Run:
    """The run in a checkpoint file, ready to go on.

    env, config: needed again where they were not names and numbers (a callable, a network of your own).
    setup: fields of `Setup` that differ now, such as workers or device.
    """
    return from_state(checkpoint.read(Path(path), expect=set(COMPONENTS)), env, config, **setup)


def from_state(
    state: dict[str, Any], env: Any = None, config: Any = None, run_dir: RunDirectory | None = None, **setup: Any
) -> Run:
    """A run that continues from `Run.state`; see `load`."""
    described = state["description"]
    if config is None:
        config = from_json(assembly.find(described["algorithm"])[1], described["config"])
    settings = {**described["setup"], "engine": described["engine"], **setup}
    env = described["environment"] if env is None else env
    run = Run(described["algorithm"], env, config=config, run_dir=run_dir, **settings)
    run.restore(state)
    return run


def _setup(given: dict[str, Any]) -> Setup:
    names = [field.name for field in dataclasses.fields(Setup)]
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise ConfigError(
            f"Run takes no argument {', '.join(unknown)}; besides config and run_dir it takes {', '.join(names)}."
        )
    return Setup(**given)


def _spaces(env: Any) -> Spaces:
    environments = make_environments(env, np.arange(1), run_seed=0)
    try:
        return environments.spaces
    finally:
        environments.close()


def _crossed(before: int, now: int, every: int | None) -> bool:
    return every is not None and before // every != now // every
