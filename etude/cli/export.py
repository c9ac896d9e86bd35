"""`etude export`: a trained policy as files that need no etude."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from etude.cli.options import takes, with_path
from etude.cli.output import say
from etude.export import FORMATS

if TYPE_CHECKING:
    Format = str
else:
    Format = Literal[tuple(FORMATS)]


@dataclass(frozen=True)
@takes("checkpoint env trust")
class Export:
    """Write the policy of RUN, a run directory or a checkpoint file, in a format that needs no etude."""

    to: Format = "numpy"  # numpy: a folder with act.py; see docs/deploy.md
    out: Path | None = None  # the file or folder; None: named after RUN, in the current folder


def main(arguments: Sequence[str]) -> int:
    """Write the files."""
    path, options = with_path(Export, arguments, "export")
    from etude.cli.runs import trained

    with trained(path, options.checkpoint, options.env, trust=options.trust) as run:
        out = options.out or Path(path.absolute().stem + (FORMATS[options.to].suffix or f"-{options.to}"))
        say(f"{run.export(out, options.to)}: {FORMATS[options.to].about}")
        if then := FORMATS[options.to].then:
            say(f"  {then.format(path=shlex.quote(str(out)))}")
    return 0
