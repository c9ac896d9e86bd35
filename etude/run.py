"""A run: one agent trained on one environment, saved, loaded and gone on with."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from etude import assembly, checkpoint, engines, exploration
from etude.agent import Agent
from etude.assembly import Setup
from etude.audience import Audience
from etude.cadence import Cadence
from etude.checks import Stored
from etude.collection import Collection
from etude.cores import Busy
from etude.engines.numpy import NumpyEngine
from etude.envs import make_environments
from etude.errors import CheckpointError, ConfigError
from etude.evaluate import Evaluation, evaluate
from etude.events import Evaluated, Event, Finished, Saved, Started, Warned
from etude.interrupt import stop_on_interrupt
from etude.learner import Learner
from etude.loop import Learning, Loop
from etude.protocols import Engine, Explorer, Reporter
from etude.recorded import Held, NothingCollected, OfflineLearner, data_for, describe_data, fill, only_data, show
from etude.run_directory import RunDirectory
from etude.spaces import Spaces, describe

COMPONENTS = ("description", "engine", "replay", "rollout", "progress", "moments", "scale")


class Run:
    """Trains one agent on one environment.

    algorithm: a name from `etude list`, or an `Agent`.
    env: a Gymnasium id, "module:callable", or a callable that returns an environment.
    config: the algorithm's config; None takes the preset for this environment, or the defaults.
    policies: where the environment has several agents, which policy drives which: "each" (one for each agent, the
        default), "shared" (one for all), a dict or a function from agent to policy, or `Policies`.
    data: recorded episodes, for the algorithms that learn from them: the path of a file, a `Dataset` of
        `etude.offline`, or canonical episodes. All steps of bc, cql, iql, marwil and td3_bc are gradient steps, and
        `env` is only evaluated on; airl and gail step it, and the data shows them an expert.
    run_dir: where checkpoints go; None keeps everything in memory.
    explorer: one of `etude.explore`, or your own, in the place of the one that the config describes.
    setup: the fields of `Setup`: seed, engine, device, compiled, environments, workers, overlap, vectorization,
        replay_folder.
    """

    def __init__(
        self,
        algorithm: str | Agent,
        env: Any,
        *,
        config: Any = None,
        policies: Any = None,
        data: Any = None,
        run_dir: RunDirectory | None = None,
        explorer: Explorer | None = None,
        **setup: Any,
    ):
        self.setup, self.environment, self.directory = _setup(setup), env, run_dir
        spaces = _spaces(env)
        self.algorithm, self.agent = assembly.agent_for(algorithm, env, config, spaces, policies)
        exploration.check(self.agent, explorer, spaces)
        self.explorer = explorer
        self._data = data_for(data, self.agent, self.setup, env, spaces)
        count = 1 if only_data(self.agent) else assembly.parallel(self.setup, self.algorithm, self.agent, env)
        self.setup = dataclasses.replace(self.setup, environments=count)
        self.engine: Engine = engines.create(
            self.setup.engine,
            self.agent,
            spaces,
            seed=self.setup.seed,
            device=self.setup.device,
            compiled=self.setup.compiled,
            busy=Busy(self.setup.workers, self.setup.workers if self.setup.overlap else 0),
        )
        halves = self._from_data if only_data(self.agent) else self._from_environment
        self.learner, learning, self._collection = halves(count)
        self._loop = Loop(learning, self._collection, self.setup.overlap, self._save, self._evaluated)
        self._acts_only = False  # loaded without its replay

    def _from_environment(self, count: int) -> tuple[Learner, Learning, Collection]:
        agent, engine, setup = self.agent, self.engine, self.setup
        replay = assembly.replay_for(agent, engine, setup.seed, count, setup.replay_folder)
        make_explorer = functools.partial(exploration.explorer_for, agent, engine.spaces, self.explorer, count=count)
        make_rollout = functools.partial(assembly.rollout_for, self.environment, agent, engine, setup)
        learner = Learner(agent, engine, replay, assembly.together(agent, count), setup.seed)
        if self._data is not None:
            show(learner, self._data, setup.seed)
        return learner, learner, Collection(make_explorer, make_rollout, engine.spaces, count, setup.seed)

    def _from_data(self, count: int) -> tuple[Learner, Learning, NothingCollected]:
        assert self._data is not None
        rows, setup = describe_data(self._data)["transitions"], self.setup
        replay = assembly.recorded_replay_for(self.agent, self.engine, setup.seed, rows, setup.replay_folder)
        learner = Learner(self.agent, self.engine, replay, count, setup.seed)
        fill(learner, self._data)
        return learner, OfflineLearner(learner), NothingCollected()

    @property
    def step(self) -> int:
        """Environment steps so far; gradient steps, where the run learns from recorded data."""
        return self.learner.progress.step

    # -- training ------------------------------------------------------------------------------------------------------

    def train(self, steps: int, report: Iterable[Reporter] = (), **cadence: Any) -> Finished:
        """Take exactly `steps` environment steps (gradient steps, on recorded data), telling each event to every
        reporter. (Algorithms that learn from whole episodes end with the round in which they have taken so many.)

        cadence: the fields of `Cadence`. Ctrl-C once ends the run after the step at hand, twice at once.
        """
        audience, event = Audience(report), None
        with stop_on_interrupt(self.stop):
            for event in self.steps(steps, **cadence):
                audience.tell(event)
        assert isinstance(event, Finished)
        return event

    def stop(self) -> None:
        """Ask the run to end after the step at hand."""
        self._loop.stop("interrupted")

    def steps(self, steps: int, **cadence: Any) -> Iterator[Event]:
        """Take exactly `steps` steps, as `train` does; yields what happens. cadence: the fields of `Cadence`.

        Whenever an event is yielded, all that was collected is learned from: the run may be saved, or left there. Where
        the environment fails, the run is saved (in its directory) before the error is raised.
        """
        if steps < 1:
            raise ConfigError(f"A run of {steps} steps; expected at least 1 environment step.")
        self._refuse_without_replay("train on")
        plan, end = Cadence(**cadence), self.step + steps
        self.learner.progress.total = max(self.learner.progress.total, end)
        yield Started(self.step, {**self.description(), "end": end})
        yield from self._loop.steps(end, plan)

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
            return evaluate(environments, self.actor(), assembly.best_for(self.engine.spaces), episodes, seed)
        finally:
            environments.close()

    def actor(self) -> Any:
        """What acts with the present weights, by `act(observation [N, ...])`: NumPy where it can, else the engine. See
        `rollout.recall.Actor` for agents with a memory."""
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
        named = isinstance(self.environment, str)
        config, functions = assembly.plain_config(self.agent.config)
        return {
            "algorithm": self.algorithm,
            "environment": self.environment if named else repr(self.environment),
            "environment_is_named": named,
            "config": config,
            "functions": functions,
            "explorer": exploration.described(self.explorer),
            "policies": assembly.plain_policies(self.agent, self.engine.spaces),
            "setup": dataclasses.asdict(self.setup),
            "engine": self.engine.name,
            "device": self.engine.device,
            "observation_space": describe(self.engine.spaces.observation),
            "action_space": describe(self.engine.spaces.action),
            "total": self.learner.progress.total,
            "steps": "gradient" if only_data(self.agent) else "environment",
            "data": None if self._data is None else describe_data(self._data),
        }

    def state(self) -> dict[str, Any]:
        """The whole run as plain data and arrays, by component. Write them before going on: some are views."""
        self._refuse_without_replay("save")
        return {"description": self.description(), **self.learner.state(), "rollout": self._collection.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the state of a run of the same agent on the same environment.

        Raises CheckpointError with the place of what does not fit, and has then changed nothing.
        """
        held = Stored(state, "").fields([name for name in COMPONENTS if name != "replay"], ("replay", "perturbation"))
        described = held["description"].table()
        algorithm = held["description"].fields(("algorithm",), described)["algorithm"].text()
        if algorithm != self.algorithm:
            raise CheckpointError(
                f"This checkpoint is of {algorithm}, and the run is of {self.algorithm}. Load it with etude.load, or "
                "make the run with the same algorithm."
            )
        self.learner.check_state(held)
        structure = self.engine.structure
        trained = {name: structure.initial[name] for name in structure.trainable}
        self._collection.check_state(held["rollout"], trained)
        self.learner.restore(state)
        self._collection.restore(state["rollout"])
        self._acts_only = "replay" not in state

    def _refuse_without_replay(self, what: str) -> None:
        if self._acts_only:
            raise CheckpointError(
                f"This run was loaded without its replay, to act only; it cannot {what}. Load all of it: etude.load."
            )

    def save(self, path: str | Path) -> None:
        """Write the whole run to one file."""
        checkpoint.write(Path(path), self.state())

    def _save(self, kind: str) -> Iterator[Event]:
        if self.directory is None:
            return
        save = self.directory.save if kind == "last" else self.directory.save_best
        try:
            path = save(self.step, self.state())
        except CheckpointError as error:
            yield Warned(self.step, f"The run goes on without this checkpoint. {error}")
            return
        yield Saved(self.step, str(path), kind)

    def close(self) -> None:
        """End workers and close environments; the run can go on all the same. May be called twice."""
        self._collection.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def load(path: str | Path, env: Any = None, config: Any = None, agent: Agent | None = None, **setup: Any) -> Run:
    """The run in a checkpoint file, ready to go on.

    env, config: needed again where they were not names and numbers (a callable, a network of your own).
    agent: needed again where the run was given an agent of your own.
    setup: fields of `Setup` that differ now, such as workers or device; explorer, where it was one of your own.
    """
    return from_state(checkpoint.read(Path(path), expect=set(COMPONENTS)), env, config, agent, **setup)


