"""A study: trials of one algorithm on one environment, with different hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from os import PathLike
from pathlib import Path
from typing import Any, Self

from etude.agent import Agent
from etude.base.errors import CheckpointError, ConfigError
from etude.checkpoint.config_json import from_json, to_json
from etude.report.pictures import table_as_html
from etude.training.description import advise
from etude.tuning import journal, results
from etude.tuning.executors import Executor, ManyRuns, ProcessExecutor, SerialExecutor
from etude.tuning.journal import Journal, Line, TrialHistory
from etude.tuning.results import Result, ranking
from etude.tuning.schedulers import ASHA, PBT, Fifo, GridSearch, MedianStopping, OptunaSearch, RandomSearch
from etude.tuning.segment import (
    Ended,
    Report,
    Scored,
    Segment,
    SegmentFailed,
    TrialSettings,
    TrialTraining,
    link_checkpoint,
    trial_folder,
)
from etude.tuning.space import Space, space_given
from etude.tuning.trial import (
    Copy,
    Decision,
    Genome,
    Go,
    New,
    Scheduler,
    Search,
    Status,
    StudyPlan,
    StudyState,
    Trial,
    failures,
    study_plan,
)

ROOT = Path("studies")  # where studies go whose folder is not given
SCHEDULERS = (Fifo, ASHA, MedianStopping, PBT)
NOT_STORED = ("jobs", "executor", "training")  # arguments that a journal does not hold
OF_PLAN = ("evaluate_episodes", "evaluate_seed", "target", "save_every", "shared_replay")  # of how trials are trained
OF_TRAINING = tuple(field.name for field in fields(TrialTraining))
SEARCHES = (GridSearch, RandomSearch, OptunaSearch)


def trained_as(
    caller: str, training: TrialTraining | None, jobs: int | Executor, further: dict[str, Any]
) -> tuple[TrialTraining, int | Executor]:
    """(how trials are trained, where), with what is among the further arguments of a study, which loses it."""
    advise(caller, {"training=etude.tuning.TrialTraining": [name for name in further if name in OF_TRAINING]}, 4)
    given = {name: further.pop(name) for name in OF_TRAINING if name in further}
    executor = further.pop("executor", None)
    return replace(training or TrialTraining(), **given), jobs if executor is None else executor


def trained_as_before(plan: StudyPlan, given: dict[str, Any]) -> TrialTraining:
    """How the trials of a study that goes on are trained: as its plan says, but for what is given, which loses it."""
    default, changed = TrialTraining(), given.pop("training", None) or TrialTraining()
    own = {name: getattr(plan, name) for name in ("evaluate_every", *OF_PLAN)}
    own |= {name: value for name, value in vars(changed).items() if value != getattr(default, name)}
    return TrialTraining(**own | {name: given.pop(name) for name in OF_TRAINING if name in given})


class Study(ManyRuns):
    """Searches hyperparameters of an algorithm on an environment.

    algorithm, env: as `Run` takes them: a name or an `Agent`; an id, "module:callable" or a callable.
    space: by field of the config (`learning_rate`, `optimizer.epsilon`), a list of values, or one of
        `etude.tuning.Uniform`, `Log` and `Choice`. Lists alone are a grid.
    steps: environment steps of a trial; None: those of the preset.
    trials: how many configurations are tried; None: the points of the grid.
    seeds: of the trials of each configuration: numbers, or how many (0, 1, ...). Its score is the mean over them.
    scheduler: which trials stop early: `ASHA`, `MedianStopping`, `PBT`, ...; None: every trial takes all steps.
    search: which configurations are tried: `GridSearch`, `RandomSearch`, `OptunaSearch`; None: a grid where there are
        lists, else draws.
    folder: where the study is kept: its journal, and a run directory for each trial. None: a new one in `studies/`. A
        study that is there goes on, if it was asked for the same.
    jobs: trials at a time, in worker processes; 1: in this process. Or an executor of your own.
    seed: of what the study itself draws.
    training: how each trial is trained and evaluated; see `TrialTraining`.
    further: other arguments of `Run` (config, engine, environments, data, ...), and fields of the config.
    """

    def __init__(
        self,
        algorithm: str | Agent,
        env: Any,
        space: Mapping[str, Any],
        *,
        steps: int | None = None,
        trials: int | None = None,
        seeds: int | Iterable[int] = 1,
        scheduler: Scheduler | None = None,
        search: Search | None = None,
        folder: str | PathLike[str] | None = None,
        jobs: int | Executor = 1,
        seed: int = 0,
        training: TrialTraining | None = None,
        **further: Any,
    ):
        training, jobs = trained_as(type(self).__name__, training, jobs, further)
        made = journal.described_trials(algorithm, env, further)
        self.space: Space = Space(made.own_config, space)
        self.plan: StudyPlan = study_plan(
            self.space, journal.preset_steps(made) if steps is None else steps, trials, seeds, training.evaluate_every,
            seed=seed, **{name: getattr(training, name) for name in OF_PLAN},
        )  # fmt: skip
        self.scheduler: Fifo | Scheduler = Fifo() if scheduler is None else scheduler
        self.search: Search = search or (GridSearch() if self.space.has_grid else RandomSearch())
        self._history = TrialHistory(made.own_config, self.plan)
        self._made, self._training = made, training
        self.scheduler.check(self.state)
        self._executor: Executor = jobs if not isinstance(jobs, int) else ProcessExecutor(jobs)
        if jobs == 1:
            self._executor = SerialExecutor()
        if training.shared_replay:
            journal.check_trials_share_replay(made, self.space.domains)
            if not isinstance(self._executor, SerialExecutor):
                raise ConfigError("shared_replay = True with several jobs or on Ray: none is shared. Give jobs=1.")
        self.folder: Path = journal.folder_of(folder, ROOT, self.name)
        self._journal = Journal(self.folder)
        try:
            if self._journal.lines:
                lines = self._journal.lines
                held = lines[0].get("study", {})
                before = journal.plan_in(lines) if "plan" in held else self.plan
                if training.evaluate_every is None and self.plan.steps % before.evaluate_every == 0:
                    self.plan = replace(self.plan, evaluate_every=before.evaluate_every)
                now = vars(self.plan)
                grows = getattr(self.scheduler, "grows", ())  # schedulers of one's own need not say it
                more = {name: now[name] for name in grows if now[name] > getattr(before, name)}
                or_more = f", or with more {' or '.join(grows)}".replace("configurations", "trials") if grows else ""
                if different := journal.difference(
                    {**held, "plan": self._as_given({**journal.plain_plan(before), **more})},
                    {**self._header(), "plan": self._as_given(journal.plain_plan(self.plan))}, self._made.own_config,
                ):  # fmt: skip
                    raise ConfigError(
                        f"The study in {self.folder} is another one: {different}. Go on with it as it was asked for "
                        f"(etude {self._command} --resume {str(self.folder)!r}){or_more}; or take another folder."
                    )
                self._history = TrialHistory(self._made.own_config, from_json(StudyPlan, held["plan"]))
                self._history.rebuild(lines[1:])
                if more:
                    self._apply({"plan": more})
            else:
                self._journal.append({"study": self._header()})
        except BaseException:
            self._journal.close()
            raise

    def _header(self) -> dict[str, Any]:
        """What the study is, as plain data: the first line of its journal."""
        return {
            **journal.header(self._made),
            "space": self.space.to_json(),
            "plan": journal.plain_plan(self.plan),
            "scheduler": to_json(self.scheduler),
            "search": to_json(self.search),
        }

    def _as_given(self, plan: dict[str, Any]) -> dict[str, Any]:
        """A plan by the names of the arguments that it is made from."""
        return {"trials": plan.pop("configurations"), **plan}

    _made_by = "etude.Study(...)"
    _command = "tune"  # of the command line, which goes on with it

    @classmethod
    def load(cls, folder: str | PathLike[str], *, trust: bool = False, **given: Any) -> Self:
        """The study in a folder, ready to go on.

        trust: import the environment that it names, also where you did not make the study on this machine; else
            UntrustedError says what that would be.
        given: arguments of the study that differ now, such as jobs, and those that were no plain data: an environment
            that is a callable, an agent of your own. CheckpointError where there is no study.
        """
        lines, _ = journal.read_lines(Path(folder) / journal.NAME)
        if not lines or "study" not in lines[0]:
            raise CheckpointError(f"There is no study in {folder}: its journal is empty. Make one: {cls._made_by}.")
        held = lines[0]["study"]
        stored = {name: value for name, value in given.items() if name not in (*NOT_STORED, *OF_TRAINING)}
        experiment = journal.experiment_from(held, stored, trust)
        plan = journal.plan_in(lines)
        asked, training = cls._asked(held, plan, given, folder), trained_as_before(plan, given)
        return cls(**{**asked, **experiment, "training": training, **given, "folder": folder})

    @classmethod
    def _asked(cls, held: Line, plan: StudyPlan, given: Mapping[str, Any], folder: Any) -> dict[str, Any]:
        """The arguments of the study in a folder that say how it searches, from its header and its plan."""
        return {
            "steps": plan.steps, "trials": plan.configurations, "seeds": plan.seeds, "seed": plan.seed,
            "space": space_given(held["space"]),
            "scheduler": given.get("scheduler") or journal.part_of(held, "scheduler", SCHEDULERS, folder),
            "search": given.get("search") or journal.part_of(held, "search", SEARCHES, folder),
        }  # fmt: skip

    # -- what there is -------------------------------------------------------------------------------------------------

    @property
    def trials(self) -> Sequence[Trial]:
        """All trials so far, by their numbers."""
        return tuple(self._history.trials)

    @property
    def notes(self) -> Sequence[tuple[int, str]]:
        """Warnings so far, with the trial of each."""
        return tuple(self._history.notes)

    @property
    def state(self) -> StudyState:
        """What schedulers see."""
        return StudyState(self.plan, self.space, self._history.trials)

    @property
    def steps(self) -> int:
        """Environment steps of all trials so far, without evaluations."""
        return sum(trial.taken for trial in self._history.trials)

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do."""
        return not self._trials_that_are("queued") and not self.scheduler.decide(self.state)

    def ranking(self) -> list[Result]:
        """The configurations so far, the best one first; see `Result`."""
        return ranking(self._history.trials, self.space, self.folder)

    @property
    def best(self) -> Result:
        """The best configuration so far. ConfigError where none was evaluated."""
        found = self.ranking()
        if not found or not math.isfinite(found[0].score):
            raise ConfigError(f"No trial was evaluated yet{failures(self._history.trials)}.")
        return found[0]

    @property
    def busy(self) -> bool:
        """Whether a trial is under way."""
        return bool(self._trials_that_are("running"))

    @property
    def over(self) -> bool:
        """Whether `run` ends now: nothing is left to do, or it was asked to stop, and no trial is under way."""
        return not self.busy and (self._stopping or self.finished)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """The ranking as text: (header, rows)."""
        return results.table(self.ranking())

    def summary(self) -> str:
        """How far the study is, in a line."""
        return results.summary(self.plan, self._history.trials, self.steps)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.name}: {self.summary()}>"

    def _repr_html_(self) -> str:
        return table_as_html(repr(self), *self.table())

    def tuned_on(self) -> str:
        """Which seeds its scores are of, and what that means."""
        seeds = sorted({trial.genome.seed for trial in self._history.trials})
        few = " Intervals of fewer than 3 seeds say little." if len(self.plan.seeds) < 3 else ""
        return f"Tuned on the seeds {', '.join(map(str, seeds))}: report the best configuration on others.{few}"

    def write_results(self) -> list[Path]:
        """Write the ranking as `results.csv` and two pictures into the folder; returns their paths."""
        return results.write_results(self.ranking(), self.folder, self.name)

    # -- carrying it out -----------------------------------------------------------------------------------------------

    def run(self, callbacks: Any = ()) -> list[Result]:
        """Carry the study out, to its end or to `stop`; returns its ranking.

        callbacks: functions of the study, called whenever a trial was evaluated, ended or failed. Ctrl-C, SIGTERM and
        SIGHUP save the trials that are under way and end; made again with the same folder, the study goes on.
        """
        settings = TrialSettings(str(self.folder.absolute()), self._made, self.plan, self._training)
        for trial in self._trials_that_are("queued"):
            self._link(trial)
        try:
            self._carry_out(settings, callbacks)
        finally:
            for trial in self._trials_that_are("running"):
                trial.status = "queued"
        return self.ranking()

    def close(self) -> None:
        """Let other processes carry the study on. May be called twice."""
        self._journal.close()

    def _trials_that_are(self, status: Status) -> list[Trial]:
        return [trial for trial in self._history.trials if trial.status == status]

    def _following(self) -> Segment | None:
        while not (queued := self._trials_that_are("queued")):
            decisions = self.scheduler.decide(self.state)
            if not decisions:
                return None
            # Write decisions as one line, so that all of them are taken or none
            parts: list[Line] = []
            for each in decisions:
                parts += self._parts(each, len(self._history.trials) + sum("new" in part for part in parts), parts)
            self._apply({"decided": parts})
            for part in parts:
                if "new" in part:
                    self._link(self._history.trials[part["new"]])
        trial = self._history.trials[self._executor.choose([trial.number for trial in queued])]
        parent = None if trial.parent is None else self._history.trials[trial.parent].genome.to_json()
        over = tuple(other.number for other in self._history.trials if other.over)
        genome, newest, at = trial.genome.to_json(), self._history.newest, (trial.step, trial.until)
        trial.status = "running"
        return Segment(trial.number, genome, parent, *at, over, trial.change, trial.checkpoint, newest)

    def _parts(self, each: Decision, number: int, before: list[Line]) -> list[Line]:
        if isinstance(each, Go):
            return [{"go": each.trial, "until": each.until}]
        numbers = [trial.configuration for trial in self._history.trials]
        numbers += [part["configuration"] for part in before if "new" in part]
        configuration = max(numbers, default=-1) + 1
        if isinstance(each, New):
            # The trials of a new configuration, one for each seed
            values, failed = self.search.propose(configuration, self.state), None
            try:
                config = self.space.config(values)
            except ConfigError as error:
                config, failed = self._made.own_config, str(error)
            genomes = [Genome(journal.algorithm_name(self._made), config, seed) for seed in self.plan.seeds]
            return [
                journal.line_of_trial(number + i, genome, configuration, each.until, failed=failed)
                for i, genome in enumerate(genomes)
            ]
        if isinstance(each, Copy):
            made = journal.line_of_trial(number, each.genome, configuration, each.until, each.parent, each.change)
            return [{"stop": each.replaces, "reason": f"replaced by trial {number}, a copy of {each.parent}"}, made]
        return [{"stop": each.trial, "reason": each.reason}]

    def _link(self, trial: Trial) -> None:
        """Keep the checkpoint that a trial starts from, before its parent goes on."""
        if trial.parent is None or trial.step != trial.started or trial.checkpoint:
            return
        parent = self._history.trials[trial.parent]
        source = trial_folder(self.folder, parent.number) / "checkpoints" / parent.checkpoint
        if parent.checkpoint and source.exists():
            link_checkpoint(self.folder, source, trial.number)

    def _record(self, report: Report) -> None:
        if isinstance(report, Scored):
            scores = self._history.trials[report.trial].scores
            if not scores or report.score.step > scores[-1].step:
                score = [report.score.step, to_json(report.score.returns), report.score.cost]
                self._apply({"trial": report.trial, "score": score})
        elif isinstance(report, Ended):
            self._apply({"trial": report.trial, "ended": [report.step, report.reason, report.checkpoint]})
        elif isinstance(report, SegmentFailed):
            self._apply({"trial": report.trial, "failed": report.reason})
        else:
            self._apply({"trial": report.trial, "note": report.text})

    def _apply(self, line: Line) -> None:
        self._journal.append(line)
        self._history.apply(line)
