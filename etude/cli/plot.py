"""`etude plot`: learning curves of runs as a picture."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from etude.base.errors import ConfigError
from etude.cli.options import parse, split_positionals
from etude.cli.output import say
from etude.cli.runs import episodes_of
from etude.report.plots import draw_episodes

if TYPE_CHECKING:
    from etude.report.series import Series


@dataclass(frozen=True)
class Plot:
    """Draw the learning curves of RUN..., one panel for each environment, a line for each configuration: a statistic
    over its seeds. RUN is a run directory, its metrics.jsonl, or a folder of run directories."""

    output: Path | None = None  # file to write; None: curves.png, or for a single run curve.png in its directory
    metric: str | None = None  # draw this metric instead of the return, such as pole_angle or train/entropy
    kind: Literal["curves", "profile", "improvement"] = "curves"  # profile, improvement: those of rliable, at the end
    statistic: Literal["iqm", "mean", "median"] = "iqm"  # over seeds; iqm: interquartile mean
    band: Literal["bootstrap", "range"] = "bootstrap"  # 95 % bootstrap interval of the statistic, or range of the seeds
    labels: tuple[str, ...] = ()  # one for each run, equal ones form a line; (): the hyperparameters that differ
    format: Literal["png", "svg", "pdf"] | None = None  # of the file; None: by the name of --output, else png
    style: Literal["screen", "paper"] = "screen"  # paper: as wide as a column of proceedings, in a font like Times


def main(arguments: Sequence[str]) -> int:
    """Draw, and say where."""
    paths, rest = split_positionals(arguments)
    options: Plot = parse(Plot, rest, "plot RUN...")
    if len(paths) == 1 and (episodes := episodes_of(Path(paths[0]))) is not None:
        output = options.output or Path(paths[0]).with_suffix(f".{options.format or 'png'}")
        draw_episodes(episodes, output)
        say(f"Drawn: {output}")
        return 0
    from etude.report.plots import draw_run, draw_runs
    from etude.report.series import METRICS, RETURN, compared, find_runs

    found = [path for given in paths for path in find_runs(given)]
    runs = _readable(found, paths, options.metric)
    alone = found[0] if len(found) == len(runs) == 1 and options.kind == "curves" else None
    output = _output(options, alone)
    try:
        if alone is not None:
            draw_run(runs[0], output, options.style)
        else:
            comparison = compared(runs, options.labels)
            draw_runs(
                comparison, output, options.kind, statistic=options.statistic, band=options.band, style=options.style
            )
            if runs[0].quantity == RETURN:
                other = next(name for name, quantity in METRICS.items() if quantity != comparison.quantity)
                say(f"All lines are of one metric, {comparison.quantity}. Another one: --metric {other}")
            for note in comparison.notes:
                say(note)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        raise ConfigError(
            f"The picture {output} cannot be written: {error.strerror or error}. Name another file: --output."
        ) from error
    say(f"Drawn: {output}")
    return 0


def _output(options: Plot, alone: Path | None) -> Path:
    """The file to write. alone: the only run."""
    if options.output is not None:
        suffix = options.output.suffix.lstrip(".")
        if options.format is None or suffix == options.format:
            return options.output
        if suffix:
            raise ConfigError(f"--output {options.output} --format {options.format}: two formats. Leave one out.")
        return options.output.with_suffix(f".{options.format}")
    metric = None if options.metric is None else options.metric.replace("/", "_")
    inside = alone is not None and alone.is_dir()
    name = f"{(metric or 'curve') if inside else 'curves'}.{options.format or 'png'}"
    return alone / name if alone is not None and inside else Path(name)


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
