"""The runs, studies and sweeps below folders: what there is, and how each is doing."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from etude.base.errors import ConfigError
from etude.base.files import holder
from etude.base.stacks import here, holds
from etude.board.metrics import MetricsFile, Unreadable, opened
from etude.checkpoint.run_directory import KINDS, METRICS
from etude.report.series import configuration

SKIPPED = ("checkpoints", "tensorboard", "video", "videos", "node_modules", "__pycache__")
MOST = 2_000  # runs that are shown
DEEPEST = 8  # folders below the one that is asked for
SILENT = 60.0  # seconds after which a run without a lock counts as over
NEW_FOLDERS = 3.0  # seconds between two looks for them
SCAN = 0.02  # seconds for warnings each time


class BoardRun:
    """A run directory on the board. name: what browsers call it, which says nothing of where it is. shown: what people
    call it. folder: without links on its way."""

    def __init__(self, shown: str, folder: Path):
        self.name, self.shown, self.folder = _name_of(folder), shown, folder
        self.metrics: MetricsFile = MetricsFile(folder / METRICS)
        self.state: str = ""
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
        self.metrics.find_warnings(time.thread_time() + 10 * SCAN)
        videos = self.videos()
        return {
            "configuration": self.configuration,
            "warnings": [{"step": step, "text": text[:2_000]} for step, text in self.metrics.warnings],
            "metrics": sorted(name[:200] for name in self.metrics.latest),
            "video": videos[-1].name if videos else None,
            "acts": self.newest_checkpoint() is not None,
            "filmed": videos[-1].stat().st_mtime if videos else None,
        }

    def newest_checkpoint(self) -> str | None:
        """What tells its newest checkpoint from earlier ones; None where there is none."""
        folder = self.folder / "checkpoints"
        found = [] if folder.is_symlink() else [Path(entry) for entry in _entries(folder)]
        steps = sorted(path for path in found if path.match("step_*.etude") and _is_plain_file(path))
        return f"{steps[-1].name} {steps[-1].stat().st_mtime_ns}" if steps else None

    def videos(self) -> list[Path]:
        """Those in its folder, the newest last; without links."""
        found = []
        for name in ("video", "videos"):
            folder = self.folder / name
            if not folder.is_symlink():
                found += [Path(entry) for entry in _entries(folder) if entry.name.lower().endswith((".mp4", ".gif"))]
        return sorted((path for path in found if _is_plain_file(path)), key=lambda path: path.stat().st_mtime)


class BoardFolder:
    """A study, a population or a sweep. kind: "study", "population" or "sweep". header: the file that makes it one."""

    def __init__(self, shown: str, header: Path):
        self.name, self.shown, self.folder = _name_of(header.parent), shown, header.parent
        self.header, self.kind = header, KINDS[header.name]
        with suppress(OSError, Unreadable):
            descriptor = opened(header)
            first = os.read(descriptor, 2**18).partition(b"\n")[0]
            os.close(descriptor)
            self.kind = "population" if b'"Generations"' in first else self.kind

    def changed_at(self, runs: Iterable[BoardRun]) -> float:
        """When what its pictures show has last changed. runs: those in it."""
        times = [run.metrics.written for run in runs] if self.kind == "sweep" else []
        with suppress(OSError):
            times.append(self.header.stat(follow_symlinks=False).st_mtime)
        return max(times, default=0.0)


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
        self.more: bool = False  # whether there are more than are shown
        self._looked = -NEW_FOLDERS

    def runs_in(self, folder: BoardFolder) -> list[BoardRun]:
        """The runs of a study or a sweep."""
        inside = f"{folder.folder}{os.sep}"
        return [run for run in self.runs.values() if str(run.folder).startswith(inside)]

    def poll(self) -> tuple[list[BoardRun], list[str]]:
        """Look at everything; returns the runs that have changed, and the names of those that are gone."""
        gone = []
        if time.monotonic() - self._looked >= NEW_FOLDERS:
            found: dict[Path, tuple[str, set[str]]] = {}
            for given, root in self._roots.items():
                for folder, files in walk(root, DEEPEST):
                    inner = Path(given, folder.relative_to(root))
                    alone = len(self._roots) == 1 and folder != root
                    found.setdefault(folder, (_text(str(folder.relative_to(root) if alone else inner)), files))
            runs = [BoardRun(shown, folder) for folder, (shown, files) in found.items() if METRICS in files]
            self.more = len(runs) > MOST
            kept = {run.name: self.runs.get(run.name, run) for run in runs[:MOST]}
            gone = [name for name in self.runs if name not in kept]
            others = KINDS.keys() - {METRICS}  # what makes folders of several runs
            headers = {folder / file: shown for folder, (shown, files) in found.items() for file in files & others}
            held = {folder.header: folder for folder in self.folders.values()}
            folders = [held.get(header) or BoardFolder(shown, header) for header, shown in headers.items()]
            self.runs, self.folders = kept, {folder.name: folder for folder in folders}
            self._looked = time.monotonic()
        changed = [run for run in self.runs.values() if run.poll()]
        # Runs whose number of warnings has become known; what has changed comes first
        until, warned = time.thread_time() + SCAN, []
        for run in [*changed, *(run for run in self.runs.values() if run.warned is None)]:
            if run.metrics.find_warnings(until) and run.warned != len(run.metrics.warnings):
                run.warned = len(run.metrics.warnings)
                warned.append(run)
            if time.thread_time() > until:
                break
        return changed + [run for run in warned if run not in changed], gone


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
    """A value of a file, or its name, as a short text that can be sent."""
    return (value if isinstance(value, str) else repr(value))[:200].encode(errors="replace").decode()


def _name_of(folder: Path) -> str:
    return hashlib.blake2s(os.fsencode(folder), digest_size=8).hexdigest()


def differing(runs: Iterable[BoardRun]) -> dict[str, list[str]]:
    """What runs differ in, by name, a value for each."""
    found = [run.configuration | {"seed": run.row()["seed"]} for run in runs]
    names = dict.fromkeys(name for each in found for name in each)
    values = {name: [each.get(name, "-") for each in found] for name in names}
    return {name: each for name, each in values.items() if len(set(each)) > 1}
