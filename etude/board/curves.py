"""Curves of runs for a browser: seeds grouped as in pictures, and no more points than a screen has. Studies,
populations and sweeps: their tables and pictures, from their files alone. Nothing is imported that they name, and no
lock is taken."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from etude.algorithms import find
from etude.base.errors import ConfigError, EtudeError
from etude.board.metrics import Columns
from etude.board.runs import BoardFolder, BoardRun
from etude.checkpoint.config_json import from_json
from etude.checkpoint.plain import read_object
from etude.report.pictures import COLOURS, GREY
from etude.report.plots import draw_runs, named
from etude.report.series import BANDS, METRICS, STATISTICS, Band, Line, Series, Statistic, aggregate, compared
from etude.report.studies import draw_evolution, draw_lineage
from etude.tuning.evolution.evolution import curves_of
from etude.tuning.journal import TrialHistory, plan_in, read_lines
from etude.tuning.results import pictures, ranking, summary, table
from etude.tuning.space import Space, space_given

POINTS = 400  # of a panel
RESAMPLES, FEW = 300, 100  # of an interval, which is drawn again and again, and of one of samples
THIN = 40  # curves of single seeds
TRAINED, EPISODES, EVALUATED, RATE = "rollout/ep_rew_mean", "rollout/episodes", "eval/mean_reward", "time/fps"
NOTHING = np.empty(0)
KNOWN: dict[str, tuple[str, ...]] = {  # values of the fields of `Wanted` that have a few
    "across": ("steps", "time"), "statistic": tuple(STATISTICS), "band": tuple(BANDS),
}  # fmt: skip


class Wanted(NamedTuple):
    """What a browser asks to see. metric: a name in the records; None: the return. smoothing: see `Series`. seconds: of
    the processor that reading may take for an answer."""

    metric: str | None = None
    across: Literal["steps", "time"] = "steps"
    smoothing: float = 1 / 20
    statistic: Statistic = "iqm"
    band: Band = "bootstrap"
    seconds: float = 0.05


def curves(runs: Sequence[BoardRun], wanted: Wanted) -> dict[str, Any]:
    """Panels of lines, as plain data. `waiting` runs are not read to their ends yet: ask again."""
    began = time.thread_time()
    series, waiting = series_of(runs, wanted)
    answer: dict[str, Any] = {"panels": [], "notes": [], "waiting": waiting, "runs": len(runs)}
    try:
        comparison = compared([each for each in series if len(each.curve()[0])])
    except ConfigError:
        answer["notes"] = ["There is nothing to draw: no episode has ended, and nothing was evaluated."]
        return answer | {"seconds": time.thread_time() - began}
    every = [line for lines in comparison.panels.values() for line in lines]
    scores = {line.key: float(np.mean([run.score for run in line.runs])) for line in every}
    names_of = named(scores, {line.key: line.label for line in every})
    for title, lines in comparison.panels.items():
        unit = " or ".join(sorted({run.unit for line in lines for run in line.runs}))
        own = [(line, *names_of[line.key]) for line in lines]
        answer["panels"].append(
            {"title": title, "x": unit, "y": comparison.quantity, **_panel(own, wanted, FEW if waiting else RESAMPLES)}
        )
    answer["notes"] += comparison.notes
    return answer | {"seconds": time.thread_time() - began}


def series_of(runs: Sequence[BoardRun], wanted: Wanted) -> tuple[list[Series], int]:
    """(the series of each run, how many of them are of a sample)."""
    names = (TRAINED, EPISODES, EVALUATED) if wanted.metric in (None, *METRICS) else (str(wanted.metric),)
    names = (*names, RATE) if wanted.across == "time" and RATE not in names else names
    until, found, waiting = time.thread_time() + wanted.seconds, list[Series](), 0
    for run in runs:
        columns, complete = run.metrics.columns(names, until)
        waiting += not complete
        found.append(_series(run, columns, wanted))
    return found, waiting


def _series(run: BoardRun, columns: Columns, wanted: Wanted) -> Series:
    row, across = run.row(), _seconds(*columns[RATE]) if wanted.across == "time" else None
    nothing: Any = dict.fromkeys((TRAINED, EPISODES, EVALUATED), (NOTHING, NOTHING))
    columns = nothing | columns
    steps, values = columns[TRAINED if wanted.metric is None or wanted.metric in METRICS else wanted.metric]
    episodes = columns[EPISODES] if np.array_equal(columns[EPISODES][0], steps) else (steps, np.ones(len(steps)))
    evaluated, means = columns[EVALUATED]
    if across is not None:
        steps, evaluated = np.interp(steps, *across), np.interp(evaluated, *across)
    found = Series(
        row["algorithm"], row["environment"], row["seed"], steps, values, np.maximum(episodes[1], 1e-9), evaluated,
        tuple(np.array([mean]) for mean in means), row["unit"] if across is None else "seconds of training",
        configuration=run.configuration, smoothing=max(wanted.smoothing, 1 / POINTS),
    )  # fmt: skip
    keep = np.unique(np.linspace(0, len(steps) - 1, POINTS).astype(int)) if len(steps) > POINTS else slice(None)
    smoothed = found.smoothed()[keep]
    found = replace(found, steps=steps[keep], returns=smoothed, episodes=np.ones(len(smoothed)), smoothing=0.0)
    if wanted.metric is None:
        return found
    return found.of(METRICS[wanted.metric]) if wanted.metric in METRICS else replace(found, quantity=wanted.metric)


def _seconds(steps: np.ndarray, rates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(steps, seconds of training until then), from the steps per second of each interval."""
    steps = np.concatenate([[0.0], steps])
    return steps, np.concatenate([[0.0], np.cumsum(np.diff(steps) / np.maximum(rates, 1e-9))])


