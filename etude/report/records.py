"""Events as flat records: what JSON lines, TensorBoard, Weights & Biases, tables and curves all write; and a
run's history, the list of its records.

Names are those that the field's tools show: `rollout/ep_rew_mean`, `eval/mean_reward`, `train/<loss>`, `time/fps`.
With several agents, `<name>/<agent>` is the mean return of one."""

from __future__ import annotations

import html
import importlib
import importlib.util
import json
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from etude.base.data import EpisodeEnd, return_text
from etude.base.errors import ConfigError
from etude.base.events import (
    Adjusted,
    Collected,
    Estimated,
    Evaluated,
    Event,
    Finished,
    Learned,
    Sampled,
    Saved,
    Saving,
    Started,
    Warned,
    WorkerReplaced,
)
from etude.base.forks import when_dropped
from etude.checkpoint import replacing
from etude.envs import name_of
from etude.report.series import Record, read_records, series

SAMPLES = "samples"  # what a record calls episodes of texts


class MetricsRecorder:
    """Turns each event into the records it completes.

    Training is summed up over intervals of `every` environment steps; the means in a record are over the episodes and
    learn calls that ended in its interval, the learn call of its last step included: training has one record a step. A
    save ends the interval early, before the checkpoint is written: nothing is carried over it, so a resumed run writes
    the records of the uninterrupted one.

    distributions: whether records hold all values of custom metrics, too: arrays, by `rollout/<metric>`.
    """

    def __init__(self, every: int = 1000, clock: Callable[[], float] = time.perf_counter, distributions: bool = False):
        self.every = every
        self._clock, self._distributions = clock, distributions
        self._step = 0
        self._clear()

    def __call__(self, event: Event) -> list[Record]:
        if isinstance(event, Started):
            self._step = event.step
            self._clear()
            return [{"step": event.step, "started": event.description}]
        if isinstance(event, Sampled):  # ends no interval, whose learn call may be reported later
            texts = [{"return": earned, "text": text} for earned, text in zip(event.returns, event.texts, strict=True)]
            return [{"step": event.step, SAMPLES: texts}]
        ends = (self._due and not isinstance(event, Learned)) or isinstance(event, Saving | Finished)
        ended = self._flush() if ends else []
        if isinstance(event, Collected | Learned):
            # At the end of an interval its record is due, once the learn call of this step is in it, if there is one.
            self._due |= event.step // self.every > self._step // self.every
            self._step = event.step
        if isinstance(event, Learned):
            self._updates = event.gradient_steps
            self._learned.append({**event.losses, **event.metrics})
            ended = self._flush() if self._due else []
        elif isinstance(event, Collected):
            self._episodes += event.episodes
            for name, values in event.metrics.items():
                self._values.setdefault(name, []).append(values)
        elif not isinstance(event, Saving | WorkerReplaced):  # the warning before a replacement says so
            ended.append({"step": event.step, **_described(event)})
        return ended

    def _clear(self) -> None:
        self._start, self._due = (self._step, self._clock()), False
        self._episodes: tuple[Any, ...] = ()
        self._values: dict[str, list[np.ndarray]] = {}
        self._learned: list[dict[str, float]] = []
        self._updates = 0

    def _flush(self) -> list[Record]:
        steps, seconds = self._step - self._start[0], self._clock() - self._start[1]
        if steps == 0 and not self._learned:
            return []
        record: Record = {"step": self._step}
        if self._episodes:
            returns = [episode.total for episode in self._episodes]
            record |= {
                "rollout/ep_rew_mean": _mean(returns),
                "rollout/ep_rew_min": min(returns),
                "rollout/ep_rew_max": max(returns),
                "rollout/ep_len_mean": _mean([episode.length for episode in self._episodes]),
                "rollout/episodes": len(returns),
            }
            means = means_by_agent(self._episodes)
            record |= {f"rollout/ep_rew_mean/{agent}": mean for agent, mean in means.items()}
        # Mean, minimum and maximum of the custom metrics of the interval
        found: Record = {}
        for name, parts in self._values.items():
            values = np.concatenate(parts)
            found |= {
                f"rollout/{name}_mean": float(values.mean()),
                f"rollout/{name}_min": float(values.min()),
                f"rollout/{name}_max": float(values.max()),
            }
            if self._distributions:
                found[f"rollout/{name}"] = values
        record |= found
        if self._learned:
            names = dict.fromkeys(name for call in self._learned for name in call)
            record |= {f"train/{name}": _mean([c[name] for c in self._learned if name in c]) for name in names}
            record["train/gradient_steps"] = self._updates
        if steps:
            record["time/fps"] = round(steps / max(seconds, 1e-9), 1)
        self._clear()
        return [record]


def means_by_agent(episodes: Iterable[EpisodeEnd]) -> dict[str, float]:
    """The mean return of each of several agents, by name; over the episodes of which it is known."""
    known = [episode.total_by_agent for episode in episodes if episode.total_by_agent is not None]
    return {agent: _mean([returns[agent] for returns in known]) for agent in (known[0] if known else ())}


def scalars(record: Record) -> dict[str, float]:
    """The numbers of a record that belong on a chart, by tag."""
    return {tag: value for tag, value in record.items() if "/" in tag and isinstance(value, int | float)}


def distributions(record: Record) -> dict[str, np.ndarray]:
    """The finite values of custom metrics in a record, by tag; without those that have none."""
    found = {tag: value[np.isfinite(value)] for tag, value in record.items() if isinstance(value, np.ndarray)}
    return {tag: values for tag, values in found.items() if values.size}


