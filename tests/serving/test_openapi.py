"""The OpenAPI document: what it says of the routes holds for whatever a fuzzer makes of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from serving_cases import Wire, address, in_thread, rollout_of, wait_for
from several_worlds import Mixed

import etude
from etude import serving
from etude.export.policy import policies_of
from etude.serving.clients import Listening
from etude.serving.service import PolicyService

# A body is checked against its episode first: where there is none it is not looked at.
CHECKS = """
[checks.negative_data_rejection]
expected-statuses = [400, 401, 404, 405, 408, 409, 410, 413, 415, 422, 429, 503]
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 503]
[checks.positive_data_acceptance]
expected-statuses = ["2xx", 409, 410, 422, 429, 503]
"""
LIMITS = serving.ClientLimits(wait=0.2, silence=0.5)
TOOL = Path(sys.executable).with_name("schemathesis")


def collect(rollout):
    while True:
        rollout.collect(1, 0, range(1))


def test_the_document_lists_all_routes():
    rollout = rollout_of()
    document = json.loads(Wire(rollout)("/v1/openapi.json", None, "GET")[1])
    paths = {f"{method.upper()} {path}" for path, ways in document["paths"].items() for method in ways}
    kinds = ("act", "log_action", "reward", "end")
    assert paths == {
        "GET /v1/description", "GET /v1/weights", "POST /v1/episodes", "POST /v1/steps",
        *(f"POST /v1/episodes/{{episode}}/{kind}" for kind in kinds),
    }  # fmt: skip
    act = document["paths"]["/v1/episodes/{episode}/act"]["post"]["requestBody"]["content"]["application/json"]
    observation = act["schema"]["properties"]["observation"]["anyOf"][0]
    assert (observation["minItems"], observation["maxItems"]) == (2, 2)
    rollout.close()


@contextmanager
def training():
    rollout = rollout_of(4, limits=LIMITS)
    in_thread(collect, rollout)
    yield rollout.url
    rollout.close()


@contextmanager
def several_agents():
    clients = serving.Clients(address(), Mixed, limits=LIMITS)
    with etude.Run("ppo", clients, engine="torch", environments=1, network=etude.Mlp((4,))) as run:
        in_thread(run.train, 1_000)
        wait_for(clients.address)
        yield f"http://{clients.address}"


@contextmanager
def service():
    with etude.Run("dqn", "CartPole-v1", network=etude.Mlp((4,)), engine="torch") as run:
        listening = Listening(address(), limits=LIMITS)
        served = PolicyService(listening, {"run": lambda: policies_of(run.policy, run.actor())})
        yield f"http://{listening.address}"
        served.close()


@pytest.mark.skipif(not (TOOL.exists() or shutil.which("schemathesis")), reason="schemathesis is not installed")
@pytest.mark.parametrize(
    "served", [training, *(pytest.param(each, marks=pytest.mark.long) for each in (several_agents, service))]
)
def test_a_fuzzer_finds_nothing(served, tmp_path):
    (tmp_path / "schemathesis.toml").write_text(CHECKS)
    with served() as url:
        command = [TOOL if TOOL.exists() else "schemathesis", "run", f"{url}/v1/openapi.json", "--seed", "1"]
        command += ["--phases", "fuzzing", "--max-examples", "5", "--no-color"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
