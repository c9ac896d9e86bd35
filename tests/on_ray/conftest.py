"""One local Ray for the tests that ask for it."""

import os
import sys
from unittest import mock

import pytest

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def start(ray):
    # Workers inherit it: for a `runtime_env`, Ray starts an agent, and workers of its own. At its niceness of 15, they
    # would wait for every other process.
    own = {"PYTHONPATH": os.pathsep.join(sys.path), "RAY_worker_niceness": "0"}  # actors import modules of the tests
    with mock.patch.dict(os.environ, own):
        ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=100_000_000, log_to_driver=False)


@pytest.fixture(scope="session")
def local_ray():
    ray = pytest.importorskip("ray")
    try:
        start(ray)
    except Exception:  # Ray gives a node 30 seconds, which a busy machine may exceed
        ray.shutdown()
        start(ray)
    yield ray
    ray.shutdown()
