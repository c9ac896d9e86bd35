"""Keras fixes its backend per process: tests of engines run once per engine, `pytest tests/engines --engine torch`."""

import atexit
import contextlib
import faulthandler
import functools
import gc
import importlib.util
import multiprocessing.util
import os
import signal
import sys
import tempfile
import types
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

import pytest

ENGINES = Path(__file__).parent / "engines"
IMPORTED = [f"etude.{name}" for name in ("workers.worker", "algorithms", "rollout.pool", "rollout.async_gradients")]
IMPORTED_BY_TESTS = ["etude.run", "etude.cli", "pytest", "pettingzoo.utils"]  # whose environments workers step
FROZEN = [0]  # the numbers of modules when objects were last left out of collections
MISSING = [name for name in ("jax", "tensorflow", "torch") if importlib.util.find_spec(name) is None]

# A shell ignores Ctrl-C in what it runs in the background, `nohup` the end of the terminal, and programs inherit that:
# tests of signals start from here.
signal.signal(signal.SIGINT, signal.default_int_handler)
if sys.platform != "win32":
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser):
    parser.addoption(
        "--engine", choices=("jax", "tensorflow", "torch"), default="jax", help="the engine that tests/engines runs on"
    )

    parser.addoption(
        "--whole",
        action="store_true",
        help="also what is marked as a variant, on every engine, and what is marked as long",
    )


def pytest_configure(config):
    state = tempfile.TemporaryDirectory(prefix="etude-state-")  # the key that signs runs is not the user's
    atexit.register(state.cleanup)
    os.environ["XDG_STATE_HOME"] = state.name
    gc.set_threshold(200_000, 20, 20)  # frameworks hold so many objects that the default visits them all the time
    if not config.getoption("--whole"):
        compile_fast()
        engines = any("engines" in Path(argument).parts for argument in config.args)
        on_torch = "torch" not in MISSING and (not engines or config.getoption("--engine") == "torch")
        on_tensorflow = engines and config.getoption("--engine") == "tensorflow"
        if sys.platform == "linux":
            fork_workers(*["torch"] * on_torch, *["etude.engines.tensorflow"] * on_tensorflow)
        if on_torch and not engines:
            prefer_torch()
    if MISSING:
        skip_what_needs_them()
    config.addinivalue_line(
        "markers",
        "variant(*engines): of a case that all engines run; torch, which compiles nothing, runs it, and those named do",
    )
    config.addinivalue_line("markers", "long: run with --whole alone, as `make slow` does")
    config.addinivalue_line("markers", "long_but(*ids): all cases but these, or those of these parameters, are long")
    config.addinivalue_line("markers", "every_engine: TensorFlow runs it too, which compiles for twice as long as JAX")
    config.addinivalue_line("markers", "one_engine(name): of what is learned, where agents prove the gradients of all")


def compile_fast():
    """XLA spends little on the programs of tests, which run them a few times, and nothing on those it compiled before;
    TorchInductor compiles no program to see whether this machine compiles, and starts no processes that compile.

    Set before any framework is imported; programs that tests start inherit it.
    """
    fast = ("backend_optimization_level=0", "cpu_use_fusion_emitters=false", "cpu_parallel_codegen_split_count=1")
    os.environ.setdefault("XLA_FLAGS", " ".join(f"--xla_{flag}" for flag in fast))
    os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        compiled = tempfile.TemporaryDirectory(prefix="etude-compiled-")
        atexit.register(compiled.cleanup)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = compiled.name


