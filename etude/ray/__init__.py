"""Runs as trials of Ray Tune: `ray.tune.Tuner(etude.ray.Trainable, ...)`. Importing this module imports Ray."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etude.base.errors import ConfigError, needing
from etude.base.events import Evaluated, Warned
from etude.base.schedules import plain
from etude.report.records import MetricsRecorder, scalars
from etude.run import Run, load
from etude.training.description import ARGUMENTS, RunDescription
from etude.tuning.journal import described_trials, preset_steps
from etude.tuning.space import Space
from etude.tuning.trial import StudyPlan, evaluate_every

with needing("etude.ray", "ray"):
    from ray import tune

__all__ = ["Trainable"]

CHECKPOINT = "run.etude"  # in the directory of each checkpoint of a trial
OF_PLAN = ("steps", "evaluate_every", "evaluate_episodes", "evaluate_seed", "target")


class Trainable(tune.Trainable):
    """A run of etude as a trial of `ray.tune.Tuner`, with any scheduler.

    The config of a trial (`param_space`) is flat:
    - `algorithm` and `env`, as `Run` takes them, and `seed` and other arguments of `Run` (`engine`, `environments`,
      `workers`, `env_args`, ...);
    - `steps`: environment steps of a trial, None: those of the preset; `evaluate_every`: steps of an iteration, None: a
      twentieth; `evaluate_episodes`, `evaluate_seed` and `target`: see `Study`;
    - fields of the algorithm's config, such as `learning_rate`, or `optimizer.epsilon` of what a field holds. `config`
      has all others; without it, the preset or the defaults.

    An iteration trains for `evaluate_every` steps and evaluates; its result has the metrics of `docs/metrics.md`, such
    as `eval/mean_reward`, and `timesteps_total`. A trial is done after `steps`, or when it reaches the target.

    A checkpoint holds the whole run in `run.etude`, which `etude.load` reads. A trial that is restored, such as a copy
    of population based training, goes on with the hyperparameters of its own config. Raises ConfigError for a config
    that no run can be made from.
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Check the config of the trial. The run is made by the first step, or loaded."""
        self._run: Run | None = None
        given = {name: plain(value) for name, value in config.items()}  # Tune gives scalars of NumPy
        algorithm, env = given.pop("algorithm", None), given.pop("env", None)
        if algorithm is None or env is None:
            raise ConfigError(
                f"The config of a trial has {', '.join(config) or 'nothing'}; expected algorithm and env, too, as in "
                'param_space={"algorithm": "ppo", "env": "CartPole-v1", "learning_rate": tune.loguniform(1e-5, 1e-2)}.'
            )
        self._seed, base = given.pop("seed", 0), given.pop("config", None)
        plan = {name: given.pop(name) for name in OF_PLAN if given.get(name) is not None}
        options = {name: given.pop(name) for name in ARGUMENTS if name in given}
        made = described_trials(algorithm, env, {"config": base, **options})
        self._plan = _plan(made, self._seed, plan)
        space = Space(made.own_config, {name: [value] for name, value in given.items()})
        self._described = made.learning(space.config(given)).with_execution(seed=self._seed)

    def step(self) -> dict[str, Any]:
        """Train for `evaluate_every` steps, and evaluate."""
        run, plan = self._made(), self._plan
        before, recorder, records = run.step, MetricsRecorder(every=sys.maxsize), []
        for event in run.steps(min(plan.evaluate_every, plan.steps - before)) if before < plan.steps else ():
            records += recorder(event)  # as it comes: the recorder takes the time between events
            if isinstance(event, Warned):
                warnings.warn(event.message, stacklevel=2)
        found = run.evaluate(plan.evaluate_episodes, plan.evaluate_seed)
        last = Evaluated(run.step, found.returns, found.lengths, False, found.cut_off, found.returns_by_agent)
        metrics = {tag: x for record in [*records, *recorder(last)] for tag, x in scalars(record).items()}
        reached = plan.target is not None and found.mean >= plan.target
        done = reached or run.step >= plan.steps
        return {**metrics, "step": run.step, "timesteps_this_iter": run.step - before, "done": done}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write the whole run into this directory."""
        self._made().save(Path(checkpoint_dir) / CHECKPOINT)

    def load_checkpoint(self, checkpoint_dir: Any) -> None:
        """Go on with the run in this directory and the hyperparameters of this trial."""
        self.cleanup()
        self._run = self._scheduled(load(Path(checkpoint_dir) / CHECKPOINT, **self._described.loading()))

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Be a new trial with this config: what follows is a first step, or `load_checkpoint`."""
        self.cleanup()
        self.setup(new_config)
        return True

    def cleanup(self) -> None:
        """End the run and its workers."""
        if self._run is not None:
            self._run.close()
            self._run = None

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        """A CPU for the learner, and one for each worker."""
        return tune.PlacementGroupFactory([{"CPU": 1 + int(config.get("workers") or 0)}])

    def _made(self) -> Run:
        if self._run is None:
            self._run = self._scheduled(Run.of(self._described))
        return self._run

    def _scheduled(self, run: Run) -> Run:
        """Stretch its schedules over the steps of the trial."""
        progress = run.learner.progress
        progress.total = max(progress.total, self._plan.steps)
        return run


def _plan(made: RunDescription, seed: Any, given: Mapping[str, Any]) -> StudyPlan:
    steps = given.get("steps", preset_steps(made))
    if steps is None:
        raise ConfigError("The config of a trial has no steps, and there is no preset. Give them: steps=100_000.")
    every = evaluate_every(steps) if type(steps) is int and steps > 0 else 1
    return StudyPlan(**{"evaluate_every": every, **given, "steps": steps, "configurations": 1, "seeds": (seed,)})
