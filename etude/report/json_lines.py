"""One JSON object per line: the record of a run that every other tool can read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from etude.base.errors import ConfigError
from etude.base.events import Event, Finished, Started
from etude.base.forks import when_dropped
from etude.checkpoint import replacing
from etude.report.records import MetricsRecorder, Record


class JsonLines:
    """Writes the records of a run to `path`; flushed line by line, so that a reader sees whole records only.

    When a run is resumed at step s, what the file holds from after the checkpoint of step s is dropped and writing goes
    on there: the axis of steps neither restarts nor doubles back. A run that starts at step 0 starts the file anew.

    path: usually `metrics.jsonl` in the run directory. every: environment steps per record of training.
    """

    def __init__(self, path: str | Path, every: int = 1000):
        self.path: Path = Path(path)
        self._recorder = MetricsRecorder(every)
        self._file: Any = None
        self._begun = False

    def __call__(self, event: Event) -> None:
        self.write(event)

    def write(self, event: Event) -> list[Record]:
        """Write the records that an event completes, and return them."""
        records = self._recorder(event)
        if isinstance(event, Started) or not self._begun:
            self._begin(event.step)
        if self._file is None:
            self._file = self.path.open("a", encoding="utf-8")
            when_dropped(self, self._file.close)
        for record in records:
            self._file.write(_line(record))
        if records:
            self._file.flush()
        if isinstance(event, Finished):
            self.close()
        return records

    def _begin(self, step: int) -> None:
        self.close()
        self._begun = True
        kept = keep_until(read_records(self.path), step) if step > 0 and self.path.exists() else []
        with replacing(self.path) as file:  # a crash here loses no line
            file.writelines(_line(record).encode() for record in kept)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def read_records(path: str | Path) -> list[Record]:
    """The records of a file of JSON lines; a last line that was cut off by a crash is left out."""
    records = []
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} holds no text. Give a run directory, or the metrics.jsonl in one.") from error
    for line in text.splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


def keep_until(records: list[Record], step: int) -> list[Record]:
    """The records that a run resumed at `step` stands on: up to the save at that step, if there is one."""
    saves = [i for i, record in enumerate(records) if "saved" in record and record["step"] == step]
    if saves:
        return records[: saves[-1] + 1]
    return [record for record in records if record["step"] <= step]


def _line(record: Record) -> str:
    return json.dumps(_finite(record), allow_nan=False, default=str) + "\n"


def _finite(value: Any) -> Any:
    """JSON knows neither NaN nor infinity: null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value
