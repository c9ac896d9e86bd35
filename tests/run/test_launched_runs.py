"""Runs in several processes that a launcher started, and on several devices of one process."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import python_programs

import etude

SCRIPT = Path(__file__).with_name("launched_run.py")
ENDED = 3  # the exit status after a clear error
DEADLINE = 200  # seconds, after which a run that hangs is killed and its test fails


def environment(devices=1, **more):
    own = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    own["XLA_FLAGS"] = f"{own.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    paths = [str(Path(etude.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**own, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1", **more}


def free_port():
    """One whose successor is free as well."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


LAUNCHERS = {
    "torchrun": ("torch.distributed.run", "--nproc-per-node", "2", "--master-port"),
    # Without --multi_gpu, Accelerate starts one process where there is no GPU.
    "accelerate": ("accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port"),
}


def launched(*arguments, by="torchrun"):
    return python_programs.start("-m", *LAUNCHERS[by], free_port(), SCRIPT, *arguments, environment=environment())


def output_of(process):
    try:
        return "".join(filter(None, process.communicate(timeout=DEADLINE)))
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def by_rank(engine, what, folder, fails=1):
    """Two processes, each started by hand."""
    where = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "JAX_PLATFORMS": "cpu"}
    own = [environment(RANK=str(rank), **where) for rank in range(2)]
    return [python_programs.start(SCRIPT, engine, what, folder, fails, environment=each) for each in own]


def alive(folder):
    """The processes of a run that have not ended."""
    found = []
    for path in folder.glob("*.pid"):
        try:
            os.kill(int(path.read_text()), 0)
        except ProcessLookupError:
            continue
        found.append(path.name)
    return found


def alone(engine):
    run = etude.Run(
        "ppo", "CartPole-v1", engine=engine, environments=4, seed=3, network=etude.Mlp((16,)), rollout_length=8,
        minibatch_size=16, epochs=2,
    )  # fmt: skip
    run.train(160)
    return run.engine.weights()


