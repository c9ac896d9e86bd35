"""The client is a file that works by itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from serving_cases import address, check_continuous, rollout_of

import etude
from etude import serving

COPIED = """
import sys
sys.path[:] = [path for path in sys.path if "serving" not in path and path != ""]
from simulator_client import Client
assert "etude" not in sys.modules
client = Client(sys.argv[1], patience=3)
for episode in range(3):
    name = client.start_episode()
    for t in range(4):
        client.get_action(name, [float(episode), float(t)])
        client.log_returns(name, t)
    client.end_episode(name, [float(episode), 4.0])
"""


def test_the_client_is_one_file_that_works_without_etude(tmp_path):
    shutil.copy(Path(serving.__file__).with_name("client.py"), tmp_path / "simulator_client.py")
    (tmp_path / "simulate.py").write_text(COPIED)
    rollout = rollout_of()
    process = subprocess.Popen([sys.executable, "-P", str(tmp_path / "simulate.py"), rollout.url], cwd=tmp_path,
                               env={"PYTHONPATH": str(tmp_path)})  # fmt: skip
    check_continuous(rollout.collect(12, 0))
    assert process.wait(10) == 0
    rollout.close()


LOCAL = """
import sys
sys.modules["etude"] = None  # importing it fails
from simulator_client import Client
client = Client(sys.argv[1], "local", patience=5, seed=0)
while True:
    name = client.start_episode()
    for t in range(10):
        assert client.get_action(name, [0.1, 0.2, 0.3, 0.4]) in (0, 1)
        client.log_returns(name, 1.0)
    client.end_episode(name, [0.0, 0.0, 0.0, 0.0])
"""


def test_a_client_acts_for_itself_where_etude_cannot_be_imported(tmp_path):
    shutil.copy(Path(serving.__file__).with_name("client.py"), tmp_path / "simulator_client.py")
    clients = serving.Clients(address(), "CartPole-v1")
    fields = {"engine": "torch", "environments": 1, "rollout_length": 32, "epochs": 1}
    with etude.Run("ppo", clients, **fields) as run:
        command = [sys.executable, "-c", LOCAL, f"http://{clients.address}"]
        process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
        finished = run.train(96)
    process.kill()
    process.wait()
    assert finished.step == 96 and finished.totals["episodes"] == 9


@pytest.mark.parametrize("reward", [float("nan"), [1.0], np.ones(1), None, "1", {"ann": float("inf")}], ids=str)
def test_a_reward_that_is_no_finite_number_is_refused_where_it_is_logged(reward):
    client = serving.Client("http://127.0.0.1:9", "local")  # nothing is asked for before an action is
    with pytest.raises(ValueError, match="reward: expected a finite number; got"):
        client.log_returns(client.start_episode(), reward)
