"""What a run makes of an environment's faults: each fault at each moment, in one process and in workers.

`python -m benchmarks.reliability.faulty_environments` writes faulty_environments.json. Every case is a run of `etude
train` in a process of its own. It passes where that ends by itself with clear words and without a traceback, leaves
the checkpoint that it has to and none of the processes that it or an environment in a worker started.

Left out is what no program survives in its own process: to be killed, or to hang outside of close.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks import measure
from benchmarks.reliability.faulty import DONE, REPLACED, SAID, WRONG, hangs, starts_process
from benchmarks.reliability.processes import Command, outliving

MOMENTS = ("make", "first reset", "later reset", "step", "close")
PLACES = ("one process", "two workers")
STEPS = 200
LIMIT = 90.0  # seconds of a case, after which it counts as one that hangs
DEADLINE = 2.0  # seconds that a worker may hang


class Case(NamedTuple):
    fault: str
    moment: str
    place: str

    @property
    def replaced(self) -> bool:
        """Whether it costs a worker, and not the run."""
        return DONE.get(self.fault) in REPLACED and self.moment != "close"

    @property
    def ends(self) -> bool:
        """Whether the run has to end with an error."""
        return (self.fault in WRONG or DONE.get(self.fault) in SAID) and self.moment != "close"


def cases() -> list[Case]:
    """All that can be survived."""
    found = [Case(*each) for each in itertools.product((*DONE, *WRONG), MOMENTS, PLACES)]
    return [case for case in found if _is_possible(case)]


def _is_possible(case: Case) -> bool:
    if case.fault in WRONG:
        return case.moment not in ("make", "close")
    fatal = DONE[case.fault] in (*REPLACED, starts_process)
    return case.place == "two workers" or not fatal or (DONE[case.fault] is hangs and case.moment == "close")


def carry_out(case: Case, folder: Path) -> dict:
    """Run one case in a fork of this process."""
    began = time.monotonic()
    workers = "2" if case.place == "two workers" else "0"
    options = {"steps": STEPS, "envs": 2, "workers": workers, "engine": "torch", "run-dir": folder / "run",
               "save-every": 10**6, "evaluate-every": 10**6}  # fmt: skip
    words = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    variables = {"FAULT": case.fault, "MOMENT": case.moment, "PLACE": case.place, "FOLDER": str(folder)}
    environment = f"{Path(__file__).with_name('faulty.py')}:Faulty"
    command = Command(["train", "dqn", environment, *words], folder / "said", variables)
    ended = command.wait(LIMIT)
    command.kill()
    seconds = time.monotonic() - began
    said = (folder / "said").read_text(errors="replace")
    problems = [] if ended is not None else [f"it still ran after {LIMIT:.0f} s"]
    if ended is not None:
        problems += _problems(case, ended, said, folder)
    return {"problems": problems, "seconds": round(seconds, 1), **({"said": said[-2000:]} if problems else {})}


def _problems(case: Case, code: int, said: str, folder: Path) -> list[str]:
    """Why a case does not pass."""
    found = []
    if code != (2 if case.ends else 0):
        found.append(f"it ended with code {code}")
    if "Traceback" in said:
        found.append("it showed a traceback")
    if len(said) > 20_000:
        found.append(f"it said {len(said)} characters")
    words = _words(case)
    if words not in " ".join(said.replace("│", " ").split()):
        found.append(f"it did not say {words!r}")
    saved = sorted((folder / "run" / "checkpoints").glob("step_*.etude"))
    early = case.ends and case.moment in ("make", "first reset")
    if not early and not saved:
        found.append("it saved nothing")
    left = _left_behind(folder)
    if left:
        found.append(f"it left {len(left)} processes behind")
    return found


def _words(case: Case) -> str:
    """What has to be read."""
    if case.fault in WRONG:
        return WRONG[case.fault][1]
    fault = DONE[case.fault]
    if case.moment == "close" and fault in REPLACED:
        return "close() did not return" if fault is hangs else ""
    return {**SAID, **REPLACED}.get(fault, "")


def _left_behind(folder: Path) -> list[int]:
    """The processes that are still there after a moment; they are ended."""
    left = outliving([int(line) for line in (folder / "processes").read_text().split()], 5)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return left


def _shorten_deadlines() -> None:
    import functools

    from etude.training.kinds import kind
    from etude.workers import supervisor

    kind.PoolOptions = functools.partial(kind.PoolOptions, deadline=DEADLINE)  # type: ignore[misc, assignment]
    supervisor._STARTING = 20.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="those whose name holds this")
    parser.add_argument("--again", action="store_true", help="also those that the file holds already")
    options = parser.parse_args()
    only, again = options.only, options.again
    import torch  # noqa: F401  (once, for all forks)

    import etude.run  # noqa: F401

    _shorten_deadlines()
    results = {} if again else measure.read(__file__).get("cases", {})
    for case in cases():
        name = " | ".join(case)
        if only not in name or name in results:
            continue
        with tempfile.TemporaryDirectory() as folder:
            results[name] = carry_out(case, Path(folder))
        print(f"{name}: {'; '.join(results[name]['problems']) or 'passed'} ({results[name]['seconds']} s)", flush=True)
        measure.write(__file__, {"counts": _counts(results), "cases": results})
    print(_counts(results))


def _counts(results: dict[str, dict]) -> dict[str, dict[str, int]]:
    """How many cases there are in each place, and how many of them passed."""
    by_place = {place: [found for name, found in results.items() if name.endswith(place)] for place in PLACES}
    return {
        place: {"cases": len(found), "passed": sum(not each["problems"] for each in found)}
        for place, found in by_place.items()
    }


if __name__ == "__main__":
    main()
