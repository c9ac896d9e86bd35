"""How many threads engines compute with on the CPU: XLA settles it once in every process, torch at every call."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from solo_agents import NotDense, agent_for, discrete, train

import etude
from etude import engines
from etude.base.cores import left_beside, usable_cores

SETTINGS = {"jax": "NPROC", "tensorflow": "TF_NUM_INTRAOP_THREADS", "torch": "OMP_NUM_THREADS"}  # what says how many
several = sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1
pytestmark = pytest.mark.skipif(not several, reason="needs Linux and several cores")


def threads(engine_name, width, *chosen, **settings):
    """What run_threads.py prints, where nothing is set but this."""
    command = [sys.executable, str(Path(__file__).with_name("run_threads.py")), engine_name, str(width)]
    unset = {*SETTINGS.values(), "MKL_NUM_THREADS"}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"KERAS_BACKEND": engine_name, **settings}
    done = subprocess.run([*command, *chosen], env=environment, capture_output=True, text=True, check=True)
    return [int(number) for number in done.stdout.split()]


@pytest.mark.parametrize(
    ("width", "asked", "alone"),
    [
        (64, None, True),
        pytest.param(512, None, False, marks=pytest.mark.variant),
        pytest.param(64, "2", False, marks=pytest.mark.long),
    ],
)
def test_small_networks_are_computed_with_one_thread(width, asked, alone, engine_name):
    number, *around = threads(engine_name, width, **({SETTINGS[engine_name]: asked} if asked else {}))
    assert (number == 1) == alone
    assert len(set(around)) == (engine_name == "torch")  # it is as before
    if asked and around:
        assert around[0] == int(asked)


def test_a_number_of_threads_that_torch_was_given_is_kept(engine_name):
    if engine_name != "torch":
        pytest.skip("of PyTorch only")
    chosen = usable_cores() + 1
    assert threads("torch", 64, str(chosen)) == [chosen] * 3


@pytest.mark.long_but("set_by_user0")
@pytest.mark.parametrize(("set_by_user", "spins"), [({}, "1000"), ({"GOMP_SPINCOUNT": "77"}, "77")])
def test_threads_of_torch_sleep_soon_where_a_run_imports_it(set_by_user, spins, engine_name):
    if engine_name != "torch":
        pytest.skip("of PyTorch only")
    make = "import etude, os; etude.Run('dqn', 'CartPole-v1', engine='torch').close(); print(os.environ.keys())"
    environment = {name: value for name, value in os.environ.items() if name not in engines._WAITING}
    environment |= {"OMP_DISPLAY_ENV": "VERBOSE", **set_by_user}
    done = subprocess.run([sys.executable, "-c", make], env=environment, capture_output=True, text=True, check=True)
    assert f"GOMP_SPINCOUNT = '{spins}'" in done.stderr
    assert ("GOMP_SPINCOUNT" in done.stdout) == bool(set_by_user)


def test_one_core_is_left_at_least():
    assert [left_beside(processes) for processes in (0, 1, 1_000)] == [usable_cores(), usable_cores() - 1, 1]


def test_torch_computes_with_the_cores_that_workers_leave(monkeypatch, engine_name):
    if engine_name != "torch":
        pytest.skip("of PyTorch only")
    import torch

    from etude.engines import torch as torch_engine

    before = torch.get_num_threads()
    monkeypatch.setattr(torch_engine, "_defaults", lambda: {before})
    with torch_engine.limited(None):
        assert torch.get_num_threads() == before
    with torch_engine.limited(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    noted = []

    class Noting(etude.algorithms.DQN):
        def loss(self, batch, noise):
            noted.append(torch.get_num_threads())
            return super().loss(batch, noise)

    agent = Noting(etude.algorithms.DQNConfig(network=etude.Mlp((512, 512)), learning_starts=64))
    for overlap in (False, True):
        setup = {"environments": 1, "workers": 1, "overlap": overlap, "engine": "torch", "seed": 1}
        with etude.Run(agent, "CartPole-v1", **setup) as run:
            run.train(100)
        assert set(noted) == {before if not overlap else min(before, left_beside(1))}
        noted.clear()


def test_small_agents_of_ones_own_compute_with_one_thread_of_torch(monkeypatch, engine_name):
    if engine_name != "torch":
        pytest.skip("of PyTorch only")
    import torch

    from etude.engines import torch as torch_engine
    from etude.solo.engines import torch as agents_torch

    before, noted, read = torch.get_num_threads(), set(), agents_torch.read_losses
    monkeypatch.setattr(torch_engine, "_defaults", lambda: {2})
    monkeypatch.setattr(agents_torch, "read_losses", lambda *a: noted.add(torch.get_num_threads()) or read(*a))
    torch.set_num_threads(2)
    try:
        agent = agent_for(engine_name)
        agent.set(**discrete())
        train(agent, engine_name, 1)
        assert (noted, torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("overlap", [False, True])
def test_agents_of_ones_own_leave_cores_to_workers_that_collect_while_they_learn(overlap, engine_name):
    agent = agent_for(engine_name)
    agent.set(**discrete())
    train(agent, engine_name, 1, processes=1, parallel_store_and_training=overlap)
    assert agent._session_state.session.learner.engine.busy == (0, overlap)


def test_agents_of_ones_own_leave_cores_to_workers_that_step(engine_name):
    agent = agent_for(engine_name, "DQN", NotDense)
    agent.set(**discrete())
    train(agent, engine_name, 1, processes=1)
    assert agent._session_state.session.learner.engine.busy == (1, 0)
