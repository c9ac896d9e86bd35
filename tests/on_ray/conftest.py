"""One local Ray for the tests that ask for it."""

import os
import sys

import pytest

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def start(ray):
    path = {"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}}  # actors import modules of the tests
    ray.init(
        num_cpus=2, include_dashboard=False, object_store_memory=100_000_000, log_to_driver=False, runtime_env=path
    )


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
