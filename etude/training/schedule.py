"""What a run counts, when it learns, and when it evaluates, estimates and saves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from numbers import Integral
from typing import Any, NamedTuple, Protocol, Self

from etude.base import checks
from etude.base.checks import MOST, Stored
from etude.base.data import CollectedSteps
from etude.base.errors import ConfigError
from etude.base.other_libraries import explain
from etude.envs.configured import is_plain
from etude.protocols import Replay
from etude.training.evaluate import EvaluationRequest


@dataclass
class RunProgress:
    """All of it is in a run's checkpoints."""

    step: int = 0  # environment steps
    total: int = 0  # environment steps that the schedules are stretched over
    gradient_steps: int = 0  # gradient steps
    phases: int = 0  # off-policy: learning phases that were due so far, those of the warm-up included
    episodes: int = 0
    best: float | None = None  # the highest mean return of an evaluation
    seconds: float = 0.0
    evaluation_steps: int = 0  # environment steps that evaluations took while training
    evaluation_cost: int = 0  # of these, the last evaluation's
    evaluation_due: bool = False  # it was stopped in the middle, and takes place when the run goes on
    since: int = 0  # the step at which the number of environments changed last: time steps are counted from there

    def count(self, steps: CollectedSteps) -> None:
        """Count what was collected."""
        self.step += len(steps)
        self.episodes += len(steps.episodes)

    def begun(self, environments: int) -> int:
        """How many environments, the first ones, have taken the time step that the others still have to take."""
        return (self.step - self.since) % environments


def check_progress(saved: Stored, more: Iterable[str] = ()) -> dict[str, Stored]:
    """The fields of a `RunProgress`, and `more`. Raises CheckpointError where they are not."""
    held = saved.fields((*_ALWAYS, *more), _LATER)
    step = held["step"].whole()
    for name in ("total", "gradient_steps"):
        held[name].whole()
    for name in ("phases", "episodes"):  # each took a step
        held[name].whole(0, step)
    if held["best"].value is not None:
        held["best"].number()
    held["seconds"].number(0)
    for name in held.keys() & set(_LATER):
        held[name].flag() if name == "evaluation_due" else held[name].whole(0, step if name == "since" else MOST)
    return held


_LATER = ("evaluation_steps", "evaluation_cost", "evaluation_due", "since")  # older files have none
_ALWAYS = tuple(field.name for field in fields(RunProgress) if field.name not in _LATER)


class UpdatesDue(NamedTuple):
    """A learning phase: gradient steps, each on a batch of `size` examples. 0 gradient steps: none is due.

    steps: those of the run that the phase is for, over which schedules of hyperparameters are averaged; 0: their value
        now. With 0 gradient steps, a phase before learning starts: noise in layers is drawn anew.
    """

    gradient_steps: int
    size: int
    steps: int = 0


class UpdateSchedule(Protocol):
    """Asked by the learner. N is the number of environments that are collected from in one call.

    examples: in a batch; None where batches differ. forgets: whether the replay is cleared after a learning phase.
    """

    @property
    def examples(self) -> int | None: ...

    @property
    def forgets(self) -> bool: ...

    def steps_until_update(self, step: int, stored: int) -> int | None:
        """Time steps of all environments until the next learning phase, at environment step `step` with `stored` rows
        in the replay; None: one whole episode of each environment."""

    def updates_due(self, progress: RunProgress, replay: Replay) -> UpdatesDue:
        """The learning phase that is due now; `progress.phases` may count it."""


OPTIONAL = ("evaluate_every", "save_every", "evaluate_steps", "estimate_every", "total")  # counts that may be None


