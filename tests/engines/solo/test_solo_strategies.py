"""Agents of one's own that train with strategies of tf.distribute, in processes of their own."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import etude
from etude.base.errors import ConfigError

HERE = Path(__file__).parent
PROGRAM = HERE / "strategy_program.py"
DEADLINE = 400  # seconds; the tests take some ten of them where nothing else runs


@pytest.fixture(autouse=True)
def on_tensorflow(engine_name):
    if engine_name != "tensorflow":
        pytest.skip("strategies are TensorFlow's")


def start(task, worker=None, cluster=None, **arguments):
    """The program with these arguments, as this worker of a cluster."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(HERE), str(HERE.parent), *sys.path]))
    environment.pop("TF_CONFIG", None)
    if worker is not None:
        environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": worker}})
    command = [sys.executable, str(PROGRAM), task, json.dumps(arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def found_by(process):
    """What the program reported."""
    said, complaint = process.communicate(timeout=DEADLINE)
    lines = said.splitlines()
    assert lines, complaint[-2000:]
    return json.loads(lines[-1])


def addresses(count):
    """Addresses on this machine that are free now."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    found = [f"localhost:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return found


def run_workers(**arguments):
    """What each of two workers reported, and how each ended. arguments: of `workers`, a list for those that differ."""
    cluster = {"worker": addresses(2)}
    given = [{name: x[i] if isinstance(x, list) else x for name, x in arguments.items()} for i in range(2)]
    processes = [start("workers", i, cluster, **own) for i, own in enumerate(given)]
    try:
        reports = [found_by(process) if process.wait(DEADLINE) == 0 else None for process in processes]
        return reports, [process.returncode for process in processes]
    finally:
        for process in processes:
            process.kill()


def assert_same(one, other):
    assert one["gradient_steps"] == other["gradient_steps"] >= 20
    assert one["rows"] == other["rows"], "what is sampled by priorities"
    np.testing.assert_allclose(one["parameters"], other["parameters"], rtol=1e-5, atol=1e-6)


def test_replicas_learn_what_one_learns_and_what_they_cannot_do_is_said():
    found = found_by(start("mirrored", kinds=["PR"], replicas=[2, 4]))
    alone, *replicated = found["learned"]["PR"]
    for other in replicated:
        assert_same(other, alone)
    said = {
        "batch": "A batch of 5 examples cannot be divided over the 4 replicas",
        "agent": "DQN was made outside of the strategy's scope",
        "optimizer": "The optimizer 'adam",
        "text": "strategy is a builtins.str; expected a tf.distribute MirroredStrategy",
        "kind": "OneDeviceStrategy; expected a tf.distribute MirroredStrategy",
        "none": "distributed_training needs a strategy",
        "twice": "distributed_training got strategy twice",
    }
    assert said.keys() == found["refused"].keys()
    for name, text in said.items():
        assert found["refused"][name].startswith("ConfigError: ") and text in found["refused"][name]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["DQN", "PPO", "DDPG", "Team"])
def test_agents_of_every_mode_learn_the_same_with_any_number_of_replicas(kind):
    alone, *replicated = found_by(start("mirrored", kinds=[kind], replicas=[1, 2, 4]))["learned"][kind]
    for other in replicated:
        assert other["rows"] == alone["rows"] and other["gradient_steps"] == alone["gradient_steps"]
        np.testing.assert_allclose(other["parameters"], alone["parameters"], rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_hyperparameters_of_replicas_are_adjusted_as_those_of_one_and_batches_stay_divisible():
    alone, replicated = found_by(start("mirrored", kinds=["Adjusted"], replicas=[4]))["learned"]["Adjusted"]
    assert_same(replicated, alone)
    assert replicated["batch"] == alone["batch"] == 4
    assert replicated["rates"] == pytest.approx(alone["rates"], rel=1e-5) != [1e-2]


def test_two_workers_learn_what_one_learns_and_a_killed_one_ends_in_one_error(tmp_path):
    from strategy_program import made, optimizers

    files = [str(tmp_path / name) for name in ("chief.dat", "other.dat")]
    (chief, killed), codes = run_workers(path=files, ends="kill")
    assert killed is None and codes[1] == -9
    assert chief["then"].startswith("ReplicaError: A process of this cluster ended or does not answer")
    assert [path.name for path in tmp_path.iterdir()] == ["chief.dat"], "one file, written by the chief"
    again = made("PR", None)
    again.restore(files[0])
    again.train(None, optimizers(again), 1, p=0, jit_compile=False)
    alone = made("PR", None)
    alone.train(None, optimizers(alone), 6, p=0, jit_compile=False)
    np.testing.assert_allclose(chief["parameters"], vector_of(alone), rtol=1e-5, atol=1e-6)
    alone.train(None, None, 1, p=0, jit_compile=False)
    assert again.total_episode == alone.total_episode == 7
    np.testing.assert_allclose(vector_of(again), vector_of(alone), rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_one_interrupted_worker_ends_all_and_all_learned_the_same(tmp_path):
    reports, codes = run_workers(path=str(tmp_path / "agent.dat"), ends="interrupt")
    assert codes == [0, 0]
    assert [report["then"] for report in reports] == [None, None]
    assert reports[0]["episodes"] == reports[1]["episodes"] == 9
    assert_same(*reports)


@pytest.mark.long
def test_workers_that_were_started_differently_are_refused(tmp_path):
    reports, _ = run_workers(path=str(tmp_path / "agent.dat"), other=True)
    assert "ConfigError: Worker 1 of 2" in reports[1]["message"]
    assert "seed = 1 here and 0 in the chief" in reports[1]["message"]
    assert "ConfigError: Worker 0 of 2" in reports[0]["message"]


@pytest.mark.long
@pytest.mark.parametrize(
    "job, said", [("worker", "worker 0 did not answer"), ("ps", "A process of this cluster ended")]
)
def test_a_parameter_server_and_a_worker_learn_what_one_process_learns(job, said):
    worker, server, chief = addresses(3)
    cluster = {"worker": [worker], "ps": [server], "chief": [chief]}
    servers = {name: start("server", cluster=None, job=name, members=cluster) for name in ("worker", "ps")}
    try:
        found = found_by(start("scheduled", members=cluster, kills=servers[job].pid))
    finally:
        for process in servers.values():
            process.kill()
            process.wait()
    assert_same(*found["learned"])
    assert found["message"].startswith("ReplicaError: ") and said in found["message"]


def vector_of(agent):
    return np.concatenate([np.ravel(x) for x in agent._session_state.session.learner.engine.parameters().values()])


def test_an_agent_in_pytorch_is_refused():
    agent = type("Agent", (etude.RL_pytorch,), {})()
    with pytest.raises(ConfigError, match="trains agents in Keras with strategies of tf.distribute; Agent is written"):
        agent.distributed_training(None, None, 1)
