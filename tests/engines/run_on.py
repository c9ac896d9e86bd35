"""A program: go on with saved runs, in a process that knows nothing of them; or do a run from its start.

Its first argument is a file of JSON: [[checkpoint, steps, settings, where to save, where to write the numbers], ...]. A
second one, `forked`, has workers start as those of tests do, from a process with the frameworks that follow.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from conftest import fork_workers
from run_cases import CASES, measured

import etude


def main() -> None:
    if "forked" in sys.argv[2:]:
        fork_workers(*sys.argv[3:])
    for start, steps, settings, checkpoint, numbers in json.loads(Path(sys.argv[1]).read_text()):
        schedule = settings.pop("schedule", {})
        if start.endswith(".etude"):
            run = etude.load(start, **settings)
        else:
            run = next(case for case in CASES if case.name == start).run(**settings)
        with run:
            events = list(run.steps(steps, **schedule))
            run.save(checkpoint)
        Path(numbers).write_text(json.dumps(measured(events)))


if __name__ == "__main__":
    main()
