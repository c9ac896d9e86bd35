"""Programs with a Ray of their own: two nodes, and Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

import etude

pytest.importorskip("ray")
pytestmark = pytest.mark.long

TWO_NODES = """
import numpy as np
import ray
from ray.cluster_utils import Cluster

import etude
from etude.base.events import WorkerReplaced

small = {"object_store_memory": 100_000_000, "num_cpus": 1}
cluster = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
second = cluster.add_node(**small)
config = etude.config("ppo", "CartPole-v1", rollout_length=16, minibatch_size=32)
setup = {"config": config, "environments": 4, "engine": "torch", "seed": 1}
run = etude.Run("ppo", "CartPole-v1", workers=2, ray=cluster.address, **setup)
run.train(128)
alone = etude.Run("ppo", "CartPole-v1", **setup)
alone.train(128)
weights, expected = run.engine.weights(), alone.engine.weights()
print("equal", all(np.array_equal(weights[name], expected[name]) for name in expected))

workers = run.collection.rollout._supervisor.workers
assert all(worker.process_id for worker in workers)
nodes = [worker._placed[0] for worker in workers]
print("nodes", len(set(nodes)))

events = []
cluster.remove_node(second, allow_graceful=False)
cluster.add_node(**small)
run.train(128, events.append)
replaced = [event.worker for event in events if isinstance(event, WorkerReplaced)]
print("replaced", [nodes[worker] == second.node_id for worker in replaced])
run.close()
ray.shutdown()
cluster.shutdown()
"""


def started(arguments, folder, mark):
    """A program in a group of its own, whose processes all have the variable MARK."""
    environment = {**os.environ, "MARK": mark, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, *arguments], env=environment, cwd=folder, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def marked(mark):
    """The processes of this machine that inherited the variable, dead ones left out."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"MARK={mark}".encode() in (path / "environ").read_bytes().split(b"\0"):
                found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


def assert_nothing_is_left(mark):
    for _ in range(300):
        if not marked(mark):
            return
        time.sleep(0.1)
    raise AssertionError(f"these processes are left: {marked(mark)}")


def test_actors_on_two_nodes_give_the_same_numbers_and_move_when_their_node_is_lost(tmp_path):
    mark = uuid.uuid4().hex
    program = started(["-c", TWO_NODES], tmp_path, mark)
    out, err = program.communicate(timeout=300)
    assert program.returncode == 0, err
    said = [line for line in out.splitlines() if line.startswith(("equal", "nodes", "replaced"))]  # beside Ray's log
    assert said == ["equal True", "nodes 2", "replaced [True]"]
    assert_nothing_is_left(mark)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_saves_the_run_and_leaves_no_process_behind(name, tmp_path):
    mark, directory = uuid.uuid4().hex, tmp_path / "run"
    command = "-m etude train dqn CartPole-v1 --engine torch --workers 2 --envs 2 --ray local --steps 10000000"
    program = started([*command.split(), "--run-dir", str(directory)], tmp_path, mark)
    while program.poll() is None and "rollout/" not in read(directory / "metrics.jsonl"):
        time.sleep(0.1)
    assert program.poll() is None, program.communicate()
    processes = marked(mark)
    assert sum("WorkerActor" in name for name in processes.values()) == 2, processes
    getattr(os, "killpg" if name == "SIGINT" else "kill")(program.pid, getattr(signal, name))
    _, err = program.communicate(timeout=120)
    assert program.returncode == 130  # as a shell has it, also where Ray would have ended the program
    assert "Traceback" not in err
    assert_nothing_is_left(mark)
    with etude.load(directory) as run:
        assert run.step > 0


def read(path):
    return path.read_text() if path.exists() else ""
