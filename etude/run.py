"""A run: one agent trained on one environment, saved, loaded and gone on with."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from etude import checkpoint, engines, presets
from etude.agent import Agent
from etude.base.checks import Stored
from etude.base.cores import Busy
from etude.base.errors import CheckpointError, ConfigError
from etude.base.events import Evaluated, Event, Finished, Saved, Saving, Started, Warned
from etude.base.interrupt import obeying_signals
from etude.base.other_libraries import meant
from etude.base.seeding import generator
from etude.base.spaces import describe
from etude.checkpoint import trust as trust_
from etude.checkpoint.old_names import present_state
from etude.checkpoint.run_directory import RunDirectory, is_path, read_run
from etude.engines.numpy import NumpyEngine
from etude.envs import examine, make_for_evaluation
from etude.protocols import Engine, Explorer, Reporter
from etude.rollout import SingleActor
from etude.training import build
from etude.training.build import exploration
from etude.training.evaluate import Evaluation, evaluate
from etude.training.learner import Learner
from etude.training.loop import Learning, Loop
from etude.training.recorded import (
    Held,
    NothingCollected,
    OfflineLearner,
    data_for,
    describe_data,
    fill,
    only_data,
    show,
)
from etude.training.reporters import Reporters
from etude.training.rollout_lifecycle import RolloutLifecycle
from etude.training.schedule import Schedule

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
    run_dir: where checkpoints go: the path of a new run directory, which is closed with the run, or a `RunDirectory`;
        None keeps everything in memory.
    explorer: one of `etude.explore`, or your own, in the place of the one that the config describes.
    more: `env_args`, a dict of keyword arguments for what makes the environment, plain data; `wrappers`, callables or
        "module:Name", each called with what the one before it returned, the first with the environment; the fields of
        `Setup`: seed, engine, device, compiled, environments, workers, overlap, vectorization, replay_folder; and
        fields of the algorithm's config, which change the preset, or the defaults.
    """

    def __init__(
        self,
        algorithm: str | Agent,
        env: Any,
        *,
        config: Any = None,
        policies: Any = None,
        data: Any = None,
        run_dir: RunDirectory | str | Path | None = None,
        explorer: Explorer | None = None,
        **more: Any,
    ):
        self.environment, self.setup, config = build.settle(algorithm, env, config, more)
        self._owns_directory = is_path(run_dir)
        self._claims = trust_.claims(self.environment, self.setup.replay_folder)
        spaces, self._translation = examine(self.environment)
        self.algorithm, self.agent = build.agent_for(algorithm, env, config, spaces, policies)
        exploration.check(self.agent, explorer, spaces)
        self.explorer = explorer
        self._data = data_for(data, self.agent, self.setup, self.environment, spaces)
        count = 1 if only_data(self.agent) else build.parallel(self.setup, self.algorithm, self.agent, env)
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
        self.learner, learning, self._lifecycle = halves(count)
        # Made last, so that a run that cannot be leaves no empty directory behind.
        self.directory = RunDirectory.create(run_dir, "") if self._owns_directory else run_dir
        self._loop = Loop(learning, self._lifecycle, self.setup.overlap, self._save, self._evaluated)
        self._acts_only = False  # loaded without its replay
        self._single: SingleActor | None = None
        self._acted_after: tuple[int, int] | None = None  # the step and the gradient steps of the weights of `act`

    def _from_environment(self, count: int) -> tuple[Learner, Learning, RolloutLifecycle]:
        agent, engine, setup = self.agent, self.engine, self.setup
        replay = build.replay_for(agent, engine, setup.seed, count, setup.replay_folder)
        make_explorer = functools.partial(exploration.explorer_for, agent, engine.spaces, self.explorer, count=count)
        make_rollout = functools.partial(build.rollout_for, self.environment, agent, engine, setup)
        learner = Learner(agent, engine, replay, build.together(agent, count), setup.seed)
        if self._data is not None:
            show(learner, self._data, setup.seed)
        return learner, learner, RolloutLifecycle(make_explorer, make_rollout, engine.spaces, count, setup.seed)

    def _from_data(self, count: int) -> tuple[Learner, Learning, NothingCollected]:
        assert self._data is not None
        rows, setup = describe_data(self._data)["transitions"], self.setup
        replay = build.recorded_replay_for(self.agent, self.engine, setup.seed, rows, setup.replay_folder)
        learner = Learner(self.agent, self.engine, replay, count, setup.seed)
        fill(learner, self._data)
        return learner, OfflineLearner(learner), NothingCollected()

    @property
    def step(self) -> int:
        """Environment steps so far; gradient steps, where the run learns from recorded data."""
        return self.learner.progress.step

    # -- training ------------------------------------------------------------------------------------------------------

    def train(self, steps: int | None = None, report: Reporter | Iterable[Reporter] = (), **schedule: Any) -> Finished:
        """Take exactly `steps` environment steps (gradient steps, on recorded data), telling each event to every
        reporter. (Algorithms that learn from whole episodes end with the round in which they have taken so many.)

        schedule: the fields of `Schedule`. Ctrl-C, SIGTERM and SIGHUP end the run after the step at hand, a second
        Ctrl-C or SIGTERM at once; SIGUSR1 saves it in its directory, and it goes on.
        """
        reporters, event = Reporters(report), None
        with obeying_signals(self.stop, self._loop.request_save):
            for event in self.steps(steps, **schedule):
                reporters.tell(event)
        assert isinstance(event, Finished)
        return event

    def stop(self) -> None:
        """Ask the run to end after the step at hand."""
        self._loop.stop("interrupted")

    def steps(self, steps: int | None = None, **schedule: Any) -> Iterator[Event]:
        """Take exactly `steps` steps, as `train` does; yields what happens. schedule: the fields of `Schedule`.

        Whenever an event is yielded, all that was collected is learned from: the run may be saved, or left there. Where
        the environment fails, the run is saved (in its directory) before the error is raised.
        """
        plan = Schedule.of(schedule)
        if not isinstance(steps, Integral) or steps < 1:
            raise ConfigError(f"A run of {steps} steps; expected a whole number, of at least 1 environment step.")
        self._refuse_without_replay("train on")
        self._loop.forget_requests()
        end = self.step + steps
        self.learner.progress.total = max(self.learner.progress.total, end)
        if self.directory is not None and self._owns_directory:
            self.directory.lock()
            self.directory.write_config({**self.description(), "total": end, "schedule": dataclasses.asdict(plan)})
        yield Started(self.step, {**self.description(), "end": end})
        yield from self._loop.steps(end, plan)

    # -- evaluation ----------------------------------------------------------------------------------------------------

    def evaluate(self, episodes: int = 20, seed: int | None = None, max_steps: int | None = None) -> Evaluation:
        """Play whole episodes with the best actions, on environments of their own and with frozen normalisers.

        seed: of the episodes; None takes one that belongs to the run, the same at every evaluation.
        max_steps: after which an episode is cut off; None takes 10,000 where the environment declares no time limit.
        """
        found = self._play(episodes, seed, max_steps, lambda: False)
        assert found is not None  # nobody stops it
        return found

    def _play(
        self, episodes: int, seed: int | None, max_steps: int | None, stopped: Callable[[], bool]
    ) -> Evaluation | None:
        for name, value in (("episodes", episodes), ("max_steps", max_steps)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} = {value}; expected at least 1.")
        seed = self.setup.seed + build.EVALUATION if seed is None else seed
        columns = np.arange(min(episodes, 10))
        environments, cut_at = make_for_evaluation(self.environment, columns, seed, max_steps)
        try:
            best = build.best_for(self.engine.spaces)
            return evaluate(environments, self.actor(), best, episodes, seed, cut_at, stopped)
        finally:
            environments.close()

    def actor(self) -> Any:
        """What acts with the present weights, by `act(observation [N, ...])`: NumPy where it can, else the engine. See
        `rollout.Actor` for agents with a memory."""
        if not self.engine.exportable:
            return self.engine
        actor = NumpyEngine(self.agent, self.engine.spaces)
        actor.load(self.learner.acting_weights())
        return actor

    def act(
        self,
        observation: Any,
        info: dict[str, Any] | None = None,
        *,
        first: bool = False,
        explore: bool = False,
    ) -> Any:
        """The best action for one observation, both as the environment has them: its spaces, units and bounds, without
        a batch axis. Of several agents: dicts by agent, of those that act now.

        info: what came with the observation; needed where it holds an action mask.
        first: whether an episode begins with it. Recurrent agents need to be told; others may be.
        explore: explore as in training, at the run's present step, but for noise in layers.
        Raises SpaceError for what the environment would not return.
        """
        spaces, progress = self.engine.spaces, self.learner.progress
        if explore:
            explorer = exploration.explorer_for_one(self.agent, spaces, self.explorer, progress.total)
        else:
            explorer = build.best_for(spaces)
        return self._single_actor().act(observation, info or {}, first, explorer, progress.step)

    def _single_actor(self) -> SingleActor:
        """What `act` asks, with the present weights."""
        progress = self.learner.progress
        now = (progress.step, progress.gradient_steps)
        if self._single is None:
            rng = generator(self.setup.seed, "act")
            self._single = SingleActor(self.actor(), self._translation, self.engine.spaces.action, rng)
        elif now != self._acted_after and self.engine.exportable:
            self._single.load(self.learner.acting_weights())
        self._acted_after = now
        return self._single

    def _evaluated(self, plan: Schedule, stopped: Callable[[], bool]) -> Evaluated | None:
        progress = self.learner.progress
        found = self._play(plan.evaluate_episodes, None, plan.evaluate_max_steps, stopped)
        if found is None:
            return None
        best = progress.best is None or found.mean > progress.best
        progress.best = found.mean if best else progress.best
        return Evaluated(self.step, found.returns, found.lengths, best, found.cut_off, found.returns_by_agent)

    # -- saving --------------------------------------------------------------------------------------------------------

    def description(self) -> dict[str, Any]:
        """What this run is, in plain data."""
        config, functions = build.plain_config(self.agent.config)
        environment = build.plain_environment(self.environment)
        return {
            "algorithm": self.algorithm,
            **environment,
            "has_preset": presets.lookup(self.algorithm, environment["environment"]) is not None,
            "config": config,
            "functions": functions,
            "explorer": exploration.described(self.explorer),
            "policies": build.plain_policies(self.agent, self.engine.spaces),
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
        described = {**self.description(), "signatures": trust_.signatures(self._claims)}
        return {"description": described, **self.learner.state(), "rollout": self._lifecycle.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the state of a run of the same agent on the same environment.

        Raises CheckpointError with the place of what does not fit, and has then changed nothing.
        """
        state = present_state(state)
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
        self._lifecycle.check_state(held["rollout"], trained)
        self.learner.restore(state)
        self._lifecycle.restore(state["rollout"])
        self._acts_only = "replay" not in state
        self._acted_after = None

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
        yield Saving(self.step, kind)
        save = self.directory.save if kind == "last" else self.directory.save_best
        try:
            yield Saved(self.step, str(save(self.step, self.state())), kind)
        except CheckpointError as error:
            yield Warned(self.step, f"The run goes on without this checkpoint. {error}")

    def close(self) -> None:
        """End workers, close environments, and let others write to a directory that the run made; the run can go on all
        the same. May be called twice."""
        self._lifecycle.close()
        if self.directory is not None and self._owns_directory:
            self.directory.close()

    def __getattr__(self, name: str) -> Any:
        """What there is not: with the word for it, where other libraries have it."""
        raise AttributeError(f"A Run has no {name!r}. {meant(name)}".rstrip(), name=name, obj=self)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def load(
    path: str | Path,
    env: Any = None,
    config: Any = None,
    agent: Agent | None = None,
    *,
    trust: bool = False,
    **setup: Any,
) -> Run:
    """The run in a checkpoint file, or in the newest complete one of a run directory, ready to go on.

    env, config: needed again where they were not names and numbers (a callable, a network of your own).
    agent: needed again where the run was given an agent of your own.
    trust: import the environment that the file names, and write to the replay folder that it names, also where you did
        not train the run on this machine; else UntrustedError says what that would be.
    setup: fields of `Setup` that differ now, such as workers or device; explorer, and wrappers, where they were your
        own; env_args that differ now.
    """
    loaded = read_run(Path(path), COMPONENTS)
    for note in loaded.notes:
        warnings.warn(note, stacklevel=2)
    return from_state(loaded.state, env, config, agent, trust=trust, **setup)


def from_state(
    state: dict[str, Any],
    env: Any = None,
    config: Any = None,
    agent: Agent | None = None,
    run_dir: RunDirectory | None = None,
    *,
    trust: bool = False,
    **setup: Any,
) -> Run:
    """A run that continues from `Run.state`; see `load`. Without the component `replay` it acts and cannot train."""
    state = present_state(state)
    described, rest_given = build.check_description(state), config is not None or agent is not None or bool(setup)
    if "replay" not in state:
        setup["replay_folder"] = None  # it belongs to the run that trains
    own, made_with = build.environment_from(described, env, setup)
    if not trust:
        trust_.require(described, *build.taken_from(described, env, made_with, setup))
    if agent is None and config is None:
        config = build.config_from(described)
    if "explorer" not in setup:
        setup["explorer"] = exploration.explorer_from(described.get("explorer"))
    settings = {**described["setup"], "engine": described["engine"], **setup, **made_with}
    with build.built_as_described(env is not None, rest_given):
        run = Run(
            described["algorithm"] if agent is None else agent,
            own,
            config=config,
            policies=build.policies_from(described),
            data=Held(described["data"]) if described.get("data") else None,
            run_dir=run_dir,
            **settings,
        )
    run.restore(state)
    return run
