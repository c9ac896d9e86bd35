"""Processes that train with strategies of tf.distribute: programs that report JSON in their last line."""

import json
import os
import socket
import sys
from pathlib import Path

import python_programs

DEADLINE = 400  # seconds; the tests take some ten of them where nothing else runs


def start(program, task, worker=None, cluster=None, forked=True, **arguments):
    """A program with these arguments, as this worker of a cluster."""
    folders = [str(Path(program).parent), str(Path(__file__).parent), *sys.path]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(folders))
    environment.pop("TF_CONFIG", None)
    if worker is not None:
        environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": worker}})
    return python_programs.start(program, task, json.dumps(arguments), environment=environment, forked=forked)


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


def run_workers(program, forked=(True, True), **arguments):
    """What each of two workers reported, and how each ended. arguments: of `workers`, a list for those that differ."""
    cluster = {"worker": addresses(2)}
    given = [{name: x[i] if isinstance(x, list) else x for name, x in arguments.items()} for i in range(2)]
    processes = [start(program, "workers", i, cluster, forked[i], **own) for i, own in enumerate(given)]
    try:
        reports = [found_by(process) if process.wait(DEADLINE) == 0 else None for process in processes]
        return reports, [process.returncode for process in processes]
    finally:
        for process in processes:
            process.kill()


def with_servers(program, task, **arguments):
    """What the coordinator of a worker and a parameter server reported. arguments: of `task`; "kills" as the name of
    a job becomes the id of its process."""
    worker, server, chief = addresses(3)
    cluster = {"worker": [worker], "ps": [server], "chief": [chief]}
    servers = {name: start(program, "server", job=name, members=cluster) for name in ("worker", "ps")}
    given = {name: servers[x].pid if name == "kills" else x for name, x in arguments.items()}
    try:
        return found_by(start(program, task, members=cluster, **given))
    finally:
        for process in servers.values():
            process.kill()
            process.wait()
