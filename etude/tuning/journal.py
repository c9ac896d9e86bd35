"""What a study is, and what has happened in it: one file of JSON lines that are only ever appended, from which the
study is rebuilt."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import etude.checkpoint as checkpoint
import etude.engines as engines
import etude.presets as presets
from etude.agent import Agent
from etude.algorithms import find, named
from etude.base.errors import CheckpointError, ConfigError
from etude.base.files import sync_directory
from etude.checkpoint import trust
from etude.checkpoint.config_json import from_json, to_json
from etude.checkpoint.plain import parse
from etude.checkpoint.run_directory import check_kind, numbered
from etude.envs.configured import is_plain
from etude.training.assembly.agents import fitted
from etude.training.assembly.described import agents_for, environment_from, plain_config, plain_environment, taken_from
from etude.training.description import Execution, RunDescription, config_for
from etude.training.kinds import kind_of
from etude.training.kinds.kind import check_shared_replay
from etude.tuning.trial import Genome, Score, StudyPlan, Trial, genome_from_json

NAME = "study.jsonl"
FORMAT = 1  # of its lines


def folder_of(given: str | os.PathLike[str] | None, root: Path, name: str) -> Path:
    """The folder of a study: the given one, or a new one in `root`. ConfigError where none can be made there."""
    try:
        return numbered(root, name) if given is None else Path(given)
    except OSError as error:
        raise ConfigError(
            f"No folder can be made in {root}: {error.strerror or error}. Give another one: folder= (--folder)."
        ) from error


def locked(folder: Path, kind: str) -> checkpoint.Lock:
    """The lock of the folder of a study or a sweep, which is made. ConfigError where it cannot be written to or another
    process has the lock."""
    check_kind(folder, kind)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return checkpoint.Lock(folder / ".lock")
    except checkpoint.Locked as error:
        raise ConfigError(
            f"Another process carries out the {kind} in {folder} ({error}). Wait until it has ended, or give another "
            "folder."
        ) from error
    except OSError as error:
        raise ConfigError(f"The folder {folder} of the {kind} cannot be written to: {error.strerror}.") from error


class Journal:
    """The journal in a folder, locked against other processes.

    Each line is on the disk before `append` returns. A last line that a crash cut off is dropped. ConfigError as of
    `locked`; CheckpointError where a line is damaged.
    """

    def __init__(self, folder: Path):
        self.path: Path = folder / NAME
        self._lock = locked(folder, "study")
        self.lines: list[dict[str, Any]] = []  # that were there
        self._file: io.FileIO | None = None
        try:
            new = not self.path.exists()
            if not new:
                self.lines, whole = read_lines(self.path)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            self._file = io.FileIO(descriptor, "r+")
            if not new:
                self._file.truncate(whole)
            self._file.seek(0, os.SEEK_END)
            sync_directory(self.path.parent)
        except BaseException:
            self._lock.release()
            raise

    def append(self, line: dict[str, Any]) -> None:
        """Write a line, durably. CheckpointError where that fails; the journal is then as it was."""
        if self._file is None:
            raise ConfigError(f"The journal {self.path} is closed. Make the study again: it goes on.")
        text, end = memoryview(json.dumps(line, allow_nan=False).encode() + b"\n"), self._file.tell()
        try:
            while text:
                text = text[self._file.write(text) or 0 :]
            os.fsync(self._file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(end)
                self._file.seek(end)
            raise CheckpointError(
                f"The journal {self.path} could not be written: {error.strerror or error}. Make room, and go on with "
                "the study: nothing that it holds is lost."
            ) from error

    def close(self) -> None:
        """Let other processes write. May be called twice."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._lock.release()


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """(the whole lines of a journal, their length in bytes). CheckpointError where one of them is damaged."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"There is no study in {path.parent}: {path.name} cannot be read.") from error
    whole = content.rfind(b"\n") + 1
    lines = []
    for number, text in enumerate(content[:whole].split(b"\n")[:-1], 1):
        try:
            line = parse(text)
        except ValueError as error:
            raise CheckpointError(f"{path}, line {number} is damaged: {error}. It was changed.") from error
        if not isinstance(line, dict):
            raise CheckpointError(f"{path}, line {number} is damaged: {text[:40]!r}; expected an object.")
        lines.append(line)
    return lines, whole


REFUSED = ("run_dir", "replay_folder", "train_only")  # what trials cannot share
OF_REPLAY = ("buffer_size", "priority_exponent")  # fields that are the same where a replay is shared
MAY_DIFFER = ("device", "workers")  # of a study that goes on: results do not depend on them


def described_trials(algorithm: str | Agent, env: Any, further: Mapping[str, Any]) -> RunDescription:
    """What all trials of a study have in common: its run, with the config filled in. further: arguments of `Run`, and
    fields of the config. Raises ConfigError for others, and what `Run` raises where the algorithm cannot be used for
    the environment."""
    if isinstance(algorithm, Mapping):
        raise ConfigError(
            "A study tunes one algorithm; a dict of policies has several. Give a name, or an agent, and policies=."
        )
    if refused := further.keys() & set(REFUSED):
        raise ConfigError(f"A study takes no {', '.join(sorted(refused))}: each trial has a run directory of its own.")
    if refused := further.keys() & {"ray", "devices", "strategy"}:
        raise ConfigError(
            f"A study takes no {', '.join(sorted(refused))}: its trials are carried out where jobs= or executor= says."
        )
    engines.choose(further.get("engine", "auto"))  # raises where there is none, before there is a folder
    made = RunDescription.of(algorithm, env, further)
    fitted(made.environment.configured(), functools.partial(agents_for, made))
    if isinstance(algorithm, Agent):
        return made
    config = config_for(algorithm, made.environment.env) if made.config is None else made.config
    return replace(made, algorithm=named(algorithm), config=config)


def preset_steps(made: RunDescription) -> int | None:
    """How many steps the preset of an algorithm for an environment takes; None where there is none."""
    algorithm, env = made.algorithm, made.environment.env
    preset = presets.lookup(algorithm, env) if isinstance(algorithm, str) and isinstance(env, str) else None
    return preset.steps if preset else None


def algorithm_name(made: RunDescription) -> str:
    """That of the algorithm; of an agent of one's own, that of its class."""
    return made.algorithm if isinstance(made.algorithm, str) else type(made.algorithm).__name__.lower()