def assert_close(path, weights):
    found = np.load(path)
    for name, weight in weights.items():
        np.testing.assert_allclose(found[name], weight, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_killed_process_ends_the_others_in_one_clear_error_and_the_chief_has_saved(tmp_path):
    pytest.importorskip("torch")
    process = launched("torch", "killed", tmp_path)
    said = output_of(process)
    assert process.returncode and "ReplicaError: A process of this run ended or does not answer (process 1 gave" in said
    assert not alive(tmp_path)
    run = etude.load(tmp_path / "run")
    assert run.step >= 288
    run.train(32)


def test_the_devices_of_one_process_learn_the_same_weights_in_jax(tmp_path):
    pytest.importorskip("jax")
    own = environment(devices=8, JAX_PLATFORMS="cpu")
    process = python_programs.start(SCRIPT, "jax", "whole", tmp_path, environment=own)
    assert process.wait(DEADLINE) == 0
    assert_close(tmp_path / "0.npz", alone("jax"))


@pytest.mark.long
def test_a_process_that_hangs_ends_the_others_in_one_clear_error_and_the_chief_has_saved(tmp_path):
    pytest.importorskip("torch")
    process = launched("torch", "stopped", tmp_path)
    said = output_of(process)
    assert process.returncode and "ReplicaError: A process of this run ended or does not answer (process 1 gave" in said
    assert not alive(tmp_path)
    assert etude.load(tmp_path / "run").step >= 288


@pytest.mark.long
def test_ctrl_c_saves_and_leaves_no_process_behind(tmp_path):
    pytest.importorskip("torch")
    process = launched("torch", "endless", tmp_path)
    until = time.monotonic() + DEADLINE
    while len(list(tmp_path.glob("*.pid"))) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(3)  # some steps
    process.send_signal(signal.SIGINT)
    output_of(process)
    assert not alive(tmp_path)
    assert (
        np.load(tmp_path / "0.npz")["step"] == np.load(tmp_path / "1.npz")["step"] == etude.load(tmp_path / "run").step
    )


@pytest.mark.long
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_processes_learn_the_same_weights_in_torch(launcher, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip(LAUNCHERS[launcher][0])
    process = launched("torch", "whole", tmp_path, by=launcher)
    assert "Error" not in output_of(process) and not process.returncode
    for rank in range(2):
        assert_close(tmp_path / f"{rank}.npz", alone("torch"))


@pytest.mark.long
def test_two_processes_learn_the_same_weights_in_jax_and_the_chief_outlives_the_other(tmp_path):
    pytest.importorskip("jax")
    for process in by_rank("jax", "late", tmp_path):
        said = output_of(process)
        assert process.returncode == 0, said[-2000:]
    for rank in range(2):
        assert_close(tmp_path / f"{rank}.npz", alone("jax"))


@pytest.mark.long
@pytest.mark.parametrize(("what", "reason"), [("killed", ""), ("stopped", "process 1 gave no heartbeat")])
def test_a_process_of_jax_that_is_killed_or_hangs_ends_the_chief_in_one_clear_error_after_it_has_saved(
    what, reason, tmp_path
):
    pytest.importorskip("jax")
    chief, other = by_rank("jax", what, tmp_path)
    try:
        said = output_of(chief)
    finally:
        other.kill()
        other.communicate()
    assert chief.returncode == ENDED
    assert f"ReplicaError: A process of this run ended or does not answer ({reason}" in said
    assert etude.load(tmp_path / "run").step == 320, "the last step before it"


def ended(processes):
    """(exit code, last output) of each process; all are killed where one hangs."""
    try:
        return [(process.returncode, said[-3000:]) for process in processes for said in [output_of(process)]]
    finally:
        for process in processes:
            process.kill()


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("engine", ["torch", pytest.param("jax", marks=pytest.mark.long)])
def test_sigterm_to_one_process_ends_all_at_the_same_step_with_a_checkpoint_of_it(engine, rank, tmp_path):
    pytest.importorskip(engine)
    for code, said in ended(by_rank(engine, "terminated", tmp_path, rank)):
        assert code == 0, said
    steps = [np.load(tmp_path / f"{each}.npz")["step"] for each in range(2)]
    assert 320 <= steps[0] == steps[1] == etude.load(tmp_path / "run").step < 640
    assert not alive(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "words"),
    [("torch", "ReplicaError: The processes of this run do not reach each other: "), ("jax", "DEADLINE_EXCEEDED")],
)
def test_a_process_that_ends_while_all_connect_ends_the_others(engine, words, tmp_path):
    pytest.importorskip(engine)
    (code, said), _ = ended(by_rank(engine, "connecting", tmp_path))
    assert code and words in said


CAUSES = [  # (what fails, in which process, whether the other raises the same)
    ("rewriter", 1, False), ("rewriter", 0, False), ("metric", 1, False), ("metric", 0, False), ("callback", 1, False),
    ("callback", 0, False), ("environment", 1, True), ("environment", 0, True), ("evaluation", 0, True),
    ("save", 1, False), ("save", 0, False), ("loop", 1, False), ("loop", 0, False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("what", "fails", "alike"),
    [case if case[:2] == ("rewriter", 1) else pytest.param(*case, marks=pytest.mark.long) for case in CAUSES],
)
@pytest.mark.parametrize("engine", ["torch", pytest.param("jax", marks=pytest.mark.long)])
def test_whatever_fails_in_one_process_ends_the_other_with_its_number_and_cause(engine, what, fails, alike, tmp_path):
    pytest.importorskip(engine)
    found = ended(by_rank(engine, what, tmp_path, fails))
    (code, said), (other_code, other_said) = found[fails], found[1 - fails]
    assert code == other_code == ENDED, said + other_said
    assert "no ink" in said
    if what == "loop":  # closes its run, and both see that they are at other places
        assert f"process {fails} is at 'rollout'" in other_said or f"process {fails} for rollout" in other_said
    else:
        assert "no ink" in other_said
        named = f"In process {fails} of 2: " if alike else f"ReplicaError: Process {fails} of 2 stopped training: "
        assert named in other_said
    assert etude.load(tmp_path / "run", env="CartPole-v1", rewrite=None).step >= 256