def fork_workers(*frameworks):
    """Workers are forks of a process that has imported what they need, also for an environment of a module of tests
    (half a second each), and where they learn (two seconds); it is a fork of this one, which needs the same. Tests of
    how workers start ask for `spawned_workers`."""
    for name in (*IMPORTED, *IMPORTED_BY_TESTS, *frameworks, "cloudpickle"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with (
        mock.patch.dict(os.environ, threads | {"PYTHONSAFEPATH": "1"}),  # as workers are started
        mock.patch.object(multiprocessing.util, "spawnv_passfds", fork_server),
    ):
        forkserver.ensure_running()
    atexit.register(forkserver._forkserver._stop)
    from etude.workers import process

    process.CONTEXT = multiprocessing.get_context("forkserver")
    process._BOOT = f"import numpy; numpy.random.seed()\n{process._BOOT}"  # its own, as of a process that is spawned


def fork_server(_, command, kept):
    """The process that multiprocessing would start with this command, with as few of what is open here."""
    gc.collect()
    gc.freeze()  # nothing that holds a file is collected there
    if number := os.fork():
        return number
    try:
        faulthandler.disable()
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if int(name) not in kept and not os.get_inheritable(int(name)):
                    os.close(int(name))
        sys.stdout, sys.stderr = (open(file, "w", buffering=1, closefd=False) for file in (1, 2))  # noqa: SIM115
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(command[-1])
    finally:
        os._exit(0)


def prefer_torch():
    """Where no engine is named, the first that is installed is torch, which compiles nothing."""
    from etude import engines

    engines.ENGINES = tuple(sorted(engines.ENGINES, key="torch".__ne__))


def skip_what_needs_them():
    """A run that asks for an engine which is not installed skips its test."""
    from etude import engines

    def skip(what, extra):
        if extra in MISSING:
            pytest.skip(f"{extra} is not installed")
        return MissingExtra(what, extra)

    engines.MissingExtra, MissingExtra = skip, engines.MissingExtra


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    return skipped_where_missing(report, str(report.longrepr))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    return skipped_where_missing(report, "" if call.excinfo is None else call.excinfo.exconly())


def skipped_where_missing(report, error):
    """A report that failed with this error, as one of a skip where it failed to import a framework."""
    for name in MISSING:
        if report.failed and f"No module named '{name}" in error:
            report.outcome, report.longrepr = "skipped", (report.nodeid, 0, f"Skipped: {name} is not installed")
    return report


def pytest_collection_modifyitems(config, items):
    """Compiling takes longer than computing: without --whole, other engines than torch leave out tests of engines that
    need none and variants that do not name them, and TensorFlow what JAX compiles in its place."""
    if config.getoption("--whole"):
        return
    engine = config.getoption("--engine")

    def left_out(item):
        if item.get_closest_marker("long") or any(is_long(item, mark) for mark in item.iter_markers("long_but")):
            return True
        if not item.path.is_relative_to(ENGINES):
            return False
        if one := item.get_closest_marker("one_engine"):
            return engine not in one.args and one.args[0] not in MISSING
        if engine == "torch":
            return False
        on = [mark.args for mark in item.iter_markers("variant")]
        if "engine_name" not in item.fixturenames or any(engine not in names for names in on):
            return True
        return engine == "tensorflow" and not on and not is_of_tensorflow(item)

    left = [item for item in items if left_out(item)]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in set(left)]


def is_long(item, mark):
    """Whether none of the kept parameters is one of this case's."""
    return not {item.callspec.id, *item.callspec.id.split("-")} & set(mark.args)


def is_of_tensorflow(item):
    """Whether TensorFlow compiles a test beside JAX: of what an engine computes (`agents`), where it names TensorFlow,
    or where its marks say so."""
    named = {*item.function.__code__.co_consts, *item.fixturenames} & {"tensorflow", "on_tensorflow"}
    return item.path.parent.name == "agents" or bool(named) or item.get_closest_marker("every_engine") is not None


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item):
    """What modules hold stays: no collection of garbage, which pictures ask for, looks at it again."""
    if len(sys.modules) > FROZEN[-1] + 200:
        FROZEN.append(len(sys.modules))
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session")
def engine_name(request) -> str:
    return request.config.getoption("--engine")


@pytest.fixture(scope="session")  # before what a module makes once
def on_tensorflow(engine_name):
    if engine_name != "tensorflow":
        pytest.skip("strategies are TensorFlow's")


@pytest.fixture
def spawned_workers(monkeypatch):
    """Workers start as they do for users."""
    from etude.workers import channel, process

    monkeypatch.setattr(process, "CONTEXT", channel.CONTEXT)


@pytest.fixture
def workers_step(monkeypatch):
    """Workers of agents of one's own step where this process acts, also where they are not worth it."""
    from etude.solo import session

    monkeypatch.setattr(session, "PoolOptions", functools.partial(session.PoolOptions, remote_environments=True))
