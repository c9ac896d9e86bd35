"""Made-up run directories, and boards that show them."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from contextlib import contextmanager

import pytest

from etude.board.runs import RunBoard

uvicorn = pytest.importorskip("uvicorn")
server = pytest.importorskip("etude.board.server")


def write_run(folder, seed=0, steps=10, learning_rate=1e-3, finished="steps", **started):
    """A run directory with made-up metrics, whose return at each step is the step plus the seed."""
    folder.mkdir(parents=True)
    about = {"algorithm": "ppo", "environment": "CartPole-v1", "setup": {"seed": seed, "environments": 1}, "total": 99}
    about |= {"config": {"class": "PPOConfig", "learning_rate": learning_rate}} | started
    records = [{"step": 0, "started": about}]
    for step in range(1, steps + 1):
        records.append({"step": step, "rollout/ep_rew_mean": step + seed, "rollout/episodes": 1, "time/fps": 2.0})
    records.append({"step": steps, "warning": "a <b>warning</b>"})
    if finished:
        records.append({"step": steps, "finished": finished})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


@contextmanager
def served(*folders, hosts=("127.0.0.1",), **options):
    """The port of a board of these folders."""
    listening = socket.create_server(("127.0.0.1", 0))
    app = server.application(RunBoard(folders), frozenset(hosts), **options)
    own = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=own.run, args=([listening],), daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        own.should_exit = True
        thread.join(10)


def ask(port, path, body=None, **headers):
    """(status, body, headers) of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None:
        headers.setdefault("content-type", "application/json")
        body = body if isinstance(body, str | bytes) else json.dumps(body)
    connection.request("GET" if body is None else "POST", path, body, headers)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    kind = answer.headers.get("content-type", "")
    return answer.status, json.loads(data) if kind.startswith("application/json") else data, answer.headers


@contextmanager
def events(port):
    """Calls that return the next event each."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/events")
    answer = connection.getresponse()
    try:
        yield lambda: json.loads(next(line for line in answer if line.startswith(b"data: "))[6:])
    finally:
        answer.close()
        connection.close()