def _described(event: Evaluated | Estimated | Adjusted | Warned | Saved | Finished) -> Record:
    if isinstance(event, Evaluated):
        record: Record = {f"eval/{name}": value for name, value in event.metrics.items()}
        if event.returns:
            record["eval/mean_reward"] = event.mean
        if event.lengths:  # unknown of an evaluation function
            record |= {"eval/mean_ep_length": _mean(event.lengths), "eval/cut_off": event.cut_off}
        if event.returns:
            record["eval/returns"] = list(event.returns)
        record |= {f"eval/mean_reward/{agent}": mean for agent, mean in event.mean_by_agent.items()}
        record |= {f"eval/returns/{agent}": list(returns) for agent, returns in event.returns_by_agent.items()}
        return {**record, "best": event.best}
    if isinstance(event, Estimated):
        record = {}
        for name, each in event.estimates.items():
            record |= {
                f"estimate/{name}": each.value,
                f"estimate/{name}_low": each.low,
                f"estimate/{name}_high": each.high,
                f"estimate/{name}_gain": each.gain,
                f"estimate/{name}_effective_episodes": each.effective_episodes,
                f"estimate/{name}_largest_weight": each.largest_weight,
                "estimate/behaviour": each.behaviour,
            }
        return record | ({"notes": list(event.notes)} if event.notes else {})
    if isinstance(event, Adjusted):
        change = {"adjusted": event.name, "before": event.before, "after": event.after, "reason": event.reason}
        return change | {f"train/{event.name}": event.after}
    if isinstance(event, Warned):
        return {"warning": event.message}
    if isinstance(event, Saved):
        return {"saved": event.path, "kind": event.kind}
    return {"finished": event.reason, "seconds": round(event.seconds, 3), "totals": event.totals}


def _mean(values: Any) -> float:
    return float(sum(values) / len(values))


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
            self.close()
            self._begun = True
            kept = _keep_until(read_records(self.path), event.step) if event.step > 0 and self.path.exists() else []
            with replacing(self.path) as file:  # a crash here loses no line
                file.writelines(_line(record).encode() for record in kept)
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

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _keep_until(records: list[Record], step: int) -> list[Record]:
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


MOST = 20_000
WIDTH, HEIGHT = 320, 80  # of the small curve, in pixels


class RunHistory(list[Record]):
    """The records of a run, the oldest first, as `metrics.jsonl` has them: dicts of numbers by name, and "step".

    A reporter. metrics: a `metrics.jsonl`, which has the earlier part of a run that goes on. Of more than `MOST`
    records, every second one of those that only tell of training is left out; the file has all.
    """

    def __init__(self, metrics: Path | None = None):
        super().__init__()
        self.metrics = metrics
        self._recorder: Callable[[Event], list[Record]] = MetricsRecorder()

    def write_to(self, metrics: Path) -> None:
        """Keep the file `metrics`, too."""
        self.metrics, self._recorder = metrics, JsonLines(metrics).write

    def __call__(self, event: Event) -> list[Record]:
        """Keep the records that an event completes, and return them."""
        new = self._recorder(event)
        if isinstance(event, Started) and not self:
            self.begin(event.step)
        self += new
        if len(self) > MOST:
            training = [i for i, record in enumerate(self) if "time/fps" in record or "train/gradient_steps" in record]
            dropped = set(training[-2::-2])  # the newest stays
            self[:] = [record for i, record in enumerate(self) if i not in dropped]
        return new

    def begin(self, step: int) -> None:
        """Take the earlier part of a run that goes on at a step."""
        if step > 0 and self.metrics is not None and self.metrics.exists():
            self += _keep_until(read_records(self.metrics), step)

    def frame(self) -> Any:
        """A row for each record that has numbers, a column for each name: a data frame of pandas, or of polars where
        that alone is installed. ConfigError where neither is."""
        rows = [{"step": record["step"], **numbers} for record in self if (numbers := scalars(record))]
        if importlib.util.find_spec("pandas") is not None:
            return importlib.import_module("pandas").DataFrame(rows)
        if importlib.util.find_spec("polars") is not None:
            return importlib.import_module("polars").DataFrame(rows, infer_schema_length=None)
        raise ConfigError("frame() makes a frame of pandas or polars, and neither is installed: pip install pandas.")

    def title(self, run: Any) -> str:
        """A run in a line: what trains on what, how far it is, and what it earned last, in training or evaluated."""
        found = (record.get("eval/mean_reward", record.get("rollout/ep_rew_mean")) for record in reversed(self))
        last = next((f"return {return_text(value)}, " for value in found if value is not None), "")
        what = f"{run.algorithm} on {name_of(run.environment)}"
        return f"<Run: {what}, step {run.step:,}, {last}{run.engine.name}, seed {run.execution.seed}>"

    def as_html(self, title: str) -> str:
        """A line of text, and the curve of returns below it, for a cell of a notebook."""
        steps, returns = series(self).curve()
        text = f"<div><code>{html.escape(title)}</code></div>"
        if len(steps) < 2:
            return text
        low, high = float(returns.min()), float(returns.max())
        across = WIDTH * (steps - steps[0]) / (steps[-1] - steps[0] or 1)
        down = HEIGHT * (high - returns) / (high - low or 1)
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, down, strict=True))
        return (
            f'{text}<svg width="{WIDTH}" height="{HEIGHT}" viewBox="-2 -2 {WIDTH + 4} {HEIGHT + 4}" role="img" '
            f'aria-label="return, from {low:.4g} to {high:.4g}"><polyline points="{line}" fill="none" '
            f'stroke="#0072B2" stroke-width="1.5"/></svg>'
            f"<div><small>return per episode, from {low:.4g} to {high:.4g}, over {steps[-1]:,.0f} steps</small></div>"
        )
