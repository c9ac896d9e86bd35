"""Keras fixes its backend per process: tests of engines run once per engine, `pytest tests/engines --engine torch`."""

import functools
import signal

import pytest

# A shell ignores Ctrl-C in what it runs in the background, and programs inherit that: tests of Ctrl-C start from here.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption(
        "--engine",
        choices=("jax", "tensorflow", "torch"),
        default="jax",
        help="the engine that tests/engines runs on",
    )


@pytest.fixture(scope="session")
def engine_name(request) -> str:
    return request.config.getoption("--engine")


@pytest.fixture
def workers_step(monkeypatch):
    """Workers of agents of one's own step where this process acts, also where they are not worth it."""
    from etude.solo import session

    monkeypatch.setattr(session, "PoolOptions", functools.partial(session.PoolOptions, step_elsewhere=True))