def check_trials_share_replay(made: RunDescription, changed: Iterable[str]) -> None:
    """Raise ConfigError where trials cannot store into one replay. changed: the fields that differ among them."""
    if fixed := [name for name in OF_REPLAY if name in changed]:
        raise ConfigError(
            f"shared_replay = True, but {', '.join(fixed)} would differ among the runs that store into the replay. "
            "Leave it as it is, or leave shared_replay off."
        )
    for name, given in (("data", made.data), ("rewrite", made.execution.rewrite)):
        if given:
            raise ConfigError(
                f"shared_replay = True takes no {name}=: the replay holds what trials collect, as the environment "
                "returned it. Leave one of the two out."
            )
    agent = made.algorithm if isinstance(made.algorithm, Agent) else find(made.algorithm)[0](made.config)
    check_shared_replay(kind_of(agent), agent)


def header(made: RunDescription) -> dict[str, Any]:
    """What a study tunes, as plain data, with signatures of what its environment imports."""
    config, functions = plain_config(made.own_config)
    environment = made.environment.configured()
    return {
        "format": FORMAT,
        "algorithm": algorithm_name(made),
        "own_agent": isinstance(made.algorithm, Agent),
        **plain_environment(environment),
        "config": config,
        "functions": functions,
        "options": {name: _plain(value) for name, value in sorted(made.options().items())},
        "signatures": trust.signatures(trust.claims(environment, None)),
    }


def _plain(value: Any) -> Any:
    """An option as plain data; of an object, a text that is the same in every process."""
    if is_plain(value):
        return to_json(value)
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return {"object": re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))}


def _stored(value: Any) -> bool:
    """Whether an option is plain data as `_plain` describes it, without objects."""
    if isinstance(value, list):
        return all(map(_stored, value))
    return not (isinstance(value, dict) and set(value) == {"object"})


def difference(held: Mapping[str, Any], asked: Mapping[str, Any], config: Any) -> str:
    """Where a study that is there differs from the one that is asked for, with this config; '' where it goes on."""
    for name in asked:
        if name == "signatures":
            continue
        before, now = held.get(name), asked[name]
        if name == "config":
            before = _with_new_fields(before, config)
        if name == "options" and isinstance(before, dict):  # those at their defaults were written once, too
            before = {key: value for key, value in before.items() if value != getattr(Execution(), key, None)}
        if isinstance(before, dict) and isinstance(now, dict):
            keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
            keys = [key for key in keys if not (name == "options" and key in MAY_DIFFER)]
            if keys:
                what = name if (key := keys[0]) == "class" else key
                return f"{what} was {before.get(key)!r}, and is {now.get(key)!r} now"
        elif before != now:
            return f"{name} was {before!r}, and is {now!r} now"
    return ""


