"""The protocol over HTTP: what is answered, what counts once, what is refused."""

from __future__ import annotations

import shutil
import socket
import subprocess
from contextlib import suppress

import numpy as np
import pytest
from serving_cases import SPACES, Actor, Wire, check_continuous, in_thread, play, rollout_of

from etude import serving
from etude.base.errors import ConfigError
from etude.base.spaces import Spaces
from etude.explore import Greedy
from etude.serving.rollout import ClientRollout


def test_a_repeated_post_is_answered_and_counts_once():
    rollout = rollout_of()
    answers = []

    def repeat():
        ask = Wire(rollout)
        for body in ({"episode": "a"}, {"episode": "a"}):
            answers.append(ask("/v1/episodes", body))
        post = {"number": 1, "observation": [0, 0]}
        answers.extend([ask("/v1/episodes/a/act", post), ask("/v1/episodes/a/act", post)])
        answers.append(ask("/v1/episodes/a/act", {"number": 3, "observation": [0, 0]}))  # one was left out
        answers.append(ask("/v1/episodes/a/end", post))
        reward = {"number": 2, "reward": 0.5}
        answers.extend([ask("/v1/episodes/a/reward", reward), ask("/v1/episodes/a/reward", reward)])
        end = {"number": 3, "observation": [0, 1], "reward": 1, "terminated": True}
        answers.extend([ask("/v1/episodes/a/end", end), ask("/v1/episodes/a/end", end)])
        answers.append(ask("/v1/episodes", {"episode": "a"}))

    thread = in_thread(repeat)
    steps = rollout.collect(1, 0)
    thread.join(5)
    assert [status for status, _ in answers] == [200, 200, 200, 200, 409, 409, 200, 200, 200, 200, 409]
    assert answers[0] == answers[1] and answers[2] == answers[3] == (200, '{"action":1}')
    assert answers[8] == answers[9] == (200, '{"length":1,"return":1.5}')
    assert steps.reward.tolist() == [[1.5]] and [end.total for end in steps.episodes] == [1.5]
    rollout.close()


HOSTILE = [
    (422, {"number": 1, "observation": [0, 0, 0]}),
    (422, {"number": 1, "observation": [0, float("nan")]}),
    (422, {"number": 1, "observation": ["a", "b"]}),
    (422, {"number": 1, "observation": [[0], [1, 2]]}),
    (422, {"number": 1, "observation": {"dtype": "float32", "shape": [2, -1], "data": "AAAA"}}),
    (422, {"number": 1, "observation": {"dtype": "O", "shape": [1], "data": "AAAAAAAAAAA="}}),
    (422, {"number": 1, "observation": {"dtype": "float32", "shape": [10**9], "data": "AAAA"}}),
    (422, {"number": 1, "observation": [0, 0], "rewrd": 1}),
    (422, {"number": 1}),
    (422, {"observation": [0, 0]}),
    (422, {"number": True, "observation": [0, 0]}),
    (409, {"number": 2, "observation": [0, 0]}),
    (422, {"number": 1, "observation": [0, 0], "reward": float("inf")}),
    (422, {"number": 1, "observation": [0, 0], "reward": 1e300}),
    (422, {"number": 1, "observation": [0, 0], "reward": "much"}),
    (422, [1, 2]),
    (400, b"\xff\xfe"),
    (400, b"[" * 100_000),
    (400, b'{"number": 1'),
]


def test_hostile_bodies_are_refused_and_the_run_goes_on():
    rollout = rollout_of(limits=serving.ClientLimits(body=200_000, episodes=3))
    ask = Wire(rollout)
    assert ask("/v1/episodes", {"episode": "a"})[0] == 200
    for status, body in HOSTILE:
        got, text = ask("/v1/episodes/a/act", body)
        assert (got, "error" in text) == (status, True), (body, got, text)
    assert ask("/v1/episodes/a/end", {"number": 1, "observation": [0, 0]})[0] == 422  # how did it end?
    assert ask("/v1/episodes/b/act", {"number": 1, "observation": [0, 0]})[0] == 410
    assert ask("/v1/episodes/a/act", b"{}", **{"Content-Type": "text/plain"})[0] == 415  # what other sites may send
    assert ask("/v1/episodes/a/act", b"\x90", **{"Content-Type": "application/msgpack"})[0] == 422
    assert ask("/v1/episodes/a/act", b"\xc1", **{"Content-Type": "application/msgpack"})[0] == 400
    assert ask("/v1/episodes/a/act", b"x" * 200_001)[0] == 413
    assert ask("/v1/episodes/a/act", b"{}", **{"Content-Length": str(10**9)})[0] == 413
    assert ask("/v1/episodes", {"episode": "../x"})[0] == 422
    assert ask("/v1/other", {})[0] == 404
    assert [ask("/v1/episodes", {})[0] for _ in range(3)] == [200, 200, 429]
    in_thread(play, rollout.url, 0, [])
    ends = [({"number": 1, "observation": [0, 0], "truncated": True}, "/v1/episodes/a/end")]
    assert [ask(path, body)[0] for body, path in ends] == [200]  # no step was taken: nothing is counted
    in_thread(play, rollout.url, 0, [3])
    check_continuous(rollout.collect(3, 0))
    rollout.close()


