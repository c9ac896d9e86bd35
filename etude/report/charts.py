"""Charts of a run for TensorBoard and for Weights & Biases, under the tags that their users know."""

from __future__ import annotations

import importlib
import sys
import time
from contextlib import suppress
from pathlib import Path
from textwrap import indent
from typing import Any

from etude.base.errors import needing
from etude.base.events import Event, Finished, Started
from etude.report.records import SAMPLES, MetricsRecorder, distributions, scalars

FLUSH_SECONDS = 10.0  # flushing waits for the disk


class TensorBoard:
    """Writes event files to `directory`: see them with `tensorboard --logdir DIRECTORY`. Custom metrics have
    histograms, too.

    every: environment steps per point of training.
    """

    def __init__(self, directory: str | Path, every: int = 1000):
        self.directory: Path = Path(directory)
        self._recorder = MetricsRecorder(every, distributions=True)
        self._library: Any = None
        self._file: Any = None
        self._flush_at = 0.0

    def __call__(self, event: Event) -> None:
        if self._file is None or isinstance(event, Started):
            self._open(event.step)
        make = self._library.summary
        for record in (records := self._recorder(event)):
            summaries = [make.scalar(tag, value) for tag, value in scalars(record).items()]
            summaries += [make.histogram(tag, values, bins=30) for tag, values in distributions(record).items()]
            for i, found in enumerate(record.get(SAMPLES, ())):
                text = f"return {found['return']:g}\n\n{indent(found['text'], ' ' * 4)}"  # as it is, in Markdown
                summaries.append(make.text(f"{SAMPLES}/{i}", text))
            for summary in summaries:
                self._write(record["step"], summary=summary)
        if isinstance(event, Finished) or (records and time.monotonic() > self._flush_at):
            self._file.flush()
            self._flush_at = time.monotonic() + FLUSH_SECONDS

    def _open(self, step: int) -> None:
        self.close()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._library = _tensorboard_without_torch()
        # `SummaryWriter` has a thread, which ends where the disk is full, and a queue, which then blocks the run.
        writer = self._library.event_file_writer.EventsWriter
        # Names count in seconds alone: without more, a session would overwrite one that began in the same second.
        self._file = writer(str(self.directory / "events"), f".{time.time_ns()}")
        if step:  # TensorBoard hides what an interrupted session wrote after the checkpoint that this one goes on from
            self._write(step + 1, session_log={"status": "START"})

    def _write(self, step: int, **what: Any) -> None:
        event = self._library.proto.event_pb2.Event
        self._file.write_event(event(step=step, wall_time=time.time(), **what))

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # a full disk, of which the call before has warned
                self._file.close()
            self._file = None


def _tensorboard_without_torch() -> Any:
    """tensorboardX imports PyTorch wherever that is installed, for an annotation: more than a second of each start on
    another engine, and 200 MB. An import of what `sys.modules` holds as None is an ImportError, which it allows for."""
    there = "torch" in sys.modules
    if not there:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        return importlib.import_module("tensorboardX")
    finally:
        if not there:
            del sys.modules["torch"]


class WandB:
    """Logs a run to Weights & Biases. `options` go to `wandb.init` (project, name, mode="offline", ...).

    Raises MissingExtra where wandb is not installed, before anything is trained.
    """

    def __init__(self, every: int = 1000, **options: Any):
        with needing("The Weights & Biases reporter", "wandb"):
            self._wandb = importlib.import_module("wandb")
        self._recorder = MetricsRecorder(every, distributions=True)
        self._options = options
        self._run: Any = None
        self._step = 0  # of the last values: Weights & Biases drops values of earlier steps

    def __call__(self, event: Event) -> None:
        for record in self._recorder(event):
            if self._run is None:
                self._run = self._wandb.init(**{"config": record.get("started"), **self._options})
            values: dict[str, Any] = scalars(record)
            values |= {tag: self._wandb.Histogram(found) for tag, found in distributions(record).items()}
            if found := record.get(SAMPLES):
                rows = [[record["step"], each["return"], each["text"]] for each in found]
                values[SAMPLES] = self._wandb.Table(columns=["step", "return", "text"], data=rows)
            if values:
                if record["step"] < self._step:  # an evaluation beside training
                    values["eval/step"] = record["step"]
                self._step = max(self._step, record["step"])
                self._run.log(values, step=self._step)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None
