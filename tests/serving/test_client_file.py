"""The client is a file that works by itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from serving_cases import check_continuous, rollout_of

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