def test_msgpack_and_bytes_of_arrays():
    import msgpack

    rollout = rollout_of()
    got = []

    def ask():
        wire = Wire(rollout, **{"Content-Type": "application/msgpack"})
        wire("/v1/episodes", msgpack.packb({"episode": "a"}))
        seen = {"dtype": "float32", "shape": [2], "data": np.array([5, 0], "<f4").tobytes()}
        got.append(wire("/v1/episodes/a/act", msgpack.packb({"number": 1, "observation": seen}))[1])
        wire("/v1/episodes/a/end", msgpack.packb({"number": 2, "observation": [5.0, 1.0], "truncated": True}))

    thread = in_thread(ask)
    check_continuous(rollout.collect(1, 0))
    thread.join(5)
    assert msgpack.unpackb(got[0].encode("latin-1")) == {"action": 1}
    rollout.close()


def test_a_token_guards_what_others_can_reach():
    with pytest.raises(ConfigError, match="give a token="):
        serving.Clients("0.0.0.0:9900", SPACES)
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        serving.Clients("9900", SPACES)
    rollout = rollout_of(token="secret")
    assert [Wire(rollout)(path, {})[0] for path in ("/v1/episodes", "/v1/description")] == [401, 405]
    assert Wire(rollout)("/v1/description", None, "GET")[0] == 401
    assert Wire(rollout, Authorization="Bearer secreT")("/v1/episodes", {})[0] == 401
    described = serving.Client(rollout.url, token="secret").description()
    assert described["action_space"] == {"discrete": {"n": 3, "start": 0}} and described["protocol"] == 1
    with pytest.raises(ConfigError, match="Cannot listen on"):
        ClientRollout(serving.Clients(rollout.url[7:], SPACES), Spaces(*SPACES), 1, Actor(), Greedy(), 0)
    rollout.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_an_address_with_a_certificate_is_served_over_tls(tmp_path):
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            key,
            "-out",
            certificate,
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        ],
        check=True,
        capture_output=True,
    )
    rollout = rollout_of(ssl_certfile=certificate, ssl_keyfile=key)
    url = rollout.url.replace("http:", "https:")
    assert serving.Client(url, cafile=certificate).description()["protocol"] == 1
    with pytest.raises(ConnectionError, match="CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
        serving.Client(url, patience=0.1).description()
    rollout.close()
    with pytest.raises(ConfigError, match="Give the paths of a certificate and of its key"):
        rollout_of(ssl_certfile=certificate, ssl_keyfile=str(tmp_path / "none.pem"))


def test_who_asks_too_often_is_told_to_wait():
    rollout = rollout_of(limits=serving.ClientLimits(rate=5))
    ask = Wire(rollout)
    assert 429 in [ask("/v1/description", None, "GET")[0] for _ in range(20)]
    assert ask("/v1/description", None, "OPTIONS")[0] in (405, 429)  # pages of other sites get no leave
    rollout.close()


def test_a_body_that_does_not_come_is_given_up():
    rollout = rollout_of(limits=serving.ClientLimits(wait=0.2, silence=0.2))
    address = ("127.0.0.1", int(rollout.url.rpartition(":")[2]))
    head = b"POST /v1/episodes HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    with socket.create_connection(address, 5) as slow, socket.create_connection(address, 5) as silent:
        slow.sendall(head)
        assert slow.recv(100).startswith(b"HTTP/1.1 408")
        silent.sendall(head[:20])  # not even a whole head
        with suppress(ConnectionResetError):
            assert silent.recv(100) == b""
    rollout.close()
