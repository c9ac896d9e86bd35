"""`etude plot`: learning curves of runs as a PNG."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from etude.cli.options import parse, split_positionals
from etude.cli.output import say
from etude.errors import ConfigError


@dataclass(frozen=True)
class Plot:
    """Draw the learning curves of RUN..., one panel for each environment, each algorithm's mean over its seeds."""

    output: Path = Path("curves.png")  # the picture; of one run alone it goes to curve.png in its directory
    band: Literal["bootstrap", "range"] = "bootstrap"  # around the mean: its 95 % interval, or lowest to highest seed


def main(arguments: Sequence[str]) -> int:
    """Draw, and say where."""
    paths, rest = split_positionals(arguments)
    options: Plot = parse(Plot, rest, "plot RUN...")
    from etude.report.plots import draw_run, draw_runs, read_run

    runs = [read_run(path) for path in paths]
    output = options.output
    if len(runs) == 1 and options.output == Plot().output and Path(paths[0]).is_dir():
        output = Path(paths[0]) / "curve.png"
    try:
        if len(runs) == 1:
            draw_run(runs[0], output)
        else:
            draw_runs(runs, output, options.band)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        raise ConfigError(
            f"The picture {output} cannot be written: {error.strerror or error}. Name another file: --output."
        ) from error
    say(f"Drawn: {output}")
    return 0
