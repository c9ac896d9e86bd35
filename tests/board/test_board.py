"""The board as a browser asks it, without one: see also tests/docs/board_in_browser.py."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from etude.board.runs import RunBoard
from etude.checkpoint import Lock

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


def test_the_table_lists_the_runs_below_a_folder_and_follows_them(tmp_path):
    write_run(tmp_path / "a")
    growing = write_run(tmp_path / "deep" / "er" / "b", 1, finished=None) / "metrics.jsonl"
    with served(tmp_path) as port, events(port) as following:
        first = following()
        rows = {row["name"]: row for row in first["rows"]}
        assert rows.keys() == {"a", "deep/er/b"}
        row = rows["a"]
        assert (row["algorithm"], row["environment"], row["seed"], row["step"]) == ("ppo", "CartPole-v1", "0", 10)
        assert (row["return"], row["fps"], row["state"], row["total"]) == (10, 2.0, "finished", 99)
        with growing.open("a") as file:
            file.write('{"step": 11, "rollout/ep_rew_mean": 70.5}\n{"step": 12, "rollout/ep')
        (row,) = following()["rows"]
        assert (row["name"], row["step"], row["return"]) == ("deep/er/b", 11, 70.5)


def test_curves_group_the_seeds_of_a_configuration(tmp_path):
    for seed in range(3):
        write_run(tmp_path / f"a{seed}", seed)
    write_run(tmp_path / "b", learning_rate=0.5)
    with served(tmp_path) as port:
        found = ask(port, "/curves", {"smoothing": 0, "statistic": "mean", "band": "range"})[1]
        (panel,) = found["panels"]
        assert (panel["title"], panel["x"], panel["y"]) == (
            "ppo on CartPole-v1", "environment steps", "smoothed training return",
        )  # fmt: skip
        assert panel["across"] == list(range(1, 11))
        lines = {line["label"]: line for line in panel["lines"]}
        line = lines["learning_rate=0.001"]
        assert line["seeds"] == 3 and line["centre"] == [step + 1 for step in range(1, 11)]
        assert (line["low"][0], line["high"][0]) == (1, 3) and lines["learning_rate=0.5"]["seeds"] == 1
        over_time = ask(port, "/curves", {"across": "time", "metric": "time/fps"})[1]["panels"][0]
        assert over_time["x"] == "seconds of training" and over_time["across"][-1] == 5.0


def test_a_run_is_running_while_its_process_holds_the_lock(tmp_path):
    ended = write_run(tmp_path / "ended", finished=None)
    (ended / ".lock").write_text(f"process {2**22 + 1} on {socket.gethostname()}")
    lock = Lock(write_run(tmp_path / "held", finished=None) / ".lock")
    board = RunBoard([tmp_path])
    board.poll()
    assert {run.shown: run.state for run in board.runs.values()} == {"ended": "crashed", "held": "running"}
    lock.release()
    assert [run.shown for run in board.poll()[0]] == ["held"] and board.runs[str(tmp_path / "held")].state == "crashed"


def test_what_is_damaged_or_foreign_is_a_row_that_says_so(tmp_path):
    write_run(tmp_path / "fine")
    contents = {
        "binary": bytes(range(256)), "list": b"[1]\n", "deep": b"[" * 100_000 + b"\n", "long": b"x" * 5_000_000,
        "no step": b'{"a": 1}\n', "huge": b'{"step": 1' + b"0" * 500 + b"}\n",
        "names": b'{"step": 1, "started": {"algorithm": {"a": 1}, "setup": 3, "config": [1]}}\n',
    }  # fmt: skip
    for name, content in contents.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_bytes(content)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "metrics.jsonl")
    board = RunBoard([tmp_path])
    board.poll()
    faults = {run.shown: run.metrics.fault for run in board.runs.values()}
    assert {name for name, fault in faults.items() if not fault} == {"fine", "names"}
    with served(tmp_path) as port, events(port) as following:
        assert len(following()["rows"]) == len(contents) + 1
        assert ask(port, "/curves", {})[0] == 200


def test_links_are_not_followed(tmp_path):
    outside = write_run(tmp_path / "outside")
    inside = tmp_path / "inside"
    write_run(inside / "own")
    (inside / "link").symlink_to(outside)
    (inside / "file").mkdir()
    (inside / "file" / "metrics.jsonl").symlink_to(outside / "metrics.jsonl")
    board = RunBoard([inside])
    board.poll()
    assert [run.shown for run in board.runs.values()] == ["own"]


def test_only_the_page_itself_is_answered(tmp_path):
    write_run(tmp_path / "a")
    with served(tmp_path) as port:
        own = {"host": f"127.0.0.1:{port}"}
        status, _, headers = ask(port, "/", **own)
        assert status == 200 and "script-src 'self'" in headers["content-security-policy"]
        assert "access-control-allow-origin" not in headers
        assert ask(port, "/", host="evil.example:80")[0] == 421
        assert ask(port, "/curves", {}, origin="http://evil.example")[0] == 403
        assert ask(port, "/curves", {}, origin=f"http://127.0.0.1:{port}")[0] == 200
        assert ask(port, "/curves", "{}", content_type="text/plain")[0] == 415
        assert ask(port, "/curves", "{" * 100_000)[0] == 400
        assert ask(port, "/curves", b" " * 2_000_000)[0] == 413
        assert ask(port, "/curves", {"smoothing": "much"})[0] == 422
        for path in ("/static/../server.py", "/static/%2e%2e%2fserver.py", "/run?id=../../etc/passwd", "/run"):
            assert ask(port, path)[0] == 404


def test_a_token_is_asked_for(tmp_path):
    write_run(tmp_path / "a")
    with served(tmp_path, hosts=(), token="a secret; ä") as port:
        assert ask(port, "/")[0] == ask(port, "/events")[0] == ask(port, "/?token=wrong")[0] == 401
        status, _, headers = ask(port, "/?token=a%20secret%3B%20%C3%A4")
        assert status == 303 and "httponly" in headers["set-cookie"].lower() and "secret" not in headers["set-cookie"]
        assert ask(port, "/", cookie=headers["set-cookie"].partition(";")[0])[0] == 200


def test_posts_are_limited(tmp_path):
    write_run(tmp_path / "a")
    with served(tmp_path, limits=server.BoardLimits(posts=3)) as port:
        assert [ask(port, "/curves", {})[0] for _ in range(5)] == [200, 200, 200, 429, 429]


def test_only_new_bytes_are_read(tmp_path, monkeypatch):
    path = write_run(tmp_path / "a", steps=10_000, finished=None) / "metrics.jsonl"
    board = RunBoard([tmp_path])
    board.poll()
    (run,) = board.runs.values()
    names = ("rollout/ep_rew_mean",)
    assert len(run.metrics.columns(names, time.monotonic() + 60)[0][names[0]][0]) == 10_000
    read, pread = [], os.pread
    monkeypatch.setattr(os, "pread", lambda *given: (found := pread(*given), read.append(len(found)))[0])
    with path.open("a") as file:
        file.write('{"step": 10001, "rollout/ep_rew_mean": 3.5}\n')
    board.poll()
    steps, values = run.metrics.columns(names, time.monotonic() + 60)[0][names[0]]
    assert (steps[-1], values[-1]) == (10_001, 3.5) and sum(read) < 1_000
    path.write_text('{"step": 5, "rollout/ep_rew_mean": 1}\n')  # a resumed run writes the file anew
    board.poll()
    assert run.metrics.columns(names, time.monotonic() + 60)[0][names[0]][0].tolist() == [5]


def test_of_a_long_file_a_sample_is_drawn_before_it_is_read(tmp_path):
    write_run(tmp_path / "a", steps=20_000)
    board = RunBoard([tmp_path])
    board.poll()
    (run,) = board.runs.values()
    columns, complete = run.metrics.columns(("rollout/ep_rew_mean",), until=0)
    steps, values = columns["rollout/ep_rew_mean"]
    assert not complete and 150 < len(steps) < 250 and (values == steps).all()
