"""How a run acts outside training: in evaluations, and for single observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from etude.base.errors import ConfigError
from etude.base.events import Evaluated
from etude.base.seeding import generator
from etude.engines.perturbed import Perturbed
from etude.envs import examine, like, make_for_evaluation, name_of
from etude.envs.tasks import task_data
from etude.explore.at_step import AtStep
from etude.protocols import Explorer
from etude.rollout import SingleActor
from etude.training.build.exploration import best_for, explorer_outside
from etude.training.build.usable import check_same_spaces
from etude.training.evaluate import Evaluation, EvaluationRequest, evaluate
from etude.training.kinds import TrainingContext, kind_of
from etude.training.loop import Collecting, RunLearning
from etude.training.schedule import Schedule

EVALUATION = 7919  # added to a run's seed for the episodes that it is evaluated on
TOGETHER = 10  # environments of an evaluation that are stepped side by side, at most


class TrainedPolicy:
    """The policy of a run, with the learner's present weights.

    collecting: holds the present task. translation: between the environment's units and the agent's. explorer: the one
        that the user gave.
    """

    def __init__(
        self,
        context: TrainingContext,
        learner: RunLearning,
        collecting: Collecting,
        translation: Any,
        explorer: Explorer | None,
    ):
        self._context, self._learner, self._collecting = context, learner, collecting
        self._translation, self._explorer = translation, explorer
        self._single: SingleActor | None = None
        self._loaded_at: tuple[int, int] | None = None  # the step and the gradient steps of the weights of `act`

    def actor(self, explore: bool = False) -> Any:
        """What acts by `act(observation [N, ...])`: NumPy where it can, else the engine. explore: with the noise in
        layers that training explores with."""
        engine = self._context.engine
        noisy = explore and bool(engine.layout.noisy)
        if not (engine.exportable or noisy):
            return engine
        actor: Any = (
            kind_of(self._context.agent).policy_actor(self._context) if engine.exportable else Perturbed(engine)
        )
        actor.load(self._learner.exploring_policy()[0] if noisy else self._learner.acting_weights())
        return actor

    def explorer(self, environments: int, explore: bool) -> Explorer:
        """See `Run.exploring`; the best actions unless `explore`."""
        if not explore:
            return best_for(self._context.agent, self._context.engine.spaces)
        context, progress = self._context, self._learner.progress
        spaces, total = context.engine.spaces, progress.total
        return AtStep(explorer_outside(context.agent, spaces, self._explorer, total, environments), progress.step)

    def act(self, observation: Any, info: dict[str, Any], first: bool, explore: bool) -> Any:
        """See `Run.act`."""
        explorer = self.explorer(1, explore)
        return self._single_actor().act(observation, info, first, explorer, self._learner.progress.step)

    def reload(self) -> None:
        """The weights may have changed without a gradient step."""
        self._loaded_at = None

    def _single_actor(self) -> SingleActor:
        context, progress = self._context, self._learner.progress
        now = (progress.step, progress.gradient_steps)
        if self._single is None:
            rng = generator(context.setup.seed, "act")
            self._single = SingleActor(self.actor(), self._translation, context.engine.spaces.action, rng)
        elif now != self._loaded_at and context.engine.exportable:
            self._single.load(self._learner.acting_weights())
        self._loaded_at = now
        return self._single

    def evaluate(self, request: EvaluationRequest) -> Evaluation:
        """See `Run.evaluate`."""
        found = self._evaluate(request, lambda: False)
        assert found is not None  # nothing stops it
        return found

    def _evaluate(self, request: EvaluationRequest, stopped: Callable[[], bool]) -> Evaluation | None:
        """None where `stopped` returns True before the end."""
        episodes, seed, max_steps, task, explore, env = request
        for name, value in (("episodes", episodes), ("max_steps", max_steps)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} = {value}; expected at least 1.")
        context, columns = self._context, np.arange(min(episodes, TOGETHER))
        explorer = self.explorer(len(columns), explore)
        seed = context.setup.seed + EVALUATION if seed is None else seed
        if env is None:
            env, task = context.environment, self._collecting.task if task is None else task
        else:
            env = like(context.environment, env)
        environments, cut_at = make_for_evaluation(env, columns, seed, max_steps)
        try:
            if env is not context.environment:
                check_same_spaces(environments.spaces, context.engine.spaces, name_of(env))
            if task is not None:
                environments.set_task(task_data(task))
            return evaluate(environments, self.actor(explore), explorer, episodes, seed, cut_at, stopped)
        finally:
            environments.close()

    def check_evaluations(self, schedule: Schedule) -> None:
        """Raise SpaceError, or what making it raises, where a schedule has an environment that this policy cannot be
        evaluated on."""
        if schedule.evaluate_env is not None:
            context = self._context
            env = like(context.environment, schedule.evaluate_env)
            check_same_spaces(examine(env)[0], context.engine.spaces, name_of(env))

    def evaluate_by(self, schedule: Schedule, stopped: Callable[[], bool]) -> Evaluated | None:
        """An evaluation during training; None where `stopped` returns True before its end."""
        progress, most = self._learner.progress, schedule.evaluate_max_steps
        request = EvaluationRequest(schedule.evaluate_episodes, None, most, env=schedule.evaluate_env)
        found = self._evaluate(request, stopped)
        if found is None:
            return None
        best = progress.best is None or found.mean > progress.best
        progress.best = found.mean if best else progress.best
        return Evaluated(progress.step, found.returns, found.lengths, best, found.cut_off, found.returns_by_agent)