def from_state(
    state: dict[str, Any],
    env: Any = None,
    config: Any = None,
    agent: Agent | None = None,
    run_dir: RunDirectory | None = None,
    **setup: Any,
) -> Run:
    """A run that continues from `Run.state`; see `load`. Without the component `replay` it acts and cannot train."""
    described, rest_given = assembly.check_description(state), config is not None or agent is not None or bool(setup)
    if env is None and not described["environment_is_named"]:
        raise ConfigError(f"This run's environment was made by {described['environment']}: give it again, as env=.")
    if agent is None and config is None:
        config = assembly.config_from(described)
    if "explorer" not in setup:
        setup["explorer"] = exploration.explorer_from(described.get("explorer"))
    settings = {**described["setup"], "engine": described["engine"], **setup}
    if "replay" not in state:
        settings["replay_folder"] = None  # it belongs to the run that trains
    with assembly.built_as_described(env is not None, rest_given):
        run = Run(
            described["algorithm"] if agent is None else agent,
            described["environment"] if env is None else env,
            config=config,
            policies=assembly.policies_from(described),
            data=Held(described["data"]) if described.get("data") else None,
            run_dir=run_dir,
            **settings,
        )
    run.restore(state)
    return run


def _setup(given: dict[str, Any]) -> Setup:
    names = [field.name for field in dataclasses.fields(Setup)]
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise ConfigError(
            f"Run takes no argument {', '.join(unknown)}; besides config, policies and run_dir it takes "
            f"{', '.join(names)}."
        )
    return Setup(**given)


def _spaces(env: Any) -> Spaces:
    environments = make_environments(env, np.arange(1), run_seed=0)
    try:
        return environments.spaces
    finally:
        environments.close()
