"""Studies, populations and sweeps as the board shows them: their tables and pictures, from their files alone. Nothing
is imported that they name, and no lock is taken."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from etude.algorithms import find
from etude.base.errors import ConfigError, EtudeError
from etude.board.curves import Wanted, series_of
from etude.board.runs import BoardFolder, BoardRun
from etude.checkpoint.config_json import from_json
from etude.checkpoint.plain import read_object
from etude.report.plots import draw_runs
from etude.report.studies import draw_evolution, draw_lineage
from etude.tuning.evolution.evolution import curves_of
from etude.tuning.history import TrialHistory, plan_in
from etude.tuning.journal import read_lines
from etude.tuning.results import pictures, ranking, summary, table
from etude.tuning.space import Space, space_given

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
