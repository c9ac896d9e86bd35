"""The board as a browser asks it, without one: see also board_in_browser.py."""

from __future__ import annotations

import os
import socket
import time

import numpy as np
import pytest
from boards import ask, events, served, server, write_run

import etude
from etude.base.errors import SpaceError
from etude.board.runs import RunBoard
from etude.checkpoint import Lock
from etude.cli import main
from etude.serving.http import Refused


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
    assert [(run.shown, run.state) for run in board.poll()[0]] == [("held", "crashed")]


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


def test_policies_act_as_their_runs_do_and_refuse_what_is_no_observation(tmp_path):
    from etude.board.policy import ShownPolicy

    for algorithm, env, title in (("dqn", "CartPole-v1", "action values"), ("ppo", "CartPole-v1", "probabilities")):
        with etude.Run(algorithm, env, engine="torch", run_dir=tmp_path / algorithm) as run:
            run.train(64)
            policy = ShownPolicy(tmp_path / algorithm)
            first = policy.answer({"seed": 3})
            observation = np.array(first["observation"], np.float32)
            expected = run.actor().act(observation[None])
            expected = expected if algorithm == "dqn" else expected.probabilities()
            assert first["action"] == run.act(observation) and first["shown"][0]["title"] == title
            np.testing.assert_array_equal(np.float32(first["shown"][0]["values"]), expected[0])
            assert policy.answer({"observation": first["observation"]}) == first
            with pytest.raises((Refused, SpaceError)):
                policy.answer({"observation": [1, 2]})


def test_nothing_is_started_for_what_has_no_checkpoint_or_leads_elsewhere(tmp_path):
    (write_run(tmp_path / "a") / "video").symlink_to(tmp_path)
    (tmp_path / "other.mp4").write_bytes(b"1")
    with served(tmp_path) as port, events(port) as following:
        name = following()["rows"][0]["id"]
        assert ask(port, "/act", {"id": name, "seed": 1})[0] == ask(port, f"/video?id={name}")[0] == 404
        assert ask(port, "/film", {"id": "../a"})[0] == 404 and ask(port, "/film", {"id": name})[0] == 403


def test_studies_and_sweeps_have_their_tables_and_pictures(tmp_path):
    with etude.Study(
        "ppo", "CartPole-v1", {"learning_rate": [1e-3, 1e-4]}, steps=128, evaluate_every=64, evaluate_episodes=1,
        folder=tmp_path / "study", engine="torch",
    ) as study:  # fmt: skip
        study.run()
    write_run(tmp_path / "sweep" / "seed-0000")
    (tmp_path / "sweep" / "sweep.json").write_text('{"sweep": {"seeds": [0], "steps": 10}}')
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "study.jsonl").write_text('{"study": 3}\n')
    with served(tmp_path) as port, events(port) as following:
        folders = {folder["name"]: folder for folder in following()["folders"]}
        assert {name: folder["kind"] for name, folder in folders.items()} == {
            "study": "study", "sweep": "sweep", "odd": "study",
        }  # fmt: skip
        found = {name: ask(port, f"/folder?id={folder['id']}")[1] for name, folder in folders.items()}
        assert "2 finished" in found["study"]["summary"] and len(found["study"]["rows"]) == 2
        assert found["sweep"]["summary"].startswith("1 of 1 seeds") and "damaged" in found["odd"]["error"]
        for name in ("study", "sweep"):
            title = found[name]["pictures"][0].replace(" ", "%20")
            status, picture, _ = ask(port, f"/picture?id={folders[name]['id']}&title={title}")
            assert status == 200 and picture.startswith(b"\x89PNG")


def test_what_runs_differ_in_is_compared(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", 1, learning_rate=0.5)
    with served(tmp_path) as port, events(port) as following:
        names = {row["name"]: row["id"] for row in following()["rows"]}
        found = ask(port, "/compared", {"runs": [names["b"], names["a"]]})[1]["differing"]
        assert found == {"learning_rate": ["0.5", "0.001"], "seed": ["1", "0"]}
        details = ask(port, f"/run?id={names['a']}")[1]
        assert details["warnings"] == [{"step": 10, "text": "a <b>warning</b>"}] and details["video"] is None


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


def test_the_command_asks_for_a_token_and_says_what_it_cannot_show(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("ETUDE_TOKEN", raising=False)
    for arguments, reason in (
        ((str(tmp_path), "--address", "0.0.0.0:0"), "ETUDE_TOKEN"),
        ((str(tmp_path / "missing"),), "is no folder"),
        ((str(tmp_path), "--address", "here"), "is no address"),
    ):
        assert main(["board", *arguments]) == 2 and reason in capsys.readouterr().err


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
    assert len(run.metrics.columns(names, time.thread_time() + 60)[0][names[0]][0]) == 10_000
    read, pread = [], os.pread
    monkeypatch.setattr(os, "pread", lambda *given: (found := pread(*given), read.append(len(found)))[0])
    with path.open("a") as file:
        file.write('{"step": 10001, "rollout/ep_rew_mean": 3.5}\n')
    board.poll()
    steps, values = run.metrics.columns(names, time.thread_time() + 60)[0][names[0]]
    assert (steps[-1], values[-1]) == (10_001, 3.5) and sum(read) < 1_000
    path.write_text('{"step": 5, "rollout/ep_rew_mean": 1}\n')  # a resumed run writes the file anew
    board.poll()
    assert run.metrics.columns(names, time.thread_time() + 60)[0][names[0]][0].tolist() == [5]


def test_of_a_long_file_a_sample_is_drawn_before_it_is_read(tmp_path):
    write_run(tmp_path / "a", steps=20_000)
    board = RunBoard([tmp_path])
    board.poll()
    (run,) = board.runs.values()
    columns, complete = run.metrics.columns(("rollout/ep_rew_mean",), until=0)
    steps, values = columns["rollout/ep_rew_mean"]
    assert not complete and 80 < len(steps) < 120 and (values == steps).all()
