"""A run: one agent trained on one environment, saved, loaded and gone on with."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import warnings
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import etude.checkpoint as checkpoint
from etude.agent import Agent
from etude.base.checks import Stored
from etude.base.errors import CallbackError, CheckpointError, ConfigError
from etude.base.events import Event, Finished, Saved, Saving, Warned
from etude.base.interrupt import obeying_signals
from etude.base.other_libraries import meant
from etude.base.seeding import reseeded
from etude.checkpoint import trust as trust_
from etude.checkpoint.old_names import present_state
from etude.checkpoint.run_directory import RunDirectory, is_path
from etude.envs.adapter import check_stored_task, task_data
from etude.estimation import EstimateRequest, ScheduledEstimates
from etude.export import export as exported
from etude.multi_agent.by_policy import PolicyAgents
from etude.offline.loading import CheckpointedData, RecordedData
from etude.protocols import Explorer
from etude.replay import MixedReplay
from etude.report.filming import watch
from etude.report.plots import plot_run
from etude.report.records import RunHistory
from etude.report.terminal import EventLines, Progress
from etude.training.assembly import starting
from etude.training.assembly.agents import check_collects_steps, check_replay, check_takes_tasks
from etude.training.assembly.described import check_algorithm, describe
from etude.training.assembly.evaluator import RunEvaluator, TrainedPolicy
from etude.training.assembly.parts import run_parts
from etude.training.assembly.replicas import check_alike, given_directory
from etude.training.callbacks import Callback, CallbackList, Metric, Metrics, as_list, stopped_by
from etude.training.description import Environment, Execution, RunDescription, advise, forms_of_run
from etude.training.evaluate import Evaluation, EvaluationRequest
from etude.training.kinds import TrainingContext, kind_of
from etude.training.learner import Learner
from etude.training.loop import Collection, CollectionDue, Loop
from etude.training.schedule import DEFAULTS, Schedule, whole_number
from etude.training.sources import Sources


def online(made: RunDescription, context: TrainingContext, share: float, changed: dict[str, Any]) -> RunDescription:
    """The description of a run that goes on online, of one that was made so; see `Run.go_online`."""
    if kind_of(context.agent).steps_environments or context.data is None:
        raise ConfigError(
            "go_online is for runs that learned from recorded data alone; this one steps its environment already. Go "
            "on with train."
        )
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
        raise ConfigError(f"go_online: share = {share!r}; expected from 0 to below 1, such as 0.5.")
    agent, data = copy.copy(context.agent), context.data
    vars(agent).pop("learns_from", None)
    fields = [field.name for field in dataclasses.fields(agent.config) if field.init]
    config = dataclasses.replace(agent.config, **{name: changed.pop(name) for name in fields if name in changed})
    recorded = {name: CheckpointedData(own.summary()) for name, own in data.recorded.items() if share}
    mixed = Sources(recorded, {name: share * data.shares[name] for name in recorded}, 1.0 - share)
    kind_of(agent).for_data(agent, mixed)  # says that it cannot, before other arguments are said to be wrong
    execution = dataclasses.replace(
        made.execution, environments=None, workers=0, overlap=False, replay_folder=None, ray=None, explorer=None,
        rewrite=None,
    )  # fmt: skip
    before = made.learning(config, agent)
    given = {"config": before.config, "data": mixed, "execution": execution, **changed}
    return RunDescription.of(before.algorithm, made.environment, given)


def take_over(old: Learner, new: Learner) -> None:
    """Put the weights, the optimizer and the normalisers of one learner, and its recorded transitions, into another.
    CheckpointError where the networks differ, and nothing is changed."""
    state = old.engine.state()
    new.engine.check_state(Stored(state, "engine"))
    new.engine.restore(state)
    if old.moments is not None and new.moments is not None:
        new.moments.restore(old.moments.state())
    if old.scale is not None and new.scale is not None:
        new.scale.moments = old.scale.moments
    new.progress.gradient_steps = old.progress.gradient_steps
    if isinstance(new.replay, MixedReplay):
        buffers: Any = {next(iter(new.replay.buffers)): old.replay}
        for name, buffer in (old.replay.buffers if isinstance(old.replay, MixedReplay) else buffers).items():
            new.replay.buffers[name].restore(buffer.state())


COMPONENTS = ("description", "engine", "rollout", "progress", "moments", "scale")  # in every checkpoint of a run


class Run:
    """Trains one agent on one environment.

    algorithm: a name from `etude list`, or an `Agent`. Where the environment has several agents, also a dict of what
        each policy is: one of these, of `etude.multi_agent` a `Frozen` (a policy from a checkpoint) or a `League`
        (earlier copies of another policy), or a function of (observation, rng) that returns an action and never learns.
    env: a Gymnasium id, "module:callable", a callable that returns an environment, or `serving.Clients`; or one of
        these with its arguments, wrappers and stacked frames: `etude.Environment`.
    config: the algorithm's config; None takes the preset for this environment, or the defaults.
    policies: where the environment has several agents, which policy drives which: "each" (one for each agent, the
        default), "shared" (one for all), a dict or a function from agent to policy, or `Policies`.
    data: recorded episodes: the path of a file, a `Dataset` of `etude.offline`, or canonical episodes. A run that
        learns from them alone counts gradient steps, and `env` is only evaluated on; airl and gail step it, and the
        data shows them an expert. Or a dict of several, with their shares of a batch; "sampler" stands for what the run
        collects.
    run_dir: where checkpoints go: a new directory's path, closed with the run, or a `RunDirectory`; None: nowhere.
    start_from: weights to start from in the place of random ones, taken by the names that agree: a run directory, a
        checkpoint, a file of safetensors, or a dict of arrays. `Started` and a warning say what was taken.
    seed, engine, environments, workers: fields of `Execution`, which come before those of `execution`.
    execution: how the run is carried out: how it explores, what collects its steps, what computes; see `Execution`.
    hyperparameters: fields of the algorithm's config, which change the preset, or the defaults.
    """

    def __init__(
        self,
        algorithm: str | Agent | Mapping[str, Any],
        env: Any,
        *,
        config: Any = None,
        policies: Any = None,
        data: Any = None,
        start_from: Any = None,
        run_dir: RunDirectory | str | PathLike[str] | None = None,
        seed: int = 0,
        engine: str = "auto",
        environments: int | None = None,
        workers: int = 0,
        execution: Execution | None = None,
        **hyperparameters: Any,
    ):
        advise("Run", forms_of_run(hyperparameters))
        keywords = Execution(seed, engine, environments=environments, workers=workers).given()
        given = {"config": config, "policies": policies, "data": data, "start_from": start_from, "execution": execution}
        self._assemble(RunDescription.of(algorithm, env, {**given, **keywords, **hyperparameters}), run_dir)

    @classmethod
    def of(cls, made: RunDescription, run_dir: RunDirectory | str | PathLike[str] | None = None) -> Self:
        """The run that a description describes."""
        run = cls.__new__(cls)
        run._assemble(made, run_dir)
        return run

    def _assemble(self, made: RunDescription, run_dir: RunDirectory | str | PathLike[str] | None) -> None:
        is_path(run_dir)  # refuses what is none
        parts = run_parts(made)
        self.context: TrainingContext = parts.context
        self.algorithm: str = parts.algorithm
        self.agent: Agent = parts.context.agent
        self.environment: Any = parts.context.environment
        self.engine: Any = parts.context.engine
        self.execution: Execution = parts.context.execution
        self.group: Any = parts.context.group
        self.explorer: Any = made.execution.explorer
        self.learner: Any = parts.learner
        self.collection: Collection = parts.collection
        self._rewrite, self._log_prob = parts.rewrite, parts.log_prob
        self._claims = trust_.claims(made.environment.configured(), made.execution.replay_folder)
        self._started_from = None if made.start_from is None else starting.start_from(made.start_from, self.learner)
        self.policy: Any = TrainedPolicy(self.context, self.learner, self.collection, parts.translation, self.explorer)
        self._metrics, self._has_replay = Metrics(self.execution.keep_info), True
        self._estimator = ScheduledEstimates(self)
        self._evaluator = RunEvaluator(self.policy, self.context, self.learner, self)
        self.loop: Loop = Loop(
            parts.learner, self.collection, self.execution.overlap, self._save, self._evaluator, self._metrics,
            self._estimator if self.chief else None, self.group, self.execution.fused,
        )  # fmt: skip
        self.history: RunHistory = RunHistory()
        self.use_directory(run_dir)  # last, so that a run that cannot be leaves no empty directory behind

    def described(self) -> RunDescription:
        """What makes a run like this one, with all that was left open filled in."""
        agent, data = self.agent, self.context.data
        made = RunDescription(self.algorithm, Environment.of(self.environment), data=data, execution=self.execution)
        return made.learning(agent.config, agent)

    @property
    def step(self) -> int:
        """Environment steps so far; gradient steps, where the run learns from recorded data."""
        return self.learner.progress.step

    @property
    def config(self) -> Any:
        """The hyperparameters; of several policies, a dict of those of each that has some."""
        agent: Any = self.agent
        several = isinstance(agent, PolicyAgents)
        return {name: each.config for name, each in agent.members.items()} if several else agent.config

    @property
    def chief(self) -> bool:
        """Whether this process evaluates, reports and saves: the first of several, or the only one."""
        return self.group is None or self.group.rank == 0

    @property
    def data(self) -> RecordedData | None:
        """The recorded data of the run; None where it has none, or several. Of a loaded run, without its episodes."""
        sources = self.context.data
        recorded = () if sources is None else tuple(sources.recorded.values())
        return recorded[0] if len(recorded) == 1 else None

    # -- training ------------------------------------------------------------------------------------------------------

    def train(
        self,
        steps: int | None = None,
        callbacks: Any = (),
        *,
        evaluate_every: int | None = None,
        evaluate_episodes: int = 10,
        target: float | None = None,
        save_every: int | None = None,
        schedule: Schedule | None = None,
        **further: Any,
    ) -> Finished:
        """Take exactly `steps` environment steps (gradient steps, on recorded data), and call every callback with each
        event. (Algorithms that learn from whole episodes end with the episodes in which they have taken so many.)

        callbacks: objects derived from `etude.Callback`, or functions of an event, such as the reporters of
            `etude.report`; one, or a list of them. What one raises ends the run, after it is saved. Without one that
            prints warnings of the run, they are Python's.
        evaluate_every, evaluate_episodes, target, save_every: fields of `Schedule`, which come before those of
            `schedule`.
        schedule: when the run evaluates, estimates and saves, and how; see `Schedule`.
        Ctrl-C, SIGTERM and SIGHUP end the run after the step at hand, with the `reason` "interrupted" of what is
        returned; a second Ctrl-C or SIGTERM at once. SIGUSR1 saves it in its directory, and it goes on.
        """
        keywords = {"evaluate_every": evaluate_every, "evaluate_episodes": evaluate_episodes, "target": target}
        own = {**keywords, "save_every": save_every, **further}
        schedule = Schedule.of(schedule, {name: own[name] for name in own if own[name] != DEFAULTS.get(name, ())})
        advise("train", {"schedule=etude.Schedule": [name for name in further if name in DEFAULTS]})
        # Reporters, functions of an event, are the chief's; a `Callback`, which may change the run, is called in all.
        given = [each for each in as_list(callbacks) if self.chief or isinstance(each, Callback)]
        called, event = CallbackList(given, self), None
        printed = not self.chief or any(isinstance(each, Progress | EventLines) for each in given)
        try:
            with obeying_signals(self.stop, self.loop.request_save), self.loop.guarded():
                for event in self._begin(steps, schedule):
                    self.history(event)
                    called(event)
                    if isinstance(event, Warned) and not printed:
                        warnings.warn(event.message, stacklevel=2)
            return event  # type: ignore[return-value]  # the last one is Finished
        except Exception as error:
            called.after_failure(self.loop.save_if_new())
            failure = stopped_by(error, self)
        raise failure  # outside of `except`, so that Python shows its own traceback alone

    def metric(self, name: str, function: Metric | None) -> None:
        """Report a metric of the collected steps wherever the built-in ones go, as `rollout/<name>_mean`, `_min` and
        `_max`; TensorBoard and Weights & Biases get the distribution, too.

        function: called with each `Steps` that is collected, in read-only arrays; returns a number, an array [T, N]
            with a value for each step, or [E] for each episode that ended (the rows `final_index`). NaN is no value.
            It replaces the metric of this name; None removes it. A run that is loaded needs its metrics again.
        """
        check_collects_steps(self.agent, f"metric {name!r}")
        self._metrics.set(name, function)

    @property
    def task(self) -> Any:
        """The task that `set_task` set last; None: none."""
        return self.collection.task

    def set_task(self, task: Any) -> None:
        """Give `task` to every environment, each when its next episode begins: by `env.set_task(task)` before the
        reset, where the environment or a wrapper has this method, else by `reset(options={"task": task})`.

        task: numbers, texts, booleans, lists, and dicts by text; saved with the run and its open episodes. ConfigError
            for other data, and where environments take no tasks. With `overlap`, steps collected ahead keep theirs.
        """
        task = task_data(task)
        if self.task is None:
            check_takes_tasks(self.context, task)
        self.collection.set_task(task)

    def stop(self) -> None:
        """Ask the run to end after the step at hand."""
        self.loop.stop("interrupted")

    def steps(self, steps: int | None = None, *, schedule: Schedule | None = None, **fields: Any) -> Iterator[Event]:
        """Take exactly `steps` steps, as `train` does, and yield the events. fields: of `Schedule`, by themselves.

        Whenever an event is yielded, all that was collected is learned from: the run may be saved, or left there. Where
        the environment, a metric or a rewriter fails, the run is saved (in its directory) before the error is raised.
        """
        try:
            for event in self._begin(steps, Schedule.of(schedule, fields)):
                if not isinstance(event, CollectionDue):
                    self.history(event)
                yield event
            return
        except CallbackError as error:
            failure = stopped_by(error, self)
        raise failure

    def _begin(self, steps: int | None, schedule: Schedule) -> Iterator[Event]:
        """The events to come, once it is clear that the run can go on."""
        end = self.step + whole_number(steps)
        check_replay(self._has_replay, "train on")
        self._evaluator.check(schedule)
        if schedule.save_every is not None and self.directory is None and self.chief:
            raise ConfigError(
                f"save_every = {schedule.save_every}, and the run has no directory to save in. Give Run(run_dir=...), "
                "go on with etude.resume(run_dir), or leave save_every out and call run.save(path)."
            )
        if schedule.estimate_every is not None and self.chief:
            self._estimator.prepare(EstimateRequest.of(schedule.estimate))
        self.loop.forget_requests()
        self.learner.progress.total = max(self.learner.progress.total, end, schedule.total or 0)
        check_alike(self.group, {**self.description(), "schedule": schedule.plain()}, end, self.loop.learner)
        if self.directory is not None and self._owns_directory:
            self.directory.lock()
            self.directory.write_config({**self.description(), "total": end, "schedule": schedule.plain()})
        first: list[Event] = [self._log_prob.started(self.step, {**self.description(), "end": end}, self.context)]
        if not self.step and (started := self._started_from) is not None and started.note:
            first.append(Warned(self.step, started.note))
        if not self.step and not isinstance(self.agent, PolicyAgents):
            first += [Warned(self.step, note) for note in starting.StartedFrom.left_random(self.engine)]
        return itertools.chain(first, self.loop.steps(end, schedule))

    # -- acting --------------------------------------------------------------------------------------------------------

    def evaluate(
        self, episodes: int = 20, seed: int | None = None, max_steps: int | None = None, *,
        task: Any = None, explore: bool = False, env: Any = None, steps: int | None = None,
    ) -> Evaluation:  # fmt: skip
        """Play whole episodes with the best actions, on environments of their own and with frozen normalisers.

        steps: environment steps that the episodes take at least: more than `episodes` are played until then.
        seed: of the episodes; None: the same of the run at every evaluation.
        max_steps: after which an episode is cut off; None takes 10,000 where the environment declares no time limit.
        task: of these episodes; None takes that of `set_task`, on the run's own environment.
        explore: act as in training, at the run's present step.
        env: another environment of the same spaces, in the same wrappers; None: the run's own.
        """
        return self.policy.evaluate(EvaluationRequest(episodes, seed, max_steps, task, explore, env, steps))

    def actor(self, explore: bool = False) -> Any:
        """What acts with the present weights, by `act(observation [N, ...])`: NumPy where it can, else the engine. See
        `rollout.Actor` for recurrent agents. explore: with the present noise in layers, where there is any."""
        return self.policy.actor(explore)

    def exploring(self, environments: int = 1, explore: bool = True) -> Explorer:
        """What explores in so many environments as training does at the run's present step; or takes best actions."""
        return self.policy.explorer(environments, explore)

    def act(
        self,
        observation: Any,
        info: dict[str, Any] | None = None,
        *,
        first: bool = False,
        explore: bool = False,
        reward: float = 0.0,
    ) -> Any:
        """The best action for one observation, both as the environment has them: its spaces, units and bounds, without
        a batch axis. Of several agents: dicts by agent, of those that act now.

        info: what came with the observation; needed where it may hold an action mask.
        first: whether an episode begins with it. Required of recurrent agents and where frames are stacked, optional
            for others.
        explore: explore as in training, at the run's present step, but for noise in layers.
        reward: that came with the observation; needed by agents that act by their rewards so far.
        Raises SpaceError for what the environment would not return.
        """
        return self.policy.act(observation, info, first, explore, reward)

    watch, plot, export = watch, plot_run, exported

    def go_online(self, share: float = 0.5, **changed: Any) -> Run:
        """A new run that steps the environment and goes on with the weights, the target networks, the optimizer and the
        normalisers of this one, which learned from recorded data alone; this one stays as it is. Its steps are
        environment steps, counted from 0.

        share: the part of every batch that stays recorded data, 0.5 or another number from 0 to below 1.
        changed: arguments of `Run` for the new run, such as run_dir, workers and explorer, and fields of the config.
        Raises ConfigError for a run that steps its environment, or whose algorithm cannot learn online, and
        CheckpointError where changed fields need other networks.
        """
        check_replay(self._has_replay, "go online")
        run_dir = changed.pop("run_dir", None)
        run = Run.of(online(self.described(), self.context, share, changed))
        assert isinstance(self.learner, Learner) and isinstance(run.learner, Learner)
        take_over(self.learner, run.learner)
        run.use_directory(run_dir)
        return run

    def description(self) -> dict[str, Any]:
        """What this run is, in plain data."""
        found = describe(self.context, self.algorithm, self.explorer, self._rewrite, self.learner.progress.total)
        return found if self._started_from is None else {**found, "started_from": self._started_from._asdict()}

    def state(self) -> dict[str, Any]:
        """The whole run as plain data and arrays, by component. Write them before going on: some are views."""
        check_replay(self._has_replay, "save")
        task = {} if self.task is None else {"task": self.task}
        own = {"rollout": self.collection.state(), **task, **self._evaluator.state()}
        return self._described(self.learner.state() | own)

    def _described(self, state: dict[str, Any]) -> dict[str, Any]:
        """The components of a checkpoint, with what the run is."""
        return {"description": {**self.description(), "signatures": trust_.signatures(self._claims)}, **state}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the state of a run of the same agent on the same environment, of the same seed or, with
        generators of its own, of another one.

        Raises CheckpointError with the place of what does not fit, and has then changed nothing.
        """
        state = present_state(state)
        optional = ("replay", "layer_noise", "recorded", "learners", "leagues", "rewriters", "adapting", "task")
        held = Stored(state, "").fields(COMPONENTS, (*optional, "evaluation", "waiting"))
        check_algorithm(held["description"], self.algorithm)
        self.learner.check_state(held)
        self.collection.check_state(held["rollout"], self.learner.trained_weights())
        if "task" in held:
            check_stored_task(held["task"])
        self._evaluator.check_state(held)
        saved = state["description"].get("setup", {}).get("seed", self.execution.seed)
        state = state if saved == self.execution.seed else reseeded(state, self.execution.seed)
        self.learner.restore(state)
        self.collection.restore(state["rollout"])
        if "task" in state:
            self.collection.set_task(state["task"])
        self._evaluator.restore(state)
        self._has_replay = "replay" in state
        self.policy.reload()

    def save(self, path: str | Path) -> None:
        """Write the whole run to one file."""
        state = self.state()
        if self.chief:
            checkpoint.write(Path(path), state)

    def _save(self, kind: str) -> Iterator[Event]:
        """Write a checkpoint: "last" is of the present step, "best" of the policy that was evaluated last."""
        if self.directory is None:
            return
        yield Saving(self.step, kind)
        evaluated = None if kind == "last" else self._evaluator.evaluated_state()
        step = self.step if evaluated is None else evaluated["progress"]["step"]
        write = self.directory.save if kind == "last" else self.directory.save_best
        try:
            path = write(step, self.state() if evaluated is None else self._described(evaluated))
            yield Saved(self.step, str(path), kind)
        except CheckpointError as error:
            yield Warned(self.step, f"The run goes on without this checkpoint. {error}")

    def use_directory(self, run_dir: RunDirectory | str | PathLike[str] | None, own: bool = False) -> None:
        """Save in a directory, as of `run_dir`. own: close it with the run, as one that was given by its path."""
        self._owns_directory = own or is_path(run_dir)
        self.directory: RunDirectory | None = given_directory(self.group, run_dir)
        if self._owns_directory and self.directory is not None and self.chief:
            self.history.write_to(self.directory.metrics)

    def close(self) -> None:
        """End workers, close environments, and let others write to a directory that the run made; the run can go on all
        the same. May be called twice."""
        self._evaluator.close()
        self.collection.close()
        if self.directory is not None and self._owns_directory:
            self.directory.close()

    if not TYPE_CHECKING:  # what there is not, with the word for it, where other libraries have it

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"A Run has no {name!r}. {meant(name)}".rstrip(), name=name, obj=self)

        def __setattr__(self, name: str, value: Any) -> None:
            held = vars(self)  # all of it, once there is a directory, or None
            if "directory" in held and name not in held and name in vars(self.agent.config):
                raise ConfigError(
                    f"run.{name} = {value!r} would change nothing: the hyperparameters of a run are run.config, which "
                    "stays as it is. Give a schedule, such as Linear.through([(0, 1e-3), (50_000, 1e-4)]), or save the "
                    f"run and go on with etude.load(path, {name}={value!r})."
                )
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return self.history.title(self)

    def _repr_html_(self) -> str:
        return self.history.as_html(repr(self))

    def __enter__(self) -> Run:
        return self

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        self.loop.failed(error)
        self.close()
