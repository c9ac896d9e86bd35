"""The trials of a study, rebuilt from its journal."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from etude.base.errors import CheckpointError, ConfigError
from etude.checkpoint.config_json import from_json, to_json
from etude.tuning.plan import StudyPlan
from etude.tuning.segment import Ended
from etude.tuning.trial import Genome, Score, Trial, genome_from_json

Line = dict[str, Any]


class TrialHistory:
    """Trials, and warnings, from lines of a journal. What a study does is a line first: it is applied in the same way
    when it happens, and when the study is rebuilt.

    base: the config that genomes are read beside.
    """

    def __init__(self, base: Any, plan: StudyPlan):
        self.trials: list[Trial] = []
        self.notes: list[tuple[int, str]] = []  # warnings, with the trial of each
        self.newest: int | None = None  # the trial whose checkpoint is the newest of all
        self._base, self._plan = base, plan

    def rebuild(self, lines: Iterable[Line]) -> None:
        """Apply the lines of a journal. CheckpointError where they are no journal's."""
        for number, line in enumerate(lines, 2):  # the first one says what the study is
            try:
                self.apply(line)
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                raise CheckpointError(
                    f"Line {number} of the journal cannot be read: {type(error).__name__}: {error}. It was changed."
                ) from error

    def apply(self, line: Line) -> None:
        """Take in a line."""
        if "plan" in line:
            self._grow(line["plan"])
            return
        if "decided" in line:
            for each in line["decided"]:
                self._decide(each)
            return
        trial = self.trials[line["trial"]]
        if "score" in line:
            step, returns, cost = line["score"]
            trial.add(Score(int(step), from_json(tuple[float, ...], returns), int(cost)))
            trial.step = max(trial.step, int(step))
        elif "ended" in line:
            self._end(trial, Ended(trial.number, *line["ended"]))
        elif "failed" in line:
            trial.status, trial.reason = "failed", str(line["failed"])
        else:
            self.notes.append((trial.number, str(line["note"])))

    def _grow(self, more: dict[str, Any]) -> None:
        """A study that goes on with more steps or configurations: trials that have taken all steps wait for more."""
        self._plan = dataclasses.replace(self._plan, **more)
        for trial in self.trials:
            if trial.status == "finished" and trial.reason == "steps" and trial.until < self._plan.steps:
                trial.status, trial.reason = "paused", ""

    def _decide(self, each: Line) -> None:
        if "new" in each:
            genome = genome_from_json(each["genome"], self._base)
            if each["new"] != len(self.trials):
                raise ValueError(f"trial {each['new']} follows {len(self.trials) - 1}")
            self.trials.append(self._made(each, genome))
        elif "go" in each:
            trial = self.trials[each["go"]]
            trial.until, trial.status = int(each["until"]), "queued"
        else:
            trial = self.trials[each["stop"]]
            trial.reason = "; ".join(filter(None, (trial.reason, str(each["reason"]))))
            trial.status = "stopped"

    def _made(self, each: Line, genome: Genome) -> Trial:
        parent = each["parent"]
        trial = Trial(len(self.trials), genome, int(each["configuration"]), parent, until=int(each["until"]))
        trial.change, reason = dict(each["change"]), each.get("failed")
        if parent is not None:
            trial.first = self.trials[parent].until
            trial.step = trial.started = self.trials[parent].step
        if reason is not None:
            trial.status, trial.reason = "failed", str(reason)
        return trial

    def _end(self, trial: Trial, ended: Ended) -> None:
        trial.step, trial.checkpoint = ended.step, ended.checkpoint or ""
        self.newest = trial.number if trial.checkpoint else self.newest
        if ended.reason == "target":
            trial.status, trial.reason = "finished", "target"
        elif ended.reason != "steps":
            trial.status = "queued"
        elif trial.until >= self._plan.steps:
            trial.status, trial.reason = "finished", "steps"
        else:
            trial.status = "paused"


def plain_plan(plan: StudyPlan) -> dict[str, Any]:
    """A plan in the header of a journal."""
    plain = to_json(plan)
    if not plan.shared_replay:  # as in journals of before there was such a replay
        del plain["shared_replay"]
    return plain


def plan_in(lines: Sequence[Line]) -> StudyPlan:
    """What a study was asked for, from the lines of its journal."""
    grown = [line["plan"] for line in lines if isinstance(line.get("plan"), dict)]
    more = {name: value for each in grown for name, value in each.items()}
    return from_json(StudyPlan, {**lines[0]["study"]["plan"], **more})


def part_of(held: Line, name: str, known: Sequence[type], folder: Any) -> Any:
    """The scheduler or the search of a study, from its header. ConfigError for an evolution's, and for one's own."""
    kind = str(held[name].get("class"))
    if kind == "Generations":
        raise ConfigError(
            f"The study in {folder} is an evolution. Go on with it by "
            f"etude.tuning.evolution.Evolution.load(folder).run() (etude evolve --resume {folder})."
        )
    if kind not in {each.__name__ for each in known}:
        raise ConfigError(f"This study has a {name} of your own, {kind}: give it again, as {name}=.")
    return from_json(Any, held[name], known)


def line_of_trial(
    number: int,
    genome: Genome,
    configuration: int,
    until: int,
    parent: int | None = None,
    change: dict[str, Any] | None = None,
    failed: str | None = None,
) -> Line:
    """The part of a decision that begins a trial. failed: why it cannot."""
    line = {
        "new": number, "genome": genome.to_json(), "configuration": configuration, "until": until, "parent": parent,
        "change": to_json(change or {}),
    }  # fmt: skip
    return line if failed is None else {**line, "failed": failed}


def line_of_score(trial: int, score: Score) -> Line:
    """An evaluation of a trial."""
    return {"trial": trial, "score": [score.step, to_json(score.returns), score.cost]}


def line_of_end(ended: Ended) -> Line:
    """A segment that is carried out."""
    return {"trial": ended.trial, "ended": [ended.step, ended.reason, ended.checkpoint]}