def _panel(lines: Sequence[tuple[Line, str, str]], wanted: Wanted, resamples: int) -> dict[str, Any]:
    """Its lines at common places across, each with its interval, and the curves of its seeds."""
    every = [run.curve() for line, *_ in lines for run in line.runs]
    across = np.unique(np.concatenate([steps for steps, _ in every]))
    if len(across) > POINTS:
        across = np.linspace(across[0], across[-1], POINTS)
    found = []
    for line, colour, label in sorted(lines, key=lambda each: each[1] == GREY):
        own = [run.curve() for run in line.runs]
        steps, *values = aggregate(own, wanted.band, wanted.statistic, resamples)
        centre, low, high = (_at(across, steps, each) for each in values)
        told: dict[str, Any] = {"label": label, "colour": COLOURS.index(colour) if colour in COLOURS else -1}
        told |= {"seeds": len(own), "centre": centre}
        if len(own) > 1 and colour != GREY:
            told |= {"low": low, "high": high}
            told["each"] = [_at(across, *curve) for curve in own] if len(every) <= THIN else []
        found.append(told)
    return {"across": across.tolist(), "lines": found}


def _at(across: np.ndarray, steps: np.ndarray, values: np.ndarray) -> list[float | None]:
    """The values at these places, with the digits that can be seen; None beyond the ends."""
    if not len(steps):  # seeds without a common step
        return [None] * len(across)
    found = np.interp(across, steps, values, np.nan, np.nan)
    return [float(f"{value:.5g}") if value == value else None for value in found.tolist()]


ROWS = 50  # of a table
SECONDS = 5.0  # of reading the runs of a sweep

Pictures = Mapping[str, Callable[[Path], Any]]  # by title, what draws it into a file


def shown(folder: BoardFolder, runs: Sequence[BoardRun]) -> tuple[dict[str, Any], Pictures]:
    """(what is written of it, its pictures). Of damaged files, the text says so. runs: those in it."""
    try:
        return _of_sweep(folder.header, runs) if folder.kind == "sweep" else _of_study(folder.header)
    except EtudeError as error:
        return {"error": str(error)}, {}
    except (AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError) as error:
        return {"error": f"{folder.header.name} is damaged: {type(error).__name__}: {error}"[:500]}, {}


def _of_study(journal: Path) -> tuple[dict[str, Any], Pictures]:
    lines, _ = read_lines(journal)
    held = lines[0]["study"]
    if held["own_agent"] or held["functions"]:
        raise ConfigError("This study tunes an agent or a function of one's own, which its journal does not hold.")
    base, plan = from_json(find(held["algorithm"])[1], held["config"]), plan_in(lines)
    history = TrialHistory(base, plan)
    history.rebuild(lines[1:])
    trials, name = history.trials, f"{held['algorithm']} on {held['environment']}"
    told: dict[str, Any] = {
        "summary": f"{name}: {summary(plan, trials, sum(trial.taken for trial in trials))}",
        "notes": [f"trial {number}: {text}" for number, text in history.notes[-ROWS:]],
    }
    if held["scheduler"].get("class") == "Generations":
        if not any(trial.scores for trial in trials):
            return told, {}
        curves = curves_of(trials)
        drawing = {"evolution": draw_evolution, "lineage": draw_lineage}
        return told, {title: partial(draw, curves) for title, draw in drawing.items()}
    results = ranking(trials, Space(base, space_given(held["space"])), journal.parent)
    header, rows = table(results)
    drawn = {Path(file).stem.replace("_", " "): draw for file, draw in pictures(results, name).items()}
    return told | {"header": header, "rows": rows[:ROWS]}, drawn


def _of_sweep(header: Path, runs: Sequence[BoardRun]) -> tuple[dict[str, Any], Pictures]:
    held = read_object(header)["sweep"]
    done = sum(run.state == "finished" and run.metrics.step >= held["steps"] for run in runs)
    told = {"summary": f"{done} of {len(held['seeds'])} seeds have taken all {held['steps']:,} steps", "notes": []}
    series = [each for each in series_of(runs, Wanted(seconds=SECONDS))[0] if len(each.curve()[0])]
    return told, {"curves": lambda path: draw_runs(series, path)} if series else {}


def drawn(draw: Callable[[Path], Any]) -> bytes:
    """A picture as a PNG."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "picture.png")
        draw(path)
        return path.read_bytes()