@dataclass(frozen=True)
class Schedule:
    """When a run evaluates, estimates and saves, and how long it is, in environment steps."""

    evaluate_every: int | None = None  # None: only when asked
    evaluate_episodes: int = 10  # whole episodes in an evaluation
    target: float | None = None  # stop when the mean return of an evaluation reaches it
    save_every: int | None = None  # None: only at the end
    evaluate_max_steps: int | None = None  # step limit of an evaluation episode; None: 10,000 without a time limit
    evaluate_share: float | None = None  # of the run's steps that evaluations may take, but for the last; None: any
    evaluate_env: Any = None  # another environment of the same spaces to evaluate on, not saved; None: the run's own
    evaluate_steps: int | None = None  # environment steps that the episodes of an evaluation take at least; None: any
    evaluate_workers: int = 0  # processes that evaluate while training goes on; 0: training waits for evaluations
    evaluate: Any = None  # a function of the run in the place of episodes, not saved; see docs/training.md
    estimate_every: int | None = None  # steps between off-policy estimates from recorded episodes; None: when asked
    estimate: Any = None  # a dict of arguments of `etude.estimate`, such as data and methods; None: its defaults
    total: int | None = None  # steps of the whole run, over which its schedules go; None: those asked for so far

    def __post_init__(self) -> None:
        checks.declared(self)
        for name in (*OPTIONAL, "evaluate_episodes", "evaluate_max_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                never = ", or None" if name in OPTIONAL else ""
                raise ConfigError(f"{name} = {value}; expected a whole number of at least 1{never}.")
        if self.evaluate_share is not None and not self.evaluate_share > 0:
            raise ConfigError(f"evaluate_share = {self.evaluate_share}; expected a positive number, such as 0.1.")
        if self.target is not None and self.evaluate_every is None:
            raise ConfigError(f"target = {self.target} is reached by an evaluation: give evaluate_every, too.")
        if self.evaluate_env is not None and self.evaluate_every is None:
            raise ConfigError("evaluate_env is played by evaluations: give evaluate_every, too.")
        if self.estimate is not None and self.estimate_every is None:
            raise ConfigError("estimate says what is estimated while training: give estimate_every, too.")
        most = EvaluationRequest(self.evaluate_episodes).parallel
        if not 0 <= self.evaluate_workers <= most:
            raise ConfigError(
                f"evaluate_workers = {self.evaluate_workers}; expected from 0 to {most}: the episodes of an evaluation "
                f"are played in {most} environments side by side."
            )
        if self.evaluate_workers and self.evaluate_every is None:
            raise ConfigError("evaluate_workers play evaluations: give evaluate_every, too.")
        if self.evaluate is None:
            return
        if not callable(self.evaluate):
            raise ConfigError(f"evaluate = {self.evaluate!r}; expected a function of the run, or None.")
        if self.evaluate_every is None:
            raise ConfigError("evaluate is called when an evaluation is due: give evaluate_every, too.")
        if self.evaluate_workers or self.evaluate_env is not None:
            raise ConfigError(
                "evaluate is a function that evaluates by itself, in this process: leave evaluate_workers and "
                "evaluate_env out."
            )

    def plain(self) -> dict[str, Any]:
        """All that a file can hold, as plain data: not the environment, since one that a file names is not imported,
        not the function, and no estimates from data or of policies that are objects."""
        own = ("evaluate_env", "evaluate")
        found = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in own}
        if not is_plain(self.estimate):
            found["estimate_every"] = found["estimate"] = None
        return found

    def request(self) -> EvaluationRequest:
        """What an evaluation plays."""
        env, most = self.evaluate_env, self.evaluate_max_steps
        return EvaluationRequest(self.evaluate_episodes, None, most, env=env, steps=self.evaluate_steps)

    def reached(self, mean: float) -> bool:
        """Whether this mean return of an evaluation reaches the target."""
        return self.target is not None and mean >= self.target

    @classmethod
    def of(cls, schedule: Self | None, given: Mapping[str, Any]) -> Self:
        """A schedule with these fields in the place of its own. ConfigError for other names."""
        if unknown := given.keys() - set(DEFAULTS):
            raise ConfigError(explain("train", unknown, ["steps", "callbacks", *DEFAULTS, "schedule"]))
        if schedule is not None and not isinstance(schedule, cls):
            raise ConfigError(
                f"schedule = {schedule!r}; expected an etude.Schedule, such as Schedule(evaluate_every=1_000)."
            )
        return replace(schedule or cls(), **given)

    def affords(self, progress: RunProgress, end: int) -> bool:
        """Whether an evaluation that is due now may take place in a run up to step `end`: where it stays within
        `evaluate_share`, and where it is the last one. Decided by steps alone, so that every run decides alike."""
        if self.evaluate_share is None or not crossed(progress.step, end, self.evaluate_every):
            return True
        return progress.evaluation_steps + self.cost(progress) <= self.evaluate_share * progress.step

    def cost(self, progress: RunProgress) -> int:
        """The environment steps that an evaluation will take: as the last one, or as episodes of training."""
        return progress.evaluation_cost or self.evaluate_episodes * progress.step // max(1, progress.episodes)

    def left_out(self, progress: RunProgress) -> str:
        """What to tell of the first evaluation that is left out."""
        return (
            f"An evaluation takes about {self.cost(progress):,} environment steps. Evaluations beyond "
            f"{self.evaluate_share:.0%} of the run's steps are skipped, except the last. To evaluate every N steps, "
            "give evaluate_every (--evaluate-every N)."
        )


DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Schedule)}


def crossed(before: int, now: int, every: int | None) -> bool:
    """Whether what happens every so many steps is due between two steps; never where that is None."""
    return every is not None and before // every != now // every


def whole_number(steps: Any) -> int:
    """How many steps to train for. ConfigError for what is no whole number of at least 1."""
    if isinstance(steps, Integral) and int(steps) >= 1:
        return int(steps)
    whole = f" Write {int(steps):_}." if isinstance(steps, float) and steps.is_integer() and steps > 0 else ""
    raise ConfigError(f"steps = {steps!r}; expected a whole number of at least 1.{whole}")
