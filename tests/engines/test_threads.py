"""How many threads XLA computes with on the CPU, which is settled once in every process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SETTINGS = {"jax": "NPROC", "tensorflow": "TF_NUM_INTRAOP_THREADS"}  # what says how many
several = sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1
pytestmark = pytest.mark.skipif(not several, reason="needs Linux and several cores")


@pytest.mark.parametrize(("width", "asked", "alone"), [(64, None, True), (512, None, False), (64, "2", False)])
def test_small_networks_are_computed_with_one_thread(width, asked, alone, engine_name):
    if engine_name not in SETTINGS:
        pytest.skip("PyTorch has no such trouble")
    command = [sys.executable, str(Path(__file__).with_name("run_threads.py")), engine_name, str(width)]
    environment = {name: value for name, value in os.environ.items() if name not in SETTINGS.values()}
    environment |= {"KERAS_BACKEND": engine_name, **({SETTINGS[engine_name]: asked} if asked else {})}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (int(told.stdout) == 1) == alone
