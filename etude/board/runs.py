"""The runs, studies and sweeps below folders: what there is, and how each is doing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from etude.base.errors import ConfigError
from etude.base.stacks import here, holds
from etude.board.metrics import MetricsFile
from etude.checkpoint.lock import holder
from etude.report.series import configuration

METRICS = "metrics.jsonl"
STUDIES = {"study.jsonl": "study", "sweep.json": "sweep"}  # the file that makes a folder one
SKIPPED = ("checkpoints", "tensorboard", "video", "videos", "node_modules", "__pycache__")
MOST = 2_000  # runs that are shown
DEEPEST = 8  # folders below the one that is asked for
SILENT = 60.0  # seconds after which a run without a lock counts as over
NEW_FOLDERS = 3.0  # seconds between two looks for them
SCAN = 0.02  # seconds for warnings each time


class BoardRun:
    """A run directory on the board. name: what browsers call it. shown: what people call it. folder: without links on
    its way."""

    def __init__(self, name: str, shown: str, folder: Path):
        self.name, self.shown, self.folder = name, shown, folder
        self.metrics = MetricsFile(folder / METRICS)
        self.state = ""
        self.warned: int | None = None  # warnings, once all are known

    def poll(self) -> bool:
        """Read what is new; whether anything of its row has changed."""
        before = self.state
        new = self.metrics.poll()
        if new or before in ("", "running"):
            self.state = self._state()
        return new or self.state != before

    def _state(self) -> str:
        if self.metrics.finished is not None:
            return "finished"
        lock = self.folder / ".lock"
        with suppress(OSError):
            found = holder(lock)
            if found is not None and here(found[1]) and Path("/proc/self/fd").exists():
                return "running" if holds(found[0], lock) else "crashed"
        return "running" if time.time() - self.metrics.written < SILENT else "crashed"

    def row(self) -> dict[str, Any]:
        """What the table shows of it."""
        metrics, about = self.metrics, self.metrics.started
        value = metrics.latest.get("eval/mean_reward", metrics.latest.get("rollout/ep_rew_mean"))
        setup = about.get("setup")
        total = about.get("total")
        return {
            "id": self.name,
            "name": self.shown,
            "algorithm": _text(about.get("algorithm", "-")),
            "environment": _text(about.get("environment", "-")),
            "seed": _text(setup.get("seed", "-") if isinstance(setup, dict) else "-"),
            "step": metrics.step,
            "total": total if isinstance(total, int) and not isinstance(total, bool) and 0 < total < 2**53 else None,
            "unit": f"{_text(about.get('steps', 'environment'))} steps",
            "return": value,
            "fps": metrics.latest.get("time/fps"),
            "written": metrics.written,
            "state": self.state,
            "reason": metrics.finished or "",
            "warnings": self.warned,
            "fault": metrics.fault,
        }

    @property
    def configuration(self) -> dict[str, str]:
        """What it learns with, flat; see `report.series.configuration`."""
        try:
            return {_text(name): _text(value) for name, value in configuration(self.metrics.started).items()}
        except (AttributeError, TypeError, ValueError, RecursionError):  # it was not written by etude
            return {}

    def details(self) -> dict[str, Any]:
        """What is shown of it alone."""
        self.metrics.find_warnings(time.monotonic() + 10 * SCAN)
        videos = self.videos()
        return {
            "configuration": self.configuration,
            "warnings": [{"step": step, "text": text[:2_000]} for step, text in self.metrics.warnings],
            "metrics": sorted(name[:200] for name in self.metrics.latest),
            "video": videos[-1].name if videos else None,
            "filmed": videos[-1].stat().st_mtime if videos else None,
        }

    def videos(self) -> list[Path]:
        """Those in its folder, the newest last; without links."""
        found = []
        for name in ("video", "videos"):
            folder = self.folder / name
            if not folder.is_symlink():
                found += [Path(entry) for entry in _entries(folder) if entry.name.lower().endswith((".mp4", ".gif"))]
        return sorted((path for path in found if _is_plain_file(path)), key=lambda path: path.stat().st_mtime)


class BoardFolder:
    """A study, a population or a sweep. kind: "study" or "sweep". header: the file that makes it one."""

    def __init__(self, name: str, folder: Path, header: str):
        self.name, self.folder, self.kind, self.header = name, folder, STUDIES[header], folder / header

    def changed_at(self) -> float:
        """When what its pictures show has last changed."""
        with suppress(OSError):
            return self.header.stat().st_mtime
        return 0.0


class RunBoard:
    """What is below some folders, at any time. Follows no link out of them.

    folders: run directories, or folders that they are in. ConfigError for one that is not there.
    """

    def __init__(self, folders: Sequence[Path]):
        for folder in folders:
            if not folder.is_dir():
                raise ConfigError(f"{folder} is no folder. Give a run directory, or a folder of them: etude board runs")
        self._roots = {str(folder): folder.resolve() for folder in folders}
        self.runs: dict[str, BoardRun] = {}
        self.folders: dict[str, BoardFolder] = {}
        self.more = False  # whether there are more than are shown
        self._looked = -NEW_FOLDERS

    def poll(self) -> tuple[list[BoardRun], list[str]]:
        """Look at everything; returns the runs that have changed, and the names of those that are gone."""
        gone = []
        if time.monotonic() - self._looked >= NEW_FOLDERS:
            gone = self._look()
            self._looked = time.monotonic()
        changed = [run for run in self.runs.values() if run.poll()]
        return changed + self._count_warnings(changed), gone

    def _look(self) -> list[str]:
        found: dict[str, tuple[Path, set[str]]] = {}
        for name, root in self._roots.items():
            for folder, files in walk(root, DEEPEST):
                inner = folder.relative_to(root)
                found[name if inner == Path() else str(Path(name) / inner)] = (folder, files)
        runs = {name: folder for name, (folder, files) in found.items() if METRICS in files}
        self.more = len(runs) > MOST
        kept = dict(list(runs.items())[:MOST])
        gone = [name for name in self.runs if name not in kept]
        self.runs = {
            name: self.runs.get(name) or BoardRun(name, self._shown(name), folder) for name, folder in kept.items()
        }
        studies = {name: (folder, next(iter(files & STUDIES.keys()), "")) for name, (folder, files) in found.items()}
        self.folders = {name: BoardFolder(name, folder, file) for name, (folder, file) in studies.items() if file}
        return gone

    def _shown(self, name: str) -> str:
        """Without the one folder that all are in."""
        root = Path(next(iter(self._roots)))
        return name if len(self._roots) > 1 or Path(name) == root else str(Path(name).relative_to(root))

    def _count_warnings(self, changed: list[BoardRun]) -> list[BoardRun]:
        """Runs whose number of warnings has become known; what has changed comes first."""
        until, found = time.monotonic() + SCAN, []
        for run in [*changed, *(run for run in self.runs.values() if run.warned is None)]:
            if run.metrics.find_warnings(until) and run.warned != len(run.metrics.warnings):
                run.warned = len(run.metrics.warnings)
                found.append(run)
            if time.monotonic() > until:
                break
        return [run for run in found if run not in changed]


def walk(root: Path, depth: int) -> Iterator[tuple[Path, set[str]]]:
    """The folders from here on with the names of their plain files, by name; no link is followed."""
    files, folders = set[str](), []
    for entry in _entries(root):
        with suppress(OSError):
            if entry.is_file(follow_symlinks=False):
                files.add(entry.name)
            elif entry.is_dir(follow_symlinks=False) and entry.name not in SKIPPED and not entry.name.startswith("."):
                folders.append(root / entry.name)
    yield root, files
    for folder in sorted(folders) if depth else ():
        yield from walk(folder, depth - 1)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:  # it is not there, or not for us
        return []


def _is_plain_file(path: Path) -> bool:
    with suppress(OSError):
        return path.is_file() and not path.is_symlink()
    return False


def _text(value: Any) -> str:
    """A value of a file as a short text."""
    return (value if isinstance(value, str) else repr(value))[:200]


def differing(runs: Iterable[BoardRun]) -> dict[str, list[str]]:
    """What runs differ in, by name, a value for each."""
    found = [run.configuration | {"seed": run.row()["seed"]} for run in runs]
    names = dict.fromkeys(name for each in found for name in each)
    values = {name: [each.get(name, "-") for each in found] for name in names}
    return {name: each for name, each in values.items() if len(set(each)) > 1}
