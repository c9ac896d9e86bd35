"""Learning steps can be measured against a bare loop on every framework."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "learn_step.py"


@pytest.mark.one_engine("jax")
def test_the_time_of_a_learning_step_is_measured_beside_a_bare_loop(engine_name):
    backend = {"KERAS_BACKEND": engine_name} if engine_name != "torch" else {}
    command = [sys.executable, str(SCRIPT), "--cell", engine_name, "--repeats", "1", "--cases", "dqn"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **backend}, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    seconds = json.loads(done.stdout.splitlines()[-1])["dqn"]
    assert min(seconds["etude"]) > 0 < min(seconds["bare"])
