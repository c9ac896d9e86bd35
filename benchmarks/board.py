"""The board: how long many long runs take to open in Chromium, and what live ones cost. It needs Playwright and the
extra `serve`. About 1.2 GB of files are written to a temporary folder, or to `--folder`.

Opening: from the request of the page to a table of all runs, and to drawn curves, with the files in the disk's cache.
Live: processor time of the board's process while a page is open and every run records once a second.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import measure

RUNS, RECORDS = 200, 10_000
LIVE, EARLIER, SECONDS = 50, 1_000, 60.0
ALGORITHMS = ("dqn", "ppo", "sac", "td3")
METRICS = (
    "train/policy_loss", "train/value_loss", "train/entropy", "train/approx_kl", "train/clip_fraction",
    "train/model_gradient_norm", "train/explained_variance", "train/gradient_steps", "rollout/ep_len_mean",
)  # fmt: skip
WANTED = {"table": 2.0, "curves": 2.0, "live": 0.05}


def main() -> None:
    parser = measure.arguments(__doc__)
    parser.add_argument("--folder", type=Path, help="where the runs are kept; one that exists is used again")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        long, live = folder / "long", folder / "live"
        if not long.exists():
            write_runs(long, RUNS, RECORDS)
        shutil.rmtree(live, ignore_errors=True)
        write_runs(live, LIVE, EARLIER)
        opened = [opening(long) for _ in range(options.repeats)]
        rows = {name: measure.summary([each[name] for each in opened]) for name in opened[0]}
        share = living(live)
    measure.show(f"{RUNS} runs of {RECORDS:,} records in a browser", rows, "s")
    print(f"{LIVE} live runs: {share:.1%} of a core")
    for name, most in WANTED.items():
        if name in rows:
            rows[name]["wanted"] = most
    live_row = {"runs": LIVE, "records": EARLIER, "core": measure.significant(share), "wanted": WANTED["live"]}
    measure.write(__file__, {"opening": {"runs": RUNS, "records": RECORDS, "seconds": rows}, "live": live_row})


def write_runs(folder: Path, runs: int, records: int) -> None:
    """Runs of four algorithms and five learning rates, each with several seeds."""
    rng = random.Random(0)
    for number in range(runs):
        path = folder / f"run-{number:03d}"
        path.mkdir(parents=True)
        rate, setup = 10.0 ** -(2 + number // 4 % 5), {"seed": number // 20, "environments": 8}
        about = {"algorithm": ALGORITHMS[number % 4], "environment": "CartPole-v1", "setup": setup, "total": 10**7}
        about |= {"config": {"class": "Config", "learning_rate": rate, "gamma": 0.99}}
        with (path / "metrics.jsonl").open("w") as file:
            file.write(json.dumps({"step": 0, "started": about}) + "\n")
            file.writelines(record(step, rng) for step in range(1, records + 1))


def record(number: int, rng: random.Random) -> str:
    values = {"rollout/ep_rew_mean": 500 * (1 - 0.999**number) * rng.random(), "rollout/episodes": 5}
    values |= {name: rng.random() for name in METRICS} | {"time/fps": 900 + 200 * rng.random()}
    return json.dumps({"step": 1_000 * number, **values}) + "\n"


@contextlib.contextmanager
def board(folder: Path):
    """(its address, its process)."""
    command = [sys.executable, "-m", "etude", "board", str(folder), "--address", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1], process.pid
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def page(address: str):
    """A page of Chromium, opened."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=chromium, args=options)
        found = browser.new_page()
        found.goto("about:blank")
        yield found
        browser.close()


def opening(folder: Path) -> dict[str, float]:
    """Seconds until all rows are there, and until curves are; and, beside, until every record is in them."""
    began = time.perf_counter()
    with board(folder) as (address, process), page(address) as tab:
        started, used = time.perf_counter() - began, processor_seconds_of(process)
        began = time.perf_counter()
        tab.goto(address, wait_until="commit")
        tab.locator("#table tbody tr").nth(RUNS - 1).wait_for(state="attached")
        table = time.perf_counter() - began
        tab.locator("#panels canvas").first.wait_for()
        curves, used = time.perf_counter() - began, processor_seconds_of(process) - used
        tab.locator("#notes", has_text="samples are drawn").wait_for(state="detached", timeout=300_000)
        complete = time.perf_counter() - began
    found = {"start of the board and of Chromium": started, "table": table, "curves": curves}
    return found | {"processor time of the board until curves": used, "every record": complete}


def living(folder: Path) -> float:
    """The share of a core while every run records once a second, after ten seconds."""
    paths, rng = sorted(folder.glob("*/metrics.jsonl")), random.Random(1)
    with board(folder) as (address, process), page(address) as tab, contextlib.ExitStack() as stack:
        files = [stack.enter_context(path.open("a")) for path in paths]
        tab.goto(address)
        used, began = 0.0, time.perf_counter()
        for number in range(int(SECONDS) + 10):
            for file in files:
                file.write(record(EARLIER + number + 1, rng))
                file.flush()
            if number == 10:
                used, began = processor_seconds_of(process), time.perf_counter()
            time.sleep(1.0)
        return (processor_seconds_of(process) - used) / (time.perf_counter() - began)


def processor_seconds_of(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
