"""`etude plot`: learning curves of runs as a PNG."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from etude.base.errors import ConfigError
from etude.cli.options import parse, split_positionals
from etude.cli.output import say

if TYPE_CHECKING:
    from etude.report.series import Series


@dataclass(frozen=True)
class Plot:
    """Draw the learning curves of RUN..., one panel for each environment, a line for each configuration: the mean over
    its seeds. RUN is a run directory, its metrics.jsonl, or a folder of run directories."""

    output: Path = Path("curves.png")  # file to write; for a single run, curve.png in its directory
    metric: str | None = None  # draw this metric instead of the return, such as pole_angle or train/entropy
    band: Literal["bootstrap", "range"] = "bootstrap"  # 95 % bootstrap interval of the mean, or range of the seeds
    labels: tuple[str, ...] = ()  # one for each run, equal ones form a line; (): the hyperparameters that differ


def main(arguments: Sequence[str]) -> int:
    """Draw, and say where."""
    paths, rest = split_positionals(arguments)
    options: Plot = parse(Plot, rest, "plot RUN...")
    from etude.report.plots import draw_run, draw_runs
    from etude.report.series import find_runs, read_run

    found = [path for given in paths for path in find_runs(given)]
    alone = found[0] if len(found) == 1 else None
    output = options.output
    if alone is not None and options.output == Plot().output and alone.is_dir():
        output = alone / ("curve.png" if options.metric is None else f"{options.metric.replace('/', '_')}.png")
    try:
        if alone is not None:
            draw_run(read_run(alone, options.metric), output)
        else:
            runs = _readable(found, paths, options.metric)
            for note in draw_runs(runs, output, options.band, options.labels):
                say(note)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        raise ConfigError(
            f"The picture {output} cannot be written: {error.strerror or error}. Name another file: --output."
        ) from error
    say(f"Drawn: {output}")
    return 0


def _readable(found: list[Path], given: list[str], metric: str | None) -> list[Series]:
    """The runs among these; one of a folder that has nothing to draw yet is named and left out."""
    from etude.report.series import read_run

    runs = []
    for path in found:
        try:
            runs.append(read_run(path, metric))
        except ConfigError as error:
            if str(path) in given:
                raise
            say(f"Left out: {error}")
    return runs
