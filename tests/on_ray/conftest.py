"""One Ray for all tests of this folder."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _ray():
    ray = pytest.importorskip("ray")
    given = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 100_000_000, "log_to_driver": False}
    ray.init(address="local", **given)  # and not a cluster that happens to run on this machine
    yield
    ray.shutdown()
