"""How a run acts outside training: in evaluations, and for single observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from etude.base.errors import ConfigError
from etude.base.seeding import generator
from etude.engines.perturbed import Perturbed
from etude.envs import examine, like, name_of
from etude.envs.tasks import task_data
from etude.explore.adjustable import AdjustedExplorer
from etude.explore.explorer import AtStep
from etude.protocols import Explorer, Weights
from etude.rollout import SingleActor
from etude.training.build.exploration import best_for, explorer_outside
from etude.training.build.usable import check_same_spaces
from etude.training.evaluate import Evaluation, EvaluationRequest, play
from etude.training.kinds import TrainingContext, kind_of
from etude.training.loop import Collecting, RunLearning

EVALUATION = 7919  # added to a run's seed for the episodes that it is evaluated on


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
        self.translation, self._explorer = translation, explorer
        self._single: SingleActor | None = None
        self._loaded_at: tuple[int, int] | None = None  # the step and the gradient steps of the weights of `act`

    def actor(self, explore: bool = False) -> Any:
        """What acts by `act(observation [N, ...])`: NumPy where it can, else the engine. explore: with the noise in
        layers that training explores with."""
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
        actor = self.make_actor()
        actor.load(self._context.engine.weights())
        return actor

    @property
    def make_actor(self) -> Callable[[], Any]:
        """Makes what acts in NumPy, where it can, in this process or in another."""
        return kind_of(self._context.agent).make_policy_actor(self._context)

    def explorer(self, environments: int, explore: bool) -> Explorer:
        """See `Run.exploring`; the best actions unless `explore`."""
        if not explore:
            return best_for(self._context.agent, self._context.engine.spaces)
        context, progress = self._context, self._learner.progress
        spaces, total = context.engine.spaces, progress.total
        explorer = explorer_outside(context.agent, spaces, self._explorer, total, environments)
        if isinstance(explorer, AdjustedExplorer):
            explorer.follow(self._learner.exploring_policy()[1])
        return AtStep(explorer, progress.step)

    def act(self, observation: Any, info: dict[str, Any] | None, first: bool, explore: bool) -> Any:
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
            self._single = SingleActor(self.actor(), self.translation, context.engine.spaces.action, rng)
        elif now != self._loaded_at and context.engine.exportable:
            self._single.load(self._learner.acting_weights())
        self._loaded_at = now
        return self._single

    def evaluate(self, request: EvaluationRequest) -> Evaluation:
        """See `Run.evaluate`."""
        for name in ("episodes", "max_steps", "steps"):
            value = getattr(request, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} = {value}; expected at least 1.")
        self.check_environment(request.env)
        found = self.play(self.complete(request))
        assert found is not None  # nothing stops it
        return found

    def play(
        self,
        request: EvaluationRequest,
        weights: Weights | None = None,
        stopped: Callable[[], bool] = lambda: False,
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
        seed = context.setup.seed + EVALUATION if request.seed is None else request.seed
        if env is None:
            env, task = context.environment, self._collecting.task if task is None else task
        else:
            env = like(context.environment, env)
        return request._replace(seed=seed, env=env, task=None if task is None else task_data(task))

    def check_environment(self, env: Any) -> None:
        """Raise SpaceError, or what making it raises, where this policy cannot be evaluated on an environment; None:
        the run's own."""
        if env is not None:
            env = like(self._context.environment, env)
            check_same_spaces(examine(env, play=False).spaces, self._context.engine.spaces, name_of(env))
