"""The same numbers again, bit for bit: of a run that is saved and goes on in another process, and of one that is done
there from its start."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from run_cases import CASES, differences, measured

from etude import checkpoint
from etude.base.events import Saved
from etude.checkpoint.run_directory import RunDirectory

SCHEDULE = {"evaluate_every": 90, "evaluate_episodes": 2}
SAVED_AT_EVERY = 4  # parts of the run
AGAIN = ("dqn", "r2d2", "ppo", "es", "a3c", "ppo-several")  # one of each way in which workers collect
STATES = (  # one case of each kind of state
    *AGAIN, "sac", "rainbow", "td_mpc2", "apex_ddpg", "ddpg-hindsight", "impala", "recurrent_ppo", "reinforce",
    "dqn-box2d", "ppo-mujoco", "maddpg", "dqn-data",
)  # fmt: skip


def in_another_process(jobs: list, folder: Path, *how: str) -> None:
    """Carry out the jobs of `run_on`, all in one process, with hashes of its own."""
    plan = folder / "jobs.json"
    plan.write_text(json.dumps(jobs))
    environment = {**os.environ, "PYTHONHASHSEED": "random"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    command = [sys.executable, str(Path(__file__).parents[1] / "run_on.py"), str(plan), *how]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]


def read(path: Path, state: Path) -> tuple[list, dict]:
    return json.loads(path.read_text()), checkpoint.read(state)


@pytest.fixture(scope="module")
def tried(engine_name, request):
    """The names of the cases that are tried: one of each way to learn on every engine; all on the one that starts
    fastest, as the rest knows no engine. Without --whole, those whose states differ, and two on JAX."""
    if request.config.getoption("--whole"):
        return [case.name for case in CASES if case.name in ("dqn", "ppo", "sac", "es") or engine_name == "torch"]
    return [case.name for case in CASES if case.name in (("dqn", "sac") if engine_name == "jax" else STATES)]


@pytest.fixture(scope="module")
def again(engine_name, tried, request):
    """The names of the cases that another process does from their start: without --whole the first one where another
    engine than torch learns, as workers know no engine."""
    names = [case.name for case in CASES if case.name in {*AGAIN} & {*tried}]
    return names if engine_name == "torch" or request.config.getoption("--whole") else names[:1]


@pytest.fixture(scope="module")
def resumed(engine_name, tried, again, request, tmp_path_factory):
    """For each case: what the uninterrupted run told and left, and the same of those that went on from its saves."""
    folder = tmp_path_factory.mktemp("resumed")
    whole, jobs = {}, []
    for case in CASES:
        if case.name not in tried:
            continue
        with RunDirectory.create(folder / case.name, case.name, keep=9) as directory:
            with case.run(engine_name, run_dir=directory) as run:
                events = list(run.steps(case.steps, save_every=case.steps // SAVED_AT_EVERY, **SCHEDULE))
            whole[case.name] = events
            points = [event for event in events if isinstance(event, Saved) and event.kind == "last"]
        for point in points[:-1] if case is CASES[0] else points[1:2]:
            out, numbers = (str(folder / f"{case.name}-{point.step}.{kind}") for kind in ("etude", "json"))
            jobs.append([point.path, case.steps - point.step, {**case.changed, "schedule": SCHEDULE}, out, numbers])
        if case.name in again:
            out, numbers = (str(folder / f"{case.name}-again.{kind}") for kind in ("etude", "json"))
            jobs.append(
                [case.name, case.steps, {"engine": engine_name, "workers": 3, "schedule": SCHEDULE}, out, numbers]
            )
    forked = ["forked", *["torch"] * (engine_name == "torch")]
    in_another_process(jobs, folder, *([] if request.config.getoption("--whole") else forked))
    return folder, whole, jobs


def left_by(events: list) -> tuple[list, dict]:
    """The numbers that a run told, and its last checkpoint."""
    last = next(event.path for event in reversed(events) if isinstance(event, Saved) and event.kind == "last")
    return json.loads(json.dumps(measured(events))), checkpoint.read(last)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_run_resumed_in_another_process_equals_the_uninterrupted_one_bit_for_bit(case, resumed, tried):
    if case.name not in tried:
        pytest.skip("this one is tried with --whole, or on torch")
    folder, whole, jobs = resumed
    expected, last = left_by(whole[case.name])
    count = 0
    for start, _, _, out, numbers in jobs:
        if Path(start).parent.parent.name != case.name:
            continue
        step = int(Path(start).stem.split("_")[1])
        told, state = read(Path(numbers), Path(out))
        assert told == [row for row in expected if row[0] > step]
        assert any(len(row) == 4 and isinstance(row[2], dict) for row in told), "it learned"
        assert differences(last, state) == []
        count += 1
    assert count == (SAVED_AT_EVERY - 1 if case is CASES[0] else 1)


@pytest.mark.parametrize("case", [case for case in CASES if case.name in AGAIN], ids=lambda case: case.name)
def test_the_same_seed_gives_the_same_numbers_in_another_process_and_with_three_workers(case, again, resumed):
    if case.name not in again:
        pytest.skip("this one is tried on torch")
    folder, whole, _ = resumed
    expected, last = left_by(whole[case.name])
    told, state = read(folder / f"{case.name}-again.json", folder / f"{case.name}-again.etude")
    assert told == expected
    assert differences(last, state) == []


def test_another_seed_gives_other_numbers_and_no_global_generator_is_touched(engine_name):
    generators = [random.getstate, lambda: np.random.get_state()[1].tolist()]
    if "torch" in sys.modules:
        generators.append(lambda: sys.modules["torch"].get_rng_state().tolist())
    losses = []
    for seed in (3, 4):
        before = [state() for state in generators]
        with CASES[0].run(engine_name, seed=seed) as run:
            losses.append(measured(list(run.steps(64, evaluate_every=32, evaluate_episodes=1))))
        assert [state() for state in generators] == before
    assert losses[0] != losses[1]
