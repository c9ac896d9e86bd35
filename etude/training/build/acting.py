"""How a run acts outside training: in evaluations, and for single observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from etude.base.errors import ConfigError
from etude.base.events import Evaluated
from etude.base.seeding import generator
from etude.envs import make_for_evaluation
from etude.protocols import Explorer
from etude.rollout import SingleActor
from etude.training.build.exploration import best_for, explorer_for_one
from etude.training.evaluate import Evaluation, evaluate
from etude.training.kinds import TrainingContext, kind_of
from etude.training.loop import RunLearning
from etude.training.schedule import Schedule

EVALUATION = 7919  # added to a run's seed for the episodes that it is evaluated on
TOGETHER = 10  # environments of an evaluation that are stepped side by side, at most


class TrainedPolicy:
    """The policy of a run, with the learner's present weights.

    explorer: the one that the user gave. translation: between the environment's units and the agent's.
    """

    def __init__(self, context: TrainingContext, learner: RunLearning, translation: Any, explorer: Explorer | None):
        self._context, self._learner, self._translation, self._explorer = context, learner, translation, explorer
        self._single: SingleActor | None = None
        self._loaded_at: tuple[int, int] | None = None  # the step and the gradient steps of the weights of `act`

    def actor(self) -> Any:
        """What acts by `act(observation [N, ...])`: NumPy where it can, else the engine."""
        engine = self._context.engine
        if not engine.exportable:
            return engine
        actor = kind_of(self._context.agent).policy_actor(self._context)
        actor.load(self._learner.acting_weights())
        return actor

    def act(self, observation: Any, info: dict[str, Any], first: bool, explore: bool) -> Any:
        """See `Run.act`."""
        context, progress = self._context, self._learner.progress
        if explore:
            explorer = explorer_for_one(context.agent, context.engine.spaces, self._explorer, progress.total)
        else:
            explorer = best_for(context.agent, context.engine.spaces)
        return self._single_actor().act(observation, info, first, explorer, progress.step)

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

    def evaluate(
        self, episodes: int, seed: int | None, max_steps: int | None, stopped: Callable[[], bool] = lambda: False
    ) -> Evaluation | None:
        """See `Run.evaluate`; None where `stopped` returns True before the end."""
        for name, value in (("episodes", episodes), ("max_steps", max_steps)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} = {value}; expected at least 1.")
        context, columns = self._context, np.arange(min(episodes, TOGETHER))
        seed = context.setup.seed + EVALUATION if seed is None else seed
        environments, cut_at = make_for_evaluation(context.environment, columns, seed, max_steps)
        try:
            best = best_for(context.agent, context.engine.spaces)
            return evaluate(environments, self.actor(), best, episodes, seed, cut_at, stopped)
        finally:
            environments.close()

    def evaluate_by(self, schedule: Schedule, stopped: Callable[[], bool]) -> Evaluated | None:
        """An evaluation during training; None where `stopped` returns True before its end."""
        progress = self._learner.progress
        found = self.evaluate(schedule.evaluate_episodes, None, schedule.evaluate_max_steps, stopped)
        if found is None:
            return None
        best = progress.best is None or found.mean > progress.best
        progress.best = found.mean if best else progress.best
        return Evaluated(progress.step, found.returns, found.lengths, best, found.cut_off, found.returns_by_agent)
