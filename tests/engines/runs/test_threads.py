"""How many threads engines compute with on the CPU: XLA settles it once in every process, torch at every call."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from solo_agents import NotDense, agent_for, discrete, train

import etude
from etude.cores import left_beside, usable_cores

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


def test_one_core_is_left_at_least():
    assert [left_beside(processes) for processes in (0, 1, 1_000)] == [usable_cores(), usable_cores() - 1, 1]


def test_torch_computes_with_the_cores_that_workers_leave(engine_name):
    if engine_name != "torch":
        pytest.skip("of PyTorch only")
    import torch

    from etude.engines.torch import threads_beside

    before = torch.get_num_threads()
    with threads_beside(0):
        assert torch.get_num_threads() == before
    with threads_beside(1_000):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    noted = []

    class Noting(etude.DQN):
        def loss(self, batch, noise):
            noted.append(torch.get_num_threads())
            return super().loss(batch, noise)

    agent = Noting(etude.DQNConfig(network=etude.Mlp((8,)), warmup=64))
    for overlap in (False, True):
        setup = {"environments": 1, "workers": 1, "overlap": overlap, "engine": "torch", "seed": 1}
        with etude.Run(agent, "CartPole-v1", **setup) as run:
            run.train(100)
        assert set(noted) == {before if not overlap else min(before, left_beside(1))}
        noted.clear()


@pytest.mark.parametrize("overlap", [False, True])
def test_agents_of_ones_own_leave_cores_to_workers_that_collect_while_they_learn(overlap, engine_name):
    agent = agent_for(engine_name)
    agent.set(**discrete())
    train(agent, engine_name, 1, processes=1, parallel_store_and_training=overlap)
    assert agent._book.session.learner.engine._backend.busy == (0, overlap)


def test_agents_of_ones_own_leave_cores_to_workers_that_step(engine_name):
    agent = agent_for(engine_name, "DQN", NotDense)
    agent.set(**discrete())
    train(agent, engine_name, 1, processes=1)
    assert agent._book.session.learner.engine._backend.busy == (1, 0)