def _with_new_fields(held: Any, config: Any) -> Any:
    """A config as it was written, with the defaults of fields that were added to its classes since."""
    if not isinstance(held, dict) or held.get("class") != type(config).__name__:
        return held
    found = dict(held)
    for field in dataclasses.fields(config):
        if field.name in held:
            found[field.name] = _with_new_fields(held[field.name], getattr(config, field.name))
        elif field.default is not dataclasses.MISSING:
            found[field.name] = to_json(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = to_json(field.default_factory())
    return found


def experiment_from(held: Mapping[str, Any], given: Mapping[str, Any], trusted: bool) -> dict[str, Any]:
    """The arguments of a study from its header: algorithm, env, config, and options.

    given: in the place of those in the header. Raises ConfigError for what has to be given again, UntrustedError where
    the environment would be imported that its user did not name here, unless it is `trusted`.
    """
    if held.get("format") != FORMAT:
        raise CheckpointError(f"The journal has format {held.get('format')!r}; expected {FORMAT}.")
    found = dict(given)
    if held["own_agent"] and "algorithm" not in given:
        raise ConfigError(f"This study tunes an agent of your own, {held['algorithm']}: give it again, as algorithm=.")
    if held["functions"] and not {"config", "algorithm"} & given.keys():
        what = ", ".join(held["functions"].values())
        raise ConfigError(f"This study's config has the function {what}, which is not stored: give config= again.")
    environment, made_with = environment_from(dict(held), given.get("env"), dict(given))
    options = {name: value for name, value in held["options"].items() if name not in given}
    for name, value in options.items():
        if not _stored(value):
            raise ConfigError(
                f"This study was given {name} = {value!r}, which is not stored: give it again, as {name}=."
            )
    if not trusted:
        trust.require(held, *taken_from(dict(held), given.get("env"), made_with, {"replay_folder": None, **given}))
    found |= {"env": environment, **options}
    found.setdefault("algorithm", held["algorithm"])
    if "config" not in given and not held["own_agent"]:
        found["config"] = from_json(find(held["algorithm"])[1], held["config"])
    return found


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
            # A study that goes on with more steps or configurations: trials that have taken all steps wait for more
            self._plan = dataclasses.replace(self._plan, **line["plan"])
            for trial in self.trials:
                if trial.status == "finished" and trial.reason == "steps" and trial.until < self._plan.steps:
                    trial.status, trial.reason = "paused", ""
            return
        if "decided" in line:
            for each in line["decided"]:
                if "new" in each:
                    genome = genome_from_json(each["genome"], self._base)
                    if each["new"] != len(self.trials):
                        raise ValueError(f"trial {each['new']} follows {len(self.trials) - 1}")
                    parent, until = each["parent"], int(each["until"])
                    trial = Trial(len(self.trials), genome, int(each["configuration"]), parent, until=until)
                    trial.change = dict(each["change"])
                    if parent is not None:
                        trial.first = self.trials[parent].until
                        trial.step = trial.started = self.trials[parent].step
                    if (reason := each.get("failed")) is not None:
                        trial.status, trial.reason = "failed", str(reason)
                    self.trials.append(trial)
                elif "go" in each:
                    trial = self.trials[each["go"]]
                    trial.until, trial.status = int(each["until"]), "queued"
                else:
                    trial = self.trials[each["stop"]]
                    trial.reason = "; ".join(filter(None, (trial.reason, str(each["reason"]))))
                    trial.status = "stopped"
            return
        trial = self.trials[line["trial"]]
        if "score" in line:
            step, returns, cost = line["score"]
            trial.add(Score(int(step), from_json(tuple[float, ...], returns), int(cost)))
            trial.step = max(trial.step, int(step))
        elif "ended" in line:
            self._end(trial, *line["ended"])
        elif "failed" in line:
            trial.status, trial.reason = "failed", str(line["failed"])
        else:
            self.notes.append((trial.number, str(line["note"])))

    def _end(self, trial: Trial, step: int, reason: str, checkpoint: str | None) -> None:
        trial.step, trial.checkpoint = step, checkpoint or ""
        self.newest = trial.number if trial.checkpoint else self.newest
        if reason == "target":
            trial.status, trial.reason = "finished", "target"
        elif reason != "steps":
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
            f"etude.tuning.evolution.Evolution.load(folder).run() (etude evolve --resume {str(folder)!r})."
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
