"""How many threads NumPy's BLAS computes with while agents act."""

import os
import subprocess
import sys
import threading

import pytest

from etude.ops import blas

PROGRAM = """
import sys
import numpy as np
from threadpoolctl import threadpool_info
import etude
from etude.engines.numpy import NumpyEngine
from etude.networks.dense import Affine, DenseActor
from etude.base.spaces import Spaces
from gymnasium.spaces import Box, Discrete

width, kind = int(sys.argv[1]), sys.argv[2]

def threads():
    return [info["num_threads"] for info in threadpool_info() if "numpy" in info["filepath"]]

def present(observation):
    print(*threads())
    return observation

class Noting(etude.algorithms.DQN):
    def act(self, observation):
        present(observation)
        return super().act(observation)

before = threads()
if kind == "chain":
    weights = {"kernel": np.ones((width, width), np.float32), "bias": np.ones(width, np.float32)}
    actor = DenseActor([Affine("kernel", "bias")], weights, lambda x: x)
    actor._prepared.append(present)
    actor.act(np.ones((1, width), np.float32))
else:
    agent = Noting(etude.algorithms.DQNConfig(network=etude.Mlp((width, width))))
    spaces = Spaces(Box(-1, 1, (4,), np.float32), Discrete(2))
    NumpyEngine(agent, spaces).act(np.ones((1, 4), np.float32))
assert threads() == before
"""


def threads_while_acting(width, kind, **settings):
    environment = {name: value for name, value in os.environ.items() if name not in blas.SETTINGS} | settings
    command = [sys.executable, "-c", PROGRAM, str(width), kind]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return [int(number) for number in done.stdout.split()]


@pytest.mark.parametrize("kind", ["spec", "chain"])
def test_agents_act_with_one_thread_of_blas_and_leave_the_number_as_it_was(kind):
    found = threads_while_acting(256, kind)
    assert found in ([], [1])  # empty where threadpoolctl does not know NumPy's BLAS


@pytest.mark.parametrize("kind", ["spec", "chain"])
def test_a_number_of_threads_in_the_environment_is_kept(kind):
    found = threads_while_acting(256, kind, OPENBLAS_NUM_THREADS="2")
    assert found in ([], [min(2, len(os.sched_getaffinity(0)))])


class Library:
    """Stands for a BLAS."""

    def __init__(self, threads):
        self.threads = threads

    def get_num_threads(self):
        return self.threads

    def set_num_threads(self, number):
        self.threads = number


def test_contexts_that_overlap_put_the_first_number_back():
    library = Library(4)
    limit, entered, leave = blas._OneThread([library]), threading.Event(), threading.Event()

    def act():
        with limit:
            entered.set()
            leave.wait(120)

    thread = threading.Thread(target=act)
    with limit:
        with limit:
            assert library.threads == 1
        thread.start()
        assert entered.wait(120)
    assert library.threads == 1  # the other one acts
    leave.set()
    thread.join()
    assert library.threads == 4


def test_blas_is_not_asked_for_small_matrices(monkeypatch):
    monkeypatch.setattr(blas, "_limit", lambda: pytest.fail("asked"))
    with blas.one_thread(blas.SMALL - 1):
        pass
