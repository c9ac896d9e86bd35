"""How a run acts outside training: in evaluations, in this process or in workers beside it, and for one observation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from etude.base import checks
from etude.base.errors import ConfigError
from etude.base.events import Evaluated
from etude.base.seeding import generator
from etude.engines.stacked import Perturbed
from etude.envs import examine, like, name_of
from etude.envs.adapter import check_stored_task, task_data
from etude.explore.explorer import AdjustedExplorer, AtStep
from etude.protocols import Explorer, Weights
from etude.rollout import SingleActor
from etude.training.assembly.agents import check_same_spaces
from etude.training.assembly.exploration import explorer_outside
from etude.training.description import environment_source
from etude.training.evaluate import Evaluation, EvaluationRequest, EvaluationWorkers, evaluate_with, play
from etude.training.kinds import TrainingContext, kind_of
from etude.training.kinds.by_policy import best_explorer
from etude.training.loop import Collection, RunLearning
from etude.training.schedule import Schedule

EVALUATION = 7919  # added to a run's seed for the episodes that it is evaluated on


class TrainedPolicy:
    """The policy of a run, with the learner's present weights.

    collection: holds the present task. translation: between the environment's units and the agent's. explorer: the one
        that the user gave.
    """

    def __init__(
        self,
        context: TrainingContext,
        learner: RunLearning,
        collection: Collection,
        translation: Any,
        explorer: Explorer | None,
    ):
        self._context, self._learner, self._collection = context, learner, collection
        self.translation, self._explorer = translation, explorer
        self._single: SingleActor | None = None
        self._loaded_at: tuple[int, int] | None = None  # the step and the gradient steps of the weights of `act`

    def actor(self, explore: bool = False) -> Any:
        """What acts by `act(observation [N, ...])`: NumPy where it can, else the engine. explore: with the noise in
        layers that training explores with."""
        self._collection.settle()
        engine = self._context.engine
        noisy = explore and bool(engine.layout.noisy)
        if not (engine.exportable or noisy):
            return engine
        actor: Any = self.make_actor() if engine.exportable else Perturbed(engine)
        actor.load(self._learner.exploring_policy()[0] if noisy else self._learner.acting_weights())
        return actor

    @property
    def agent(self) -> Any:
        """The agent whose policy it is."""
        return self._context.agent

    def in_numpy(self) -> Any:
        """What acts in NumPy with the present weights, also where that is slow. NetworkError where it cannot."""
        self._collection.settle()
        actor = self.make_actor()
        actor.load(self._context.engine.weights())
        return actor

    @property
    def make_actor(self) -> Callable[[], Any]:
        """Makes what acts in NumPy, where it can, in this process or in another."""
        return kind_of(self._context.agent).actor(self._context, collecting=False)

    def explorer(self, environments: int, explore: bool) -> Explorer:
        """See `Run.exploring`; the best actions unless `explore`."""
        if not explore:
            return best_explorer(self._context.agent, self._context.engine.spaces)
        context, progress = self._context, self._learner.progress
        spaces, total = context.engine.spaces, progress.total
        explorer = explorer_outside(context.agent, spaces, self._explorer, total, environments)
        if isinstance(explorer, AdjustedExplorer):
            explorer.follow(self._learner.exploring_policy()[1])
        return AtStep(explorer, progress.step)

    def act(self, observation: Any, info: dict[str, Any] | None, first: bool, explore: bool, reward: float) -> Any:
        """See `Run.act`."""
        explorer = self.explorer(1, explore)
        context, progress = self._context, self._learner.progress
        now = (progress.step, progress.gradient_steps)
        if self._single is None:
            rng = generator(context.execution.seed, "act")
            self._single = SingleActor(self.actor(), self.translation, context.engine.spaces.action, rng)
        elif now != self._loaded_at:
            self._collection.settle()
            if context.engine.exportable:
                self._single.load(self._learner.acting_weights())
        self._loaded_at = now
        return self._single.act(observation, info, first, explorer, self._learner.progress.step, reward)

    def reload(self) -> None:
        """The weights may have changed without a gradient step."""
        self._loaded_at = None

    def evaluate(self, request: EvaluationRequest) -> Evaluation:
        """See `Run.evaluate`."""
        for name, least in {"episodes": 1, "max_steps": 1, "steps": 1, "seed": 0}.items():
            checks.whole_number(name, getattr(request, name), least, none=name != "episodes")
        self.check_environment(request.env)
        found = self.play(self.complete(request))
        assert found is not None  # nothing stops it
        return found

    def play(
        self, request: EvaluationRequest, weights: Weights | None = None, stopped: Callable[[], bool] = lambda: False
    ) -> Evaluation | None:
        """Play a complete request, with these weights in NumPy, or with the present ones; None where `stopped` returns
        True before the end."""
        actor = self.actor(request.explore) if weights is None else self.make_actor()
        if weights is not None:
            actor.load(weights)
        return play(
            request, np.arange(request.parallel), actor, self.explorer(request.parallel, request.explore), stopped
        )

    def complete(self, request: EvaluationRequest) -> EvaluationRequest:
        """A request with its seed, its environment as it is made, and the task that it is to be given."""
        context, env, task = self._context, request.env, request.task
        seed = context.execution.seed + EVALUATION if request.seed is None else request.seed
        if env is None:
            env, task = context.environment, self._collection.task if task is None else task
        else:
            env = self._like(env)
        return request._replace(seed=seed, env=env, task=None if task is None else task_data(task))

    def check_environment(self, env: Any) -> Any:
        """Another environment as it is made to be played on; None: the run's own. Raises SpaceError, or what making it
        raises, where this policy cannot act in it."""
        if env is None:
            return self._context.environment
        env = self._like(env)
        check_same_spaces(examine(env, play=False).spaces, self._context.engine.spaces, name_of(env))
        return env

    def _like(self, env: Any) -> Any:
        return like(self._context.environment, environment_source(env))


POLICY = ("engine", "progress", "moments", "scale"), ("layer_noise", "learners", "leagues")  # always, and for some


class _FrozenPolicy(NamedTuple):
    """The policy of a run at a step, which is evaluated while the run goes on.

    weights: that it acts with. state: components of a checkpoint, from which a run acts and does not train. task: of
    the run; None: none was set.
    """

    step: int
    weights: Weights
    state: dict[str, Any]
    task: Any


class RunEvaluator:
    """What evaluates a run during training, in this process or beside it. Saved while an evaluation is pending, and
    then played again from its beginning.

    run: what evaluation functions of the user's are called with. Of several processes of a run, the chief evaluates,
    and all of them get the result, or the error.
    """

    def __init__(self, policy: TrainedPolicy, context: TrainingContext, learner: RunLearning, run: Any):
        self._policy, self._context, self._learner, self._run = policy, context, learner, run
        self._evaluates = context.group is None or context.group.rank == 0
        self._workers: EvaluationWorkers | None = None
        self._made_for: tuple[Any, ...] = ()
        self._pending: _FrozenPolicy | None = None
        self._reported: _FrozenPolicy | None = None

    @property
    def pending(self) -> bool:
        """Whether an evaluation was begun beside training whose result was not returned yet."""
        return self._pending is not None

    def check(self, schedule: Schedule) -> None:
        """Raise ConfigError, SpaceError, or what making it raises, where this run cannot be evaluated like this."""
        self._policy.check_environment(schedule.evaluate_env)
        if schedule.evaluate_workers and not self._context.engine.exportable:
            raise ConfigError(
                f"evaluate_workers = {schedule.evaluate_workers}: workers act in NumPy, which does not compute "
                "convolutions and modules of your own. Leave it out: evaluations then take place in this process, and "
                "training waits for them."
            )

    def open(self, schedule: Schedule) -> None:
        """Be ready to evaluate as a schedule says; go on with the evaluation that is pending."""
        if not self._evaluates:
            return
        request = self._policy.complete(schedule.request())
        wanted = (request.env, request.parallel, schedule.evaluate_workers) if schedule.evaluate_workers else ()
        if wanted == self._made_for:
            return
        self.close()
        if not wanted:
            return
        explorer = self._policy.explorer(request.parallel, explore=False)
        seed = self._context.execution.seed
        self._workers = EvaluationWorkers(self._policy.make_actor, explorer, request.env, seed, *wanted[1:])
        self._made_for = wanted
        if self._pending is not None:
            self._start(schedule, self._pending)

    def begin(self, schedule: Schedule) -> None:
        """Evaluate the present policy beside training: it is pending from now on."""
        learner = self._learner
        weights, state = copy.deepcopy((learner.acting_weights(), learner.policy_state()))
        self._pending = _FrozenPolicy(learner.progress.step, weights, state, self._run.task)
        self._start(schedule, self._pending)

    def _start(self, schedule: Schedule, policy: _FrozenPolicy) -> None:
        if self._evaluates:
            assert self._workers is not None
            self._workers.start(self._request(schedule, policy)._replace(env=None), policy.weights)

    def _request(self, schedule: Schedule, policy: _FrozenPolicy) -> EvaluationRequest:
        """What is played of a frozen policy: its task, but for another environment, which is given none."""
        request = self._policy.complete(schedule.request())
        return request._replace(task=policy.task if schedule.evaluate_env is None else None)

    def result(self, schedule: Schedule, stopped: Callable[[], bool]) -> Evaluated | None:
        """The evaluation that is pending, or one of the present policy; None where `stopped` returns True before."""
        if (group := self._context.group) is None:
            found = self._evaluated(schedule, stopped)
        else:
            own = (lambda: self._evaluated(schedule, stopped)) if self._evaluates else lambda: None
            found = group.in_all("evaluation", own)[0]
        if found is not None:
            progress = self._learner.progress
            progress.best = found.mean if found.best else progress.best
            self._reported, self._pending = self._pending, None
        return found

    def _evaluated(self, schedule: Schedule, stopped: Callable[[], bool]) -> Evaluated | None:
        step = self._learner.progress.step if self._pending is None else self._pending.step
        found: Evaluation | None
        if self._pending is None and schedule.evaluate is not None:
            found = evaluate_with(schedule.evaluate, self._run, step, schedule.target)
        elif self._pending is None:
            found = self._policy.play(self._policy.complete(schedule.request()), None, stopped)
        elif self._workers is None:  # it was begun by workers that this schedule does not have
            found = self._policy.play(self._request(schedule, self._pending), self._pending.weights, stopped)
        else:
            try:
                found = self._workers.result(stopped)
            except BaseException:
                self.close()
                raise
        if found is None:
            return None
        highest = self._learner.progress.best
        best = bool(found.returns) and (highest is None or found.mean > highest)
        return Evaluated(step, found.returns, found.lengths, best, found.cut_off, found.returns_by_agent, found.metrics)

    def notes(self) -> list[str]:
        """What happened since the last call that a user should know."""
        return [] if self._workers is None else self._workers.warnings()

    def evaluated_state(self) -> dict[str, Any] | None:
        """Of the policy that was evaluated last: components of a checkpoint from which a run acts. None where it is the
        present one."""
        if self._reported is None:
            return None
        state, task = self._reported.state, self._reported.task
        progress = {**state["progress"], "best": self._learner.progress.best}
        return {**state, "progress": progress, "rollout": None, **({} if task is None else {"task": task})}

    def state(self) -> dict[str, Any]:
        """What `restore` continues from, where an evaluation is pending."""
        return {} if self._pending is None else {"evaluation": self._pending._asdict()}

    def check_state(self, held: dict[str, checks.Stored]) -> None:
        """Raise CheckpointError where `restore` cannot continue from this; nothing is changed."""
        if "evaluation" not in held:
            return
        own = held["evaluation"].fields(_FrozenPolicy._fields)
        own["step"].whole()
        own["weights"].like(self._learner.acting_weights())
        self._learner.check_state(own["state"].fields(*POLICY))
        if own["task"].value is not None:
            check_stored_task(own["task"])

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which `check_state` has passed."""
        self.close()
        self._reported = None
        self._pending = _FrozenPolicy(**state["evaluation"]) if "evaluation" in state else None

    def close(self) -> None:
        """End workers. May be called twice; an evaluation that is pending is played again once it is opened again."""
        workers, self._workers, self._made_for = self._workers, None, ()
        if workers is not None:
            workers.close()
